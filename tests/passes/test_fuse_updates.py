"""Updates of tables as optimizers leave them: which the pass replaces, and by which program."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.fuse_updates import FuseUpdates
from tests.passes.update_checks import PASS, SUBTRACT, UPDATE, check, count, refused
from tests.passes.update_graphs import DIM, ROWS, assign, build, read, rows_of, run, subtract

v1 = tf.compat.v1
raw = tf.raw_ops


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("factor", ["first", "second", "none"])
def test_scattered_rows(dtype, op, factor):
    scatter = raw.ResourceScatterAdd if op == "add" else raw.ResourceScatterSub

    def body(handles, ids):
        updates, number = rows_of(ids, dtype), tf.cast(0.3, dtype)
        if factor != "none":
            updates = number * updates if factor == "first" else updates * number
        return [scatter(resource=handles[0], indices=ids, updates=updates)]

    product = {"first": "t0=mul(s0,x0);", "second": "t0=mul(x0,s0);", "none": ""}[factor]
    result = check(build(body, dtype), f"{product}scatter_{op}(v0,{'t0' if product else 'x0'})")
    assert not any(node.op == "Mul" for node in result.graph_def.node)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_types(dtype):
    graph_def = build(lambda handles, ids: subtract(handles, ids, dtype), dtype)
    refused(graph_def, f"updates of tables of {dtype.name} stay as they are")


def test_a_sweep_of_all_rows():
    def body(handles, ids):
        table, slot = handles
        sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
        moved = read(slot) * 0.9 - sums
        with tf.control_dependencies([assign(slot, moved)]):
            return [raw.AssignAddVariableOp(resource=table, value=read(slot))]

    program = "t0=mul(v1,s0);t1=sum(x0);t2=sub(t0,t1);assign(v1,t2);t4=add(v0,v1);assign(v0,t4)"
    check(build(body, count=2), program)


def around_a_write(slot: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What a variable was, and the sums of rows that are written to it."""
    old = read(slot)
    sums = tf.math.unsorted_segment_sum(rows_of(ids), ids, ROWS)
    with tf.control_dependencies([old]):
        written = assign(slot, sums)
    with tf.control_dependencies([written]):
        return old, read(slot)


def test_what_was_read_before_a_write_is_computed_before_it():
    def body(handles, ids):
        table, slot = handles
        old, new = around_a_write(slot, ids)
        return [raw.AssignSubVariableOp(resource=table, value=tf.sqrt(old) * 2.0 + new)]

    result = PASS.apply(build(body, count=2))
    (update,) = result.report.updates
    assert update.program is not None
    lines = update.program.split(";")
    assert lines.index("t0=sqrt(v1)") < next(
        k for k, line in enumerate(lines) if line.startswith("assign(v1")
    )
    check(build(body, count=2), update.program)


def test_what_was_and_what_is_read_at_once():
    def body(handles, ids):
        table, slot = handles
        old, new = around_a_write(slot, ids)
        return [raw.AssignSubVariableOp(resource=table, value=old * new)]

    refused(build(body, count=2), "what a variable was and what it becomes are read at once")


def test_rows_of_a_stock_op_in_between():
    """Rsqrt stays: what comes before and behind it are two ops."""

    def body(handles, ids):
        table, slot = handles
        rows, found = rows_of(ids), ids
        added = raw.ResourceScatterAdd(resource=slot, indices=found, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=found, dtype=tf.float32)
        step = rows * 0.1 * tf.math.rsqrt(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=found, updates=step)]

    first = "t0=square(x0);scatter_add(v0,t0);t2=take(v0);t3=add(t2,s0);result(t3)"
    second = "t0=mul(x0,s0);t1=mul(t0,x1);scatter_sub(v0,t1)"
    result = check(build(body, count=2), f"{first} | {second}", ops=2)
    (root,) = (node for node in result.graph_def.node if node.op == "Rsqrt")
    assert {node.op for node in result.graph_def.node if node.name in root.input} == {UPDATE}


def test_many_tables_share_their_numbers():
    def body(handles, ids):
        rate = v1.placeholder_with_default(0.5, [])
        rows = rows_of(ids)
        return [
            raw.ResourceScatterSub(resource=one, indices=ids, updates=rows * (rate * 2.0 + 1.0))
            for one in handles
        ]

    result = check(build(body, count=3), *[SUBTRACT] * 3)
    assert "  3 of 3 updates of tables fused" in str(result.report)
    assert Counter(node.op for node in result.graph_def.node)["Mul"] == 1


