"""Reads of variables for a trained lookup alone: which of them become gathers, which stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 20, 4
PASS = FuseLookups(frozenset({"out", "table_after"}), runs=True)


class Step:
    """A graph that looks up rows of a variable.

    Attributes:
        handle: of the variable.
        flag: a truth value.
    """

    def __init__(self) -> None:
        self.handle = raw.VarHandleOp(
            dtype=tf.float32, shape=[ROWS, DIM], shared_name="table", name="table"
        )
        self.ids = v1.placeholder(tf.int64, [None], name="ids")
        self.flag = v1.placeholder(tf.bool, [], name="flag")

    def switched(self, value: tf.Tensor, index: int) -> tf.Tensor:
        return raw.Switch(data=value, pred=self.flag)[index]

    def lookup(self, handle: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.IndexedSlices]:
        """The means of pairs of rows, and a gradient of the table."""
        table = raw.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
        entries = tf.range(tf.size(ids, tf.int64))
        indices = tf.stack([entries // 2, entries % 2], 1)
        sparse = tf.SparseTensor(indices, ids, [3, 2])
        result = v1.nn.safe_embedding_lookup_sparse(table, sparse)
        return result, tf.gradients(tf.reduce_sum(tf.square(result)), table)[0]

    def write(self, ids: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        return raw.ResourceScatterSub(
            resource=self.handle, indices=ids, updates=values, name="write"
        )


Body = Callable[[Step], tuple[tf.Tensor, tf.Operation]]


def build(body: Body, *, pruned: bool = True) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        step = Step()
        out, write = body(step)
        tf.identity(out, name="out")
        with tf.control_dependencies([write]):
            raw.ReadVariableOp(resource=step.handle, dtype=tf.float32, name="table_after")
        graph_def = graph.as_graph_def()
    return v1.graph_util.extract_sub_graph(graph_def, [*PASS.preserve]) if pruned else graph_def


def run(graph_def: graph_pb2.GraphDef, flag: bool) -> list[Any]:
    """Returns the result and the variable of two steps."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        values = np.random.default_rng(0).normal(size=[ROWS, DIM])
        handle, value = graph.get_tensor_by_name("table:0"), tf.constant(values, tf.float32)
        session.run(raw.AssignVariableOp(resource=handle, value=value))
        feed: dict[str, Any] = {"ids:0": [3, 1, 3, 3, 0, 7]}
        if any(node.name == "flag" for node in graph_def.node):
            feed["flag:0"] = flag
        return [session.run(["out:0", "table_after:0"], feed) for _ in range(2)]


def becomes_a_gather(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether the read becomes one; either way the fused graph does what the stock one does."""
    result = PASS.apply(graph_def)
    assert [column.form for column in result.report.columns] == ["trained"]
    for flag in (True, False):
        pairs = zip(run(graph_def, flag), run(result.graph_def, flag), strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])
    ops = Counter(node.op for node in result.graph_def.node)
    return ops["ResourceGather"] == 1


def plain(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    result, slices = step.lookup(step.handle, step.ids)
    return result, step.write(slices.indices, slices.values)


def by_ids_alone(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    result, slices = step.lookup(step.handle, step.ids)
    return result, step.write(slices.indices, tf.ones([tf.size(slices.indices), DIM]))


def behind_the_read(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    result, slices = step.lookup(step.handle, step.ids)
    with tf.control_dependencies([v1.get_default_graph().get_tensor_by_name("read:0")]):
        write = step.write(tf.range(3), tf.ones([3, DIM]))
    return result + tf.reduce_sum(slices.values), write


def in_both_branches(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    """As a gradient is clipped or not."""
    result, slices = step.lookup(step.handle, step.ids)
    inputs = [tf.square(step.switched(slices.values, 0)), step.switched(slices.values, 1)]
    return result, step.write(tf.range(3), raw.Merge(inputs=inputs)[0][:3])


def inside_of_a_branch(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    """Where the other one is taken nothing is looked up."""
    handle, ids = step.switched(step.handle, 1), step.switched(step.ids, 1)
    result, slices = step.lookup(handle, ids)
    other = step.switched(tf.ones([3, DIM]), 0)
    write = step.write(tf.range(3), raw.Merge(inputs=[other, slices.values[:3]])[0])
    return raw.Merge(inputs=[other, result])[0], write


@pytest.mark.parametrize(
    "body", [plain, by_ids_alone, behind_the_read, in_both_branches, inside_of_a_branch]
)
def test_a_read_that_every_write_waits_for_becomes_a_gather(body: Body) -> None:
    assert becomes_a_gather(build(body))


def in_one_branch(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    """Where the other one is taken, the write does not wait for the lookup, nor for its ids.

    Stock leaves it open, too, whether that sees the rows before the write; but it reads at once.
    """
    result, slices = step.lookup(step.handle, step.ids)
    inputs = [step.switched(tf.zeros([3, DIM]), 0), step.switched(slices.values, 1)]
    return result, step.write(tf.range(3), raw.Merge(inputs=inputs)[0][:3])


def in_a_branch_that_another_test_takes(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    """The lookup may run where the write does not wait for it."""
    other_flag = v1.placeholder_with_default(True, [])
    handle, ids = step.switched(step.handle, 1), step.switched(step.ids, 1)
    result, slices = step.lookup(handle, ids)
    zeros = step.switched(tf.zeros([3, DIM]), 0)
    merged = raw.Merge(inputs=[zeros, slices.values])[0][:3]
    inputs = [
        raw.Switch(data=tf.zeros([3, DIM]), pred=other_flag)[0],
        raw.Switch(data=merged, pred=other_flag)[1],
    ]
    write = step.write(tf.range(3), raw.Merge(inputs=inputs)[0])
    return raw.Merge(inputs=[zeros, result])[0], write


def does_not_wait(step: Step) -> tuple[tf.Tensor, tf.Operation]:
    result, slices = step.lookup(step.handle, step.ids)
    return result + tf.reduce_sum(slices.values), step.write(tf.range(3), tf.zeros([3, DIM]))


@pytest.mark.parametrize(
    "body", [in_one_branch, in_a_branch_that_another_test_takes, does_not_wait]
)
def test_a_read_that_a_write_may_not_wait_for_stays(body: Body) -> None:
    assert not becomes_a_gather(build(body))


def test_stock_nodes_that_stay_for_what_nobody_sees() -> None:
    """Then what waits for them by control edges does not wait for the gather."""
    assert becomes_a_gather(build(plain, pruned=False))
    assert not becomes_a_gather(build(behind_the_read, pruned=False))
