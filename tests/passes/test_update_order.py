"""What updates of tables in one op wait for, what waits for them, and which numbers they read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.graph.kernel_names import plain_name
from tests.passes.update_checks import PASS, UPDATE, check, refused
from tests.passes.update_graphs import DIM, ROWS, assign, build, read, rows_of, run, subtract

v1 = tf.compat.v1
raw = tf.raw_ops


def waits_for(graph_def: graph_pb2.GraphDef, later: str, earlier: str) -> bool:
    """Whether a node waits for another one."""
    nodes = {node.name: node for node in graph_def.node}
    seen, stack = set[str](), [later]
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack += (text.removeprefix("^").partition(":")[0] for text in nodes[name].input)
    return earlier in seen


def updates(graph_def: graph_pb2.GraphDef) -> Iterator[str]:
    """Yields the names of the fused updates."""
    return (node.name for node in graph_def.node if node.op == UPDATE)


def sums(ids: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)


def test_what_else_is_made_of_an_old_value():
    """The read stays for it, before the update."""

    def body(handles, ids):
        table, slot = handles
        old = raw.ReadVariableOp(resource=slot, dtype=tf.float32, name="old")
        tf.reduce_sum(old, name="metric")
        with tf.control_dependencies([assign(slot, old * 0.5 - sums(ids))]):
            return [raw.AssignAddVariableOp(resource=table, value=read(slot))]

    graph_def = build(body, count=2)
    rewrite = FuseUpdates(frozenset({"out", "metric"}))
    result = rewrite.apply(graph_def).graph_def
    (update,) = updates(result)
    assert waits_for(graph_def, plain_name(update), "old")
    assert waits_for(result, update, "old")
    assert not waits_for(result, "metric", update)
    feed = {"ids": np.array([1, 2])}
    for fetch in ("out", "metric"):
        np.testing.assert_array_equal(run(result, feed, fetch), run(graph_def, feed, fetch))


def test_what_else_is_made_of_a_value_between_two_changes():
    def body(handles, ids):
        (table,) = handles
        with tf.control_dependencies([assign(table, read(table) * 0.5)]):
            between = raw.ReadVariableOp(resource=table, dtype=tf.float32, name="between")
        tf.reduce_sum(between, name="metric")
        return [assign(table, between - sums(ids))]

    graph_def = build(body)
    reason = "it is not known whether between reads before the update"
    refused(graph_def, reason, FuseUpdates(frozenset({"out", "metric"})))
    assert FuseUpdates(frozenset({"out"})).apply(build(_only_between)).modified


def _only_between(handles: list[tf.Tensor], ids: tf.Tensor) -> list[tf.Operation]:
    (table,) = handles
    with tf.control_dependencies([assign(table, read(table) * 0.5)]):
        between = read(table)
    return [assign(table, between - sums(ids))]


def test_the_first_of_two_ops_waits_for_what_its_numbers_waited_for():
    def body(handles, ids):
        table, slot = handles
        rows = rows_of(ids)
        with tf.control_dependencies([tf.debugging.assert_less(ids, tf.constant(8, tf.int64))]):
            squares = tf.square(rows)
        added = raw.ResourceScatterAdd(resource=slot, indices=ids, updates=squares)
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=ids, dtype=tf.float32)
        step = rows * 0.1 * tf.math.rsqrt(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=ids, updates=step)]

    result = PASS.apply(build(body, count=2)).graph_def
    (asserted,) = (node.name for node in result.node if node.op == "If")
    names = [*updates(result)]
    assert len(names) == 2
    assert all(waits_for(result, name, asserted) for name in names)


def test_a_read_that_a_product_waited_for():
    """It reads before the update, though it has no effect."""

    def body(handles, ids):
        (table,) = handles
        old = raw.ReadVariableOp(resource=table, dtype=tf.float32, name="old")
        tf.reduce_sum(old, name="metric")
        rows, half = rows_of(ids), tf.constant(0.5)
        with tf.control_dependencies([old]):
            step = rows * half
        return [raw.ResourceScatterSub(resource=table, indices=ids, updates=step)]

    result = FuseUpdates(frozenset({"out", "metric"})).apply(build(body)).graph_def
    (update,) = updates(result)
    assert waits_for(result, update, "old")


@pytest.mark.parametrize("taken", [True, False])
def test_a_read_in_a_branch_that_a_product_waited_for(taken):
    """Where the branch is not taken, the read is dead, but the update is not."""

    def body(handles, ids):
        (table,) = handles
        predicate = v1.placeholder_with_default(taken, [])
        inside = raw.Switch(data=table, pred=predicate).output_true
        old = raw.ReadVariableOp(resource=inside, dtype=tf.float32)
        none = raw.Switch(data=0.0, pred=predicate).output_false
        metric = raw.Merge(inputs=[tf.reduce_sum(old), none], name="metric").output
        rows, half = rows_of(ids), tf.constant(0.5)
        with tf.control_dependencies([metric]):
            step = rows * half
        return [raw.ResourceScatterSub(resource=table, indices=ids, updates=step)]

    graph_def = build(body)
    result = FuseUpdates(frozenset({"out", "metric"})).apply(graph_def).graph_def
    (update,) = updates(result)
    assert waits_for(result, update, "metric")
    feed = {"ids": np.array([1, 2])}
    for fetch in ("out", "metric"):
        np.testing.assert_array_equal(run(result, feed, fetch), run(graph_def, feed, fetch))


def test_the_first_rows_of_a_longer_matrix_of_known_size():
    def body(handles, ids):
        whole = tf.stack([v1.placeholder_with_default(1.0, [])] * (6 * DIM))
        part = raw.Slice(input=tf.reshape(whole, [6, DIM]), begin=[0, 0], size=[3, DIM])
        few = tf.constant([4, 1, 4], tf.int64)
        return [raw.ResourceScatterSub(resource=handles[0], indices=few, updates=part)]

    check(build(body), "scatter_sub(v0,x0)")


@pytest.mark.parametrize("kind", ["Const", "Identity", "PlaceholderWithDefault", "Mul"])
@pytest.mark.parametrize("fed", [False, True])
def test_numbers_that_are_equal_unless_they_are_fed(kind, fed):
    def body(handles, ids):
        default = v1.placeholder_with_default(0.25, [])
        make = {
            "Const": lambda name: tf.constant(0.5, name=name),
            "Identity": lambda name: tf.identity(default, name=name),
            "PlaceholderWithDefault": lambda name: v1.placeholder_with_default(0.5, [], name),
            "Mul": lambda name: tf.multiply(default, 2.0, name=name),
        }[kind]
        return [
            raw.ResourceScatterSub(resource=h, indices=ids, updates=rows_of(ids) * make(f"rate{n}"))
            for n, h in enumerate(handles)
        ]

    graph_def = build(body, count=2)
    rates = {"rate0", "rate1"}
    rewrite = FuseUpdates(PASS.preserve | rates) if fed else PASS
    result = rewrite.apply(graph_def).graph_def
    assert len([*updates(result)]) == 2
    read_rates = {node.input[3] for node in result.node if node.op == UPDATE}
    assert len(read_rates) == (2 if fed else 1)
    feed = {"ids": np.array([1, 2]), **({"rate0": 1.0, "rate1": 2.0} if fed else {})}
    np.testing.assert_array_equal(run(result, feed), run(graph_def, feed))


def test_an_update_waits_for_another_one():
    def body(handles, ids):
        made: list[tf.Operation] = []
        for step, handle in enumerate(handles):
            with tf.control_dependencies(made):
                made = subtract([handle], ids + step)
        return made

    graph_def = build(body, count=3)
    result = PASS.apply(graph_def)
    assert all(update.fused for update in result.report.updates)
    # The second one, whose ids are out of range, keeps the third one from being done.
    for either in (graph_def, result.graph_def):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            tf.import_graph_def(either, name="")
            handles = [graph.get_tensor_by_name(f"t{n}:0") for n in range(3)]
            session.run([assign(one, tf.zeros([ROWS, DIM])) for one in handles])
            with pytest.raises(tf.errors.InvalidArgumentError, match=r" = 9 is not in \[0, 9"):
                session.run("out:0", {"ids:0": [ROWS - 1]})
            np.testing.assert_array_equal(session.run(read(handles[2])), 0)


def test_numbers_read_before_and_after_an_assignment():
    def body(handles, ids):
        rate = raw.VarHandleOp(dtype=tf.float32, shape=[], shared_name="rate", name="rate")

        def value():
            return raw.ReadVariableOp(resource=rate, dtype=tf.float32)

        with tf.control_dependencies([assign(rate, tf.constant(1.0))]):
            first, same = value(), value()
        with tf.control_dependencies([first, same]):
            changed = assign(rate, tf.constant(3.0))
        with tf.control_dependencies([changed]):
            last = value()
        return [
            raw.ResourceScatterSub(resource=handle, indices=ids, updates=rows_of(ids) * number)
            for handle, number in zip(handles, (first, same, last), strict=True)
        ]

    graph_def = build(body, count=3)
    result = PASS.apply(graph_def).graph_def
    rates = [node.input[3] for node in result.node if node.op == UPDATE]
    assert [rates.index(name) for name in rates] == [0, 0, 2]
    feed = {"ids": np.array([1, 2])}
    np.testing.assert_array_equal(run(result, feed), run(graph_def, feed))


def test_handles_outside_a_branch_in_which_one_change_is_made():
    """Else the other one would be lost where it is not taken."""

    def body(handles, ids):
        table, slot = handles
        predicate = v1.placeholder_with_default(False, [])
        rows = rows_of(ids)
        added = raw.ResourceScatterAdd(resource=slot, indices=ids, updates=rows)
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=ids, dtype=tf.float32)
        _, scale = raw.Switch(data=0.5, pred=predicate)
        written = raw.ResourceScatterSub(resource=table, indices=ids, updates=taken * scale)
        with tf.control_dependencies([written]):
            dead = tf.identity(scale)
        return [added, raw.Merge(inputs=[dead, tf.identity(0.0)]).output]

    refused(build(body, count=2), "the update is partly inside a branch")
