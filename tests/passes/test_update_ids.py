"""Ids and values of updates before stock ops prepare them: sums, negative ids, shapes, casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.report.report import FusionResult
from tests.passes.update_checks import PASS, SUBTRACT, UPDATE, check, count
from tests.passes.update_graphs import DIM, ROWS, build, rows_of, run

v1 = tf.compat.v1
raw = tf.raw_ops


# --- ids and values that stock ops prepare ------------------------------------------------------


def update_of(result: FusionResult) -> Any:
    (node,) = (node for node in result.graph_def.node if node.op == UPDATE)
    return node


def flags(result: FusionResult) -> tuple[bool, bool]:
    attrs = update_of(result).attr
    return attrs["deduplicate"].b, attrs["wrap_negative"].b


def ops_of(result: FusionResult) -> set[str]:
    return {node.op for node in result.graph_def.node}


def summed(values: tf.Tensor, unique: Any, size: str) -> tf.Tensor:
    """As tf_keras and compat.v1 sum the values of repeated ids."""
    count = tf.size(unique.y) if size == "size" else tf.shape(unique.y, tf.int64)[0]
    count = tf.constant(ROWS) if size == "constant" else count
    return tf.math.unsorted_segment_sum(values, unique.idx, count)


@pytest.mark.parametrize("size", ["size", "shape"])
def test_values_of_repeated_ids_are_summed_by_the_op(size):
    def body(handles, ids):
        table, slot = handles
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, size)
        added = raw.ResourceScatterAdd(resource=slot, indices=unique.y, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=unique.y, dtype=tf.float32)
        step = rows * tf.abs(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=unique.y, updates=step)]

    program = (
        "t0=square(x0);scatter_add(v1,t0);t2=take(v1);t3=add(t2,s0);t4=abs(t3);t5=mul(x0,t4);"
        "scatter_sub(v0,t5)"
    )
    result = check(build(body, count=2), program)
    assert flags(result) == (True, False)
    assert ops_of(result).isdisjoint({"Unique", "UnsortedSegmentSum", "Shape", "Size"})
    assert "ids" in update_of(result).input


def test_sums_of_columns_of_a_concat():
    def body(handles, ids):
        whole = tf.concat([rows_of(ids), rows_of(ids) * 2.0], 1)
        part, unique = raw.Slice(input=whole, begin=[0, DIM], size=[-1, DIM]), tf.unique(ids)
        rows = summed(part, unique, "shape")
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    result = check(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (True, False)
    assert [*update_of(result).attr["offsets"].list.i] == [DIM]
    assert "Slice" not in ops_of(result)


def test_sums_that_something_else_needs():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        scale = tf.reduce_sum(rows)
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows * scale)]

    result = check(build(body), SUBTRACT)
    assert flags(result) == (False, False)


def test_distinct_ids_that_something_else_needs():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        many = tf.cast(tf.reduce_sum(unique.y), tf.float32)
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows * many)]

    result = check(build(body), SUBTRACT)
    assert flags(result) == (True, False)
    assert "Unique" in ops_of(result)
    assert "UnsortedSegmentSum" not in ops_of(result)


@pytest.mark.parametrize("how", ["other values", "other ids", "other size"])
def test_entries_that_are_not_sums_by_these_ids(how):
    def body(handles, ids):
        unique, other = tf.unique(ids), tf.unique(ids[::-1])
        by = other if how == "other ids" else unique
        size = "constant" if how == "other size" else "size"
        rows = summed(rows_of(ids), by, size)[: tf.size(unique.y)]
        if how == "other values":
            rows = rows_of(unique.y)
        rows = tf.ensure_shape(rows, [None, DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    assert flags(check(build(body), "scatter_sub(v0,x0)")) == (False, False)


def test_sums_that_may_be_fed():
    def body(handles, ids):
        unique = tf.unique(ids)
        rows = tf.identity(summed(rows_of(ids), unique, "shape"), name="sums")
        return [raw.ResourceScatterSub(resource=handles[0], indices=unique.y, updates=rows)]

    rewrite = FuseUpdates(PASS.preserve | {"sums"})
    result = check(build(body), "scatter_sub(v0,x0)", rewrite=rewrite)
    assert flags(result) == (False, False)


def test_sums_for_two_halves_stay():
    def body(handles, ids):
        table, slot = handles
        unique = tf.unique(ids)
        rows = summed(rows_of(ids), unique, "shape")
        added = raw.ResourceScatterAdd(resource=slot, indices=unique.y, updates=tf.square(rows))
        with tf.control_dependencies([added]):
            taken = raw.ResourceGather(resource=slot, indices=unique.y, dtype=tf.float32)
        step = rows * tf.math.rsqrt(taken + 1e-7)
        return [raw.ResourceScatterSub(resource=table, indices=unique.y, updates=step)]

    result = PASS.apply(build(body, count=2))
    assert count(result.graph_def) == {UPDATE: 2}
    assert "Unique" in ops_of(result)
    updates = [node for node in result.graph_def.node if node.op == UPDATE]
    assert not any(node.attr["deduplicate"].b for node in updates)


def check_negative(graph_def: graph_pb2.GraphDef, *programs: str) -> FusionResult:
    result = check(graph_def, *programs)
    feed = {"ids": np.array([-1, 8, -9, 3, 0, -1])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))
    return result


def flat(ids: tf.Tensor, how: str) -> tf.Tensor:
    sizes = {
        "size": lambda: tf.expand_dims(tf.size(ids), 0),
        "packed": lambda: tf.stack([tf.size(ids)]),
        "unknown": lambda: tf.constant([-1]),
    }
    return raw.Reshape(tensor=ids, shape=sizes[how]())


@pytest.mark.parametrize("how", ["size", "packed", "unknown"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_negative_ids_count_from_the_end(how, first, deduplicate):
    """As Keras 3's Embedding lets them."""

    def body(handles, ids):
        ids = tf.reshape(tf.cast(ids, tf.int32), [-1, 1], name="matrix")
        moved = ROWS + ids if first else ids + ROWS
        vector = flat(raw.SelectV2(condition=ids < 0, t=moved, e=ids), how)
        rows = rows_of(vector)
        if deduplicate:
            unique = tf.unique(vector)
            vector, rows = unique.y, summed(rows, unique, "shape")
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    result = check_negative(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (deduplicate, True)
    assert "matrix" in update_of(result).input


def test_ids_of_a_matrix_that_are_a_vector_again():
    def body(handles, ids):
        vector = flat(tf.reshape(ids, [-1, 1], name="matrix"), "size")
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows_of(ids))]

    result = check(build(body), "scatter_sub(v0,x0)")
    assert flags(result) == (False, False)
    assert "matrix" in update_of(result).input


