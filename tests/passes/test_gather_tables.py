"""Which reads of tables become gathers from variables, and which stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.gather_tables import GatherTables
from tests.passes.rewritten_graphs import plainly_named

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 9, 3
PASS = GatherTables(frozenset({"out", "table_after"}))


class Step:
    """A graph that looks up rows of a variable and subtracts from them.

    Attributes:
        handle: of the variable.
        ids: [n].
    """

    def __init__(self, ids_dtype: Any = tf.int64, dtype: Any = tf.float32) -> None:
        self.dtype = dtype
        self.handle = self.handle_of("table")
        self.ids = v1.placeholder(ids_dtype, [None], name="ids")
        self.flag = v1.placeholder(tf.bool, [], name="flag")

    def handle_of(self, name: str, shared_name: str = "table") -> tf.Tensor:
        return raw.VarHandleOp(
            dtype=self.dtype, shape=[ROWS, DIM], shared_name=shared_name, name=name
        )

    def read(self, name: str = "read") -> tf.Tensor:
        return raw.ReadVariableOp(resource=self.handle, dtype=self.dtype, name=name)

    def gather(self, table: tf.Tensor, ids: Any = None, name: str = "rows") -> tf.Tensor:
        ids = self.ids if ids is None else ids
        return raw.GatherV2(params=table, indices=ids, axis=0, name=name)

    def scatter(self, rows: tf.Tensor, handle: Any = None) -> tf.Operation:
        return raw.ResourceScatterSub(
            resource=self.handle if handle is None else handle,
            indices=self.ids,
            updates=tf.square(rows),
            name="scatter",
        )

    def end(self, rows: tf.Tensor, *writes: tf.Operation) -> None:
        """Lets the graph return rows, and the variable behind all writes."""
        with tf.control_dependencies([op for op in writes if op is not None]):
            tf.identity(rows, name="out")
            raw.ReadVariableOp(resource=self.handle, dtype=self.dtype, name="table_after")


def build(body: Callable[[Step], None], **options: Any) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        body(Step(**options))
        return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, ids: list[int], flag: bool = True) -> list[Any]:
    """Returns the rows and the variable of two steps."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        handle = graph.get_tensor_by_name("table:0")
        dtype = next(node for node in graph_def.node if node.name == "table").attr["dtype"].type
        values = np.random.default_rng(0).normal(size=[ROWS, DIM])
        session.run(raw.AssignVariableOp(resource=handle, value=tf.constant(values, dtype)))
        feed = {"ids:0": ids, "flag:0": flag}
        return [session.run(["out:0", "table_after:0"], feed) for _ in range(2)]


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    return Counter(node.op for node in graph_def.node)


def check(
    graph_def: graph_pb2.GraphDef, gathers: int = 1, rewrite: GatherTables = PASS
) -> graph_pb2.GraphDef:
    """Checks that all gathers are from the variable after the pass, and give the same rows."""
    result = rewrite.apply(graph_def)
    assert result.modified
    found = ops(result.graph_def)
    assert (found["ResourceGather"], found["GatherV2"]) == (gathers, 0)
    assert found["ReadVariableOp"] == ops(graph_def)["ReadVariableOp"] - 1
    assert not rewrite.apply(result.graph_def).modified
    for ids in ([4, 1, 4, 8], [0], []):
        for flag in (True, False):
            for one, other in zip(
                run(graph_def, ids, flag), run(result.graph_def, ids, flag), strict=True
            ):
                np.testing.assert_array_equal(one[0], other[0])
                np.testing.assert_array_equal(one[1], other[1])
    return result.graph_def


def stays(graph_def: graph_pb2.GraphDef, rewrite: GatherTables = PASS) -> None:
    assert "GatherV2" in ops(graph_def)
    result = rewrite.apply(graph_def)
    assert not result.modified
    assert result.graph_def is graph_def


def plain(step: Step) -> None:
    rows = step.gather(step.read())
    step.end(rows, step.scatter(rows))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64])
def test_a_read_for_a_gather_goes(ids_dtype: Any, dtype: Any) -> None:
    check(build(plain, ids_dtype=ids_dtype, dtype=dtype))


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_ids_out_of_range_stay_errors(bad: int) -> None:
    graph_def = build(plain)
    for one in (graph_def, check(graph_def)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"= {bad} is not in"):
            run(one, [bad])


def test_a_read_through_an_identity_goes() -> None:
    def body(step: Step) -> None:
        rows = step.gather(tf.identity(step.read()))
        step.end(rows, step.scatter(rows))

    check(build(body))


def test_all_gathers_of_a_read_are_waited_for() -> None:
    def body(step: Step) -> None:
        table = step.read()
        first, second = step.gather(table, name="first"), step.gather(table, name="second")
        step.end(first + second, step.scatter(first))

    # If a write waits for one of two gathers, the other one may be late.
    stays(build(body))

    def both(step: Step) -> None:
        table = step.read()
        first, second = step.gather(table, name="first"), step.gather(table, name="second")
        with tf.control_dependencies([table]):
            write = step.scatter(first)
        step.end(first + second, write)

    nodes = {node.name: node for node in plainly_named(check(build(both), 2)).node}
    assert {*nodes["second/gathered"].input} == {"^first", "^second"}
    assert "^second/gathered" in nodes["Square"].input


def test_a_read_that_is_awaited_leaves_its_name() -> None:
    graph_def = build(plain)
    result = GatherTables(PASS.preserve, awaited=frozenset({"read"})).apply(graph_def).graph_def
    (node,) = (node for node in plainly_named(result).node if node.name == "read")
    assert (node.op, [*node.input]) == ("NoOp", ["^rows"])


