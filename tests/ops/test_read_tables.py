from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.attributes import FLOATS

SHAPE = (50, 8)


def variable(dtype="float32", shape=SHAPE):
    values = np.random.default_rng(0).normal(size=shape)
    return tf.Variable(tf.cast(tf.constant(values), dtype))


def read(*variables):
    dtype = variables[0].dtype
    return ops.read_embedding_tables(handles=[v.handle for v in variables], T=dtype)


def change_a_row(table):
    rows = tf.IndexedSlices(tf.ones([1, SHAPE[1]], table.dtype), tf.constant([3]))
    table.scatter_sub(rows)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_gives_the_values_of_variables(dtype, wrap):
    tables = [variable(dtype), variable(dtype, [0, 3]), variable(dtype, [1, 1])]
    for value, table in zip(wrap(lambda: read(*tables))(), tables, strict=True):
        assert value.dtype == table.dtype
        np.testing.assert_array_equal(value, table.numpy())


def test_one_variable_may_be_read_twice_at_once():
    table = variable()
    first, second = read(table, table)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_changed_where_they_are(dtype):
    table = variable(dtype)
    (value,) = read(table)
    change_a_row(table)
    np.testing.assert_array_equal(value, table.numpy())


def test_a_stock_read_has_the_table_copied():
    """What this op is for: rows that change while a stock read is held are changed in a copy."""
    table = variable()
    value = tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=table.dtype)
    change_a_row(table)
    assert not np.array_equal(value, table.numpy())


CHANGES = {
    "assign": lambda table: table.assign(tf.zeros(SHAPE)),
    "assign_add": lambda table: table.assign_add(tf.ones(SHAPE)),
    "optimizer": lambda table: tf.raw_ops.ResourceApplyGradientDescent(
        var=table.handle, alpha=0.5, delta=tf.ones(SHAPE)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_whole_variable_leaves_what_was_read(change):
    table = variable()
    before = table.numpy()
    (value,) = read(table)
    CHANGES[change](table)
    np.testing.assert_array_equal(value, before)
    np.testing.assert_array_equal(read(table)[0], table.numpy())
    assert not np.array_equal(table.numpy(), before)


def test_a_value_outlives_its_variable():
    table = variable()
    before = table.numpy()
    (value,) = read(table)
    del table
    gc.collect()
    np.testing.assert_array_equal(value, before)


def test_a_variable_is_let_go_of():
    def resident_mib():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    before = resident_mib()
    for _ in range(8):
        table = tf.Variable(tf.zeros([1 << 20, 16]))  # 64 MiB
        read(table)
        read(table)
        del table
        gc.collect()
    assert resident_mib() - before < 3 * 64


def failure(run):
    with pytest.raises(tf.errors.OpError) as caught:
        run()
    return type(caught.value)


def test_what_was_never_assigned_raises_as_a_stock_read():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=SHAPE, shared_name="nothing")
        (ours,) = ops.read_embedding_tables(handles=[handle], T=tf.float32)
        stock = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        assert failure(lambda: session.run(ours)) == failure(lambda: session.run(stock))


def test_of_many_the_one_that_is_missing_is_named():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        there = tf.compat.v1.get_variable("there", SHAPE, use_resource=True)
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=SHAPE, shared_name="nothing")
        values = ops.read_embedding_tables(handles=[there.handle, handle], T=tf.float32)
        session.run(there.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match='name="nothing"'):
            session.run(values)


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("dtype", ["float64", "int32", "bfloat16", "string"])
def test_another_dtype_raises_as_a_stock_read(dtype, is_read):
    """Where its value is held elsewhere, TensorFlow's sparse access would end the process."""
    table = tf.Variable(tf.constant([["a"]] if dtype == "string" else 1, dtype))
    held = table.value() if is_read else None
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not of dtype float32"):
            ops.read_embedding_tables(handles=[table.handle], T=tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="wrong dtype"):
        tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
    del held


def test_a_handle_of_something_else_raises():
    words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    with pytest.raises(tf.errors.FailedPreconditionError):
        ops.read_embedding_tables(handles=[words.resource_handle], T=tf.float32)


def test_a_gradient_goes_through_as_it_is():
    table, ids = variable(), tf.constant([3, 3, 7])
    with tf.GradientTape() as tape:
        tape.watch(table.handle)
        (value,) = read(table)
        loss = tf.reduce_sum(tf.gather(value, ids) ** 2)
    slices = tape.gradient(loss, table.handle)
    assert isinstance(slices, tf.IndexedSlices)
    expected = np.zeros(SHAPE, np.float32)
    np.add.at(expected, [3, 3, 7], 2 * table.numpy()[[3, 3, 7]])
    np.testing.assert_allclose(tf.convert_to_tensor(slices), expected, rtol=1e-6)


def test_equal_reads_around_a_change_are_not_one():
    table = variable()

    @tf.function
    def around():
        (before,) = read(table)
        before = tf.reduce_sum(before)
        with tf.control_dependencies([before]):
            table.assign(tf.zeros(SHAPE))
        (after,) = read(table)
        return before, tf.reduce_sum(after)

    expected = table.numpy().sum()
    before, after = around()
    np.testing.assert_allclose(before, expected, rtol=1e-4)
    assert after == 0


@pytest.mark.parametrize("given", [{"handles": []}, {"handles": [tf.ones(SHAPE)]}])
def test_bad_handles(given):
    with pytest.raises((ValueError, TypeError, tf.errors.InvalidArgumentError)):
        ops.read_embedding_tables(**given, T=tf.float32)