@pytest.mark.parametrize("how", ["rows", "number", "comparison", "branches", "ids", "sum"])
def test_other_choices_of_ids(how):
    def body(handles, ids):
        others = tf.reverse(ids, [0])
        test = {"number": ids < -1, "comparison": ids <= 0}.get(how, ids < 0)
        test = others < 0 if how == "ids" else test
        moved = ids + (ROWS - 1 if how == "rows" else ROWS)
        moved = moved if how != "sum" else others + ROWS
        then, otherwise = (ids, moved) if how == "branches" else (moved, ids)
        wrapped = raw.SelectV2(condition=test, t=then, e=otherwise, name="chosen")
        return [raw.ResourceScatterSub(resource=handles[0], indices=wrapped, updates=rows_of(ids))]

    graph_def = build(body)
    result = PASS.apply(graph_def)
    assert flags(result) == (False, False)
    assert "chosen" in update_of(result).input


@pytest.mark.parametrize("name", ["matrix", "less", "moved", "chosen", "flat"])
def test_ids_that_may_be_fed(name):
    def body(handles, ids):
        ids = tf.reshape(ids, [-1, 1], name="matrix")
        test, moved = tf.less(ids, 0, name="less"), tf.add(ids, ROWS, name="moved")
        chosen = raw.SelectV2(condition=test, t=moved, e=ids, name="chosen")
        vector = tf.reshape(chosen, [-1], name="flat")
        rows = tf.ones([tf.size(vector), DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    graph_def = build(body)
    result = FuseUpdates(PASS.preserve | {name}).apply(graph_def)
    assert flags(result) == (False, name == "matrix")
    fed = {"less": np.array([[True]]), "flat": np.array([5])}.get(name, np.array([[5]]))
    feed = {"ids": np.array([-3]), name: fed}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))


def test_a_reshape_to_another_number_of_ids():
    """Stock fails; so does what stands for it."""

    def body(handles, ids):
        matrix = raw.Reshape(tensor=ids, shape=[-1, 1])
        vector = raw.Reshape(tensor=matrix, shape=[tf.size(ids) + 1], name="vector")
        rows = tf.ones([tf.size(vector), DIM])
        return [raw.ResourceScatterSub(resource=handles[0], indices=vector, updates=rows)]

    result = PASS.apply(build(body))
    assert "vector" in update_of(result).input


@pytest.mark.parametrize("widens", [True, False])
def test_ids_that_are_cast(widens):
    """A cast to int32 loses digits, which the op would not."""

    def body(handles, ids):
        narrow = tf.cast(ids, tf.int32)
        cast = tf.cast(narrow, tf.int64) if widens else narrow
        updates = rows_of(ids)
        return [raw.ResourceScatterSub(resource=handles[0], indices=cast, updates=updates)]

    result = check(build(body), "scatter_sub(v0,x0)")
    (update,) = (node for node in result.graph_def.node if node.op == UPDATE)
    (casts,) = (
        [
            node.name
            for node in result.graph_def.node
            if node.name in update.input and node.op == "Cast"
        ],
    )
    assert len(casts) == 1
    feed = {"ids": np.array([2**32 + 3])}
    np.testing.assert_array_equal(run(result.graph_def, feed), run(build(body), feed))