def test_what_the_read_waits_for_the_gather_waits_for() -> None:
    def body(step: Step) -> None:
        other = step.handle_of("other", "other")
        before = raw.AssignAddVariableOp(resource=other, value=tf.ones([ROWS, DIM]))
        with tf.control_dependencies([before]):
            table = step.read()
        rows = step.gather(table)
        step.end(rows, step.scatter(rows))

    result = plainly_named(PASS.apply(build(body)).graph_def)
    (node,) = (node for node in result.node if node.op == "ResourceGather")
    assert [text for text in node.input if text.startswith("^")] == ["^AssignAddVariableOp"]


def test_a_write_behind_a_branch_on_the_gradient_waits() -> None:
    """Keras 3's Adagrad divides in one of two branches."""

    def body(step: Step) -> None:
        rows = step.gather(step.read())
        off, on = raw.Switch(data=rows, pred=step.flag)
        merged = raw.Merge(inputs=[tf.square(off), tf.negative(on)])[0]
        step.end(rows, step.scatter(merged))

    check(build(body))


# What stays


def reads_whole(step: Step) -> None:
    table = step.read()
    rows = step.gather(table)
    step.end(rows, step.scatter(rows + tf.reduce_sum(table)))


def does_not_wait(step: Step) -> None:
    step.end(step.gather(step.read()), step.scatter(tf.ones([1, DIM])))


def another_does_not_wait(step: Step) -> None:
    rows = step.gather(step.read())
    assign = raw.AssignVariableOp(resource=step.handle, value=tf.ones([ROWS, DIM]))
    step.end(rows, step.scatter(rows), assign)


def two_handles(step: Step) -> None:
    rows = step.gather(step.read())
    step.end(rows, step.scatter(rows, step.handle_of("other")))


def two_handles_beside(step: Step) -> None:
    rows = step.gather(step.read())
    write = step.scatter(rows)
    assign = raw.AssignVariableOp(
        resource=step.handle_of("other"), value=tf.ones([ROWS, DIM]), name="assign"
    )
    step.end(rows, write, assign)


def passes_by_a_branch(step: Step) -> None:
    """The Merge takes what does not wait for the gather, if that is there first."""
    rows = step.gather(step.read())
    off, _ = raw.Switch(data=rows, pred=step.flag)
    _, on = raw.Switch(data=tf.ones([1, DIM]), pred=step.flag)
    step.end(rows, step.scatter(raw.Merge(inputs=[off, on])[0]))


def in_a_branch(step: Step) -> None:
    """The gather may not run, but the read does, for which the write waits."""
    table = step.read()
    _, ids = raw.Switch(data=step.ids, pred=step.flag)
    rows = step.gather(table, ids)
    with tf.control_dependencies([table]):
        write = step.scatter(tf.ones([1, DIM]))
    step.end(table, write, rows.op)


def in_a_loop(step: Step) -> None:
    def turn(turn_number: Any, rows: Any) -> tuple[Any, Any]:
        rows = step.gather(step.read()) + rows[:0]
        with tf.control_dependencies([step.scatter(rows)]):
            return turn_number + 1, tf.identity(rows)

    start = tf.constant(0), tf.zeros([0, DIM])
    shapes = tf.TensorShape([]), tf.TensorShape([None, DIM])
    v1.disable_control_flow_v2()
    _, rows = v1.while_loop(lambda n, _: n < 2, turn, start, shapes)
    v1.enable_control_flow_v2()
    step.end(rows, rows.op)


def of_a_branch_function(step: Step) -> None:
    """A function that is given the handle may write at any time."""
    rows = step.gather(step.read())

    def assign() -> Any:
        with tf.control_dependencies(
            [raw.AssignVariableOp(resource=step.handle, value=tf.ones([ROWS, DIM]))]
        ):
            return tf.constant(1.0)

    done = tf.cond(step.flag, assign, lambda: tf.constant(0.0))
    step.end(rows, step.scatter(rows), done.op)


def along_another_axis(step: Step) -> None:
    rows = raw.GatherV2(params=step.read(), indices=step.ids, axis=1)
    step.end(rows, step.scatter(tf.reduce_sum(rows) * tf.ones([1, DIM])))


def is_never_scattered_to(step: Step) -> None:
    rows = step.gather(step.read())
    value = tf.reduce_sum(rows) * tf.ones([ROWS, DIM])
    step.end(rows, raw.AssignSubVariableOp(resource=step.handle, value=value))


def writes_before_it_reads(step: Step) -> None:
    with tf.control_dependencies([step.scatter(tf.ones([1, DIM]))]):
        table = step.read()
    step.end(step.gather(table))


STAYING = [
    reads_whole,
    does_not_wait,
    another_does_not_wait,
    two_handles,
    two_handles_beside,
    passes_by_a_branch,
    in_a_branch,
    in_a_loop,
    of_a_branch_function,
    along_another_axis,
    is_never_scattered_to,
    writes_before_it_reads,
]


@pytest.mark.parametrize("body", STAYING)
def test_what_is_not_certain_stays(body: Callable[[Step], None]) -> None:
    stays(build(body))


def test_a_read_that_is_fetched_stays() -> None:
    stays(build(plain), GatherTables(PASS.preserve | {"read"}))


def test_a_gather_on_another_device_stays() -> None:
    graph_def = build(plain)
    for node in graph_def.node:
        if node.name == "rows":
            node.device = "/device:GPU:0"
    stays(graph_def)