def sliced(size):
    """An update by the gradient of `rows[:, 0]`, of rows [n, size, DIM]."""

    def body(handles, ids):
        shape = tf.stack([tf.size(ids), size, DIM])
        bounds = {"begin": [0, 0], "end": [0, 1], "strides": [1, 1]}
        masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 1)
        part = raw.Slice(input=whole, begin=[0, DIM], size=[-1, DIM])
        gradient = raw.StridedSliceGrad(shape=shape, **bounds, **masks, dy=part)
        updates = tf.reshape(gradient, [-1, DIM])
        found = tf.repeat(ids, size) if size > 1 else ids
        return [raw.ResourceScatterSub(resource=handles[0], indices=found, updates=updates)]

    return build(body)


def test_gradients_of_slices_that_leave_nothing_out_are_read_where_they_are():
    for size in (1, 2):
        result = check(sliced(size), "scatter_sub(v0,x0)")
        left = [node.op for node in result.graph_def.node]
        assert left.count("StridedSliceGrad") == size - 1


def test_columns_of_a_concat_are_read_where_they_are():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 1)
        parts = [raw.Slice(input=whole, begin=[0, DIM * k], size=[-1, DIM]) for k in range(2)]
        scatter = raw.ResourceScatterSub
        return [
            scatter(resource=handle, indices=ids, updates=part)
            for handle, part in zip(handles, parts, strict=True)
        ]

    result = check(build(body, count=2), *["scatter_sub(v0,x0)"] * 2)
    updates = [node for node in result.graph_def.node if node.op == UPDATE]
    assert [[*node.attr["offsets"].list.i] for node in updates] == [[0], [DIM]]
    assert not any(node.op == "Slice" for node in result.graph_def.node)


def test_the_first_rows_of_a_longer_matrix():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 0)
        size = tf.stack([tf.size(ids), DIM])
        part = raw.Slice(input=whole, begin=[0, 0], size=size)
        part = tf.ensure_shape(part, [None, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=part)]

    check(build(body), "scatter_sub(v0,x0)")


def test_a_product_that_waits():
    """What it waits for may be an assertion."""

    def body(handles, ids):
        holds = tf.reduce_all(ids < 8)
        values, half = rows_of(ids), tf.constant(0.5)
        with tf.control_dependencies([tf.debugging.Assert(holds, [ids])]):
            updates = values * half
        return [raw.ResourceScatterSub(resource=handles[0], indices=ids, updates=updates)]

    graph_def = build(body)
    result = PASS.apply(graph_def)
    assert count(result.graph_def) == {UPDATE: 1}
    for either in (graph_def, result.graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            run(either, {"ids": np.array([8])})


def test_one_row_that_is_broadcast_to_all():
    def body(handles, ids):
        taken = tf.gather(read(handles[1]), ids)
        one = v1.placeholder_with_default(np.ones([1, DIM], np.float32), [None, DIM])
        updates = taken * one
        scatter = raw.ResourceScatterSub
        return [scatter(resource=h, indices=ids, updates=updates) for h in handles[:1]] + [
            raw.AssignAddVariableOp(resource=handles[1], value=tf.ones([ROWS, DIM]))
        ]

    graph_def = build(body, count=2)
    result = PASS.apply(graph_def)
    assert not any(
        "x1" in (update.program or "") or "take" in (update.program or "")
        for update in result.report.updates
    )
    feed = {"ids": np.array([1, 1, 4])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


def test_a_product_that_may_be_fed():
    graph_def = build(subtract)
    (name,) = (node.name for node in graph_def.node if node.op == "Mul")
    rewrite = FuseUpdates(PASS.preserve | {name})
    result = check(graph_def, "scatter_sub(v0,x0)", rewrite=rewrite)
    (update,) = (node for node in result.graph_def.node if node.op == UPDATE)
    assert name in update.input
    feed = {"ids": np.array([3]), name: np.full([1, DIM], 7, np.float32)}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


@pytest.mark.parametrize("text", [b"", b"a=add(v0,v1);assign(v0", b"assign(v0,\xff)"])
def test_reports_of_nodes_whose_program_is_any_text(text):
    """What is executed is the attr `code`."""
    graph_def = check(build(subtract), SUBTRACT).graph_def
    (node,) = (node for node in graph_def.node if node.op == UPDATE)
    node.attr["program"].s = text
    (update,) = PASS.apply(graph_def).report.updates
    assert update.fused
    assert update.fused_before
