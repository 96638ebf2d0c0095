"""Updates of tables in v1 branches and beside v1 loops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.passes.update_checks import PASS, SUBTRACT, check, refused
from tests.passes.update_graphs import Body, build, rows_of, run, subtract

v1 = tf.compat.v1
raw = tf.raw_ops


def build_v1(body: Body, count: int = 1) -> graph_pb2.GraphDef:
    """A graph whose branches and loops are made of v1 control-flow ops."""
    v1.disable_control_flow_v2()
    try:
        return build(body, count=count)
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("taken", [False, True])
def test_an_update_in_a_branch_that_is_not_taken(taken):
    """It must not take with it those that are in none, or in the other branch."""

    def body(handles, ids):
        predicate = v1.placeholder_with_default(taken, [])

        def update(handle):
            with tf.control_dependencies(subtract([handle], tf.identity(ids))):
                return tf.constant(1)

        done = tf.cond(predicate, lambda: update(handles[0]), lambda: update(handles[1]))
        return [done, *subtract(handles[2:], ids)]

    graph_def = build_v1(body, count=3)
    assert any(node.op == "Switch" for node in graph_def.node)
    result = check(graph_def, *[SUBTRACT] * 3)
    feed = {"ids": np.array([1, 2, 1])}
    start, after = (run(one, feed) for one in (build(lambda *_: [], count=3), result.graph_def))
    moved = [bool(np.any(old != new)) for old, new in zip(start, after, strict=True)]
    assert moved == [taken, not taken, True]


def test_an_update_partly_inside_a_branch():
    def body(handles, ids):
        table, slot = handles
        updated = raw.ResourceScatterAdd(resource=slot, indices=ids, updates=rows_of(ids))

        def update():
            taken = raw.ResourceGather(resource=slot, indices=ids, dtype=tf.float32)
            written = raw.ResourceScatterSub(resource=table, indices=ids, updates=taken)
            with tf.control_dependencies([written]):
                return tf.constant(1)

        with tf.control_dependencies([updated]):
            predicate = v1.placeholder_with_default(True, [])
            return [tf.cond(predicate, update, lambda: tf.constant(2))]

    refused_alike = PASS.apply(build_v1(body, count=2)).report.updates
    assert {update.reason for update in refused_alike if not update.fused} == {
        "the update is partly inside a branch"
    }


def test_updates_in_a_v1_loop():
    def body(handles, ids):
        def once(step):
            with tf.control_dependencies(subtract(handles, ids)):
                return step + 1

        return [tf.while_loop(lambda step: step < 2, once, [0])]

    graph_def = build_v1(body)
    refused(graph_def, "an update inside of a loop stays as it is")


def test_an_update_beside_a_v1_loop():
    def body(handles, ids):
        loop = tf.while_loop(lambda step, _: step < 2, lambda s, t: (s + 1, t + 1.0), [0, 0.0])
        updates = rows_of(ids) * tf.reshape(loop[1], [])
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=updates)]

    graph_def = build_v1(body)
    assert any(node.op == "Enter" for node in graph_def.node)
    check(graph_def, SUBTRACT)


def test_a_v1_loop_that_reads_the_table_in_no_order_with_its_update():
    def body(handles, ids):
        def once(step, total):
            rows = raw.ResourceGather(resource=handles[0], indices=ids, dtype=tf.float32)
            return step + 1, total + tf.reduce_sum(rows)

        loop = tf.while_loop(lambda step, _: step < 2, once, [0, 0.0])
        return [*subtract(handles, ids), *loop]

    graph_def = build_v1(body)
    (update,) = PASS.apply(graph_def).report.updates
    assert update.reason is not None
    assert update.reason.startswith("it is not known whether while/ResourceGather reads before")
