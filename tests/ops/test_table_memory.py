"""ZerosOnDemand, EmbeddingKeyIndex and FillEmbeddingSlot in TensorFlow."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.tables.cpu_kernels.layout import MAX_ROWS, MAX_SLOTS, KeyIndex, index_bytes
from fusion.tables.initial_rows import memory_bytes
from tests.ops.keyed_tables import KeyedTable, empty_index, zeros

INVALID, UNMET = tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError


def virtual_mib() -> int:
    return _mib(0)


def resident_mib() -> int:
    return _mib(1)


def _mib(field: int) -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[field])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 7), (1000, 300), (500_000, 3)])
def test_zeros(shape, dtype):
    rows, columns = shape
    values = zeros(rows, columns, dtype)
    assert (values.shape, values.dtype) == (shape, dtype)
    assert not values.numpy().any()


@pytest.mark.parametrize("mib", [0.01, 0.5, 3, 9])
def test_memory_that_was_used_before_is_zeros_again(mib):
    """TensorFlow's allocator gives again what it has, without making it zeros."""
    count = int(mib * 2**18)
    for _ in range(4):
        used = tf.Variable(tf.fill([count, 1], 7.0) + 1.0)
        del used
        gc.collect()
        assert not zeros(count, 1).numpy().any()
        assert KeyedTable(count // 64, 1).train([3, 4])[1].tolist() == [0, 1]


@pytest.mark.parametrize("bad", [[-1, 4], [4, -1], [-5, -5]])
def test_negative_shapes(bad):
    with pytest.raises(
        INVALID, match=rf"shape must not be negative, but is \[{bad[0]}, {bad[1]}\]"
    ):
        ops.zeros_on_demand(shape=tf.constant(bad, tf.int64), T="float32")


@pytest.mark.parametrize("bad", [[2**62, 8], [2**31, 2**33], [2**40, 2**20]])
def test_shapes_beyond_memory(bad):
    with pytest.raises(tf.errors.OpError):
        ops.zeros_on_demand(shape=tf.constant(bad, tf.int64), T="float32")


@pytest.mark.parametrize("bad", [[], [4], [4, 4, 4], [[4, 4]]])
def test_shapes_of_another_rank(bad):
    with pytest.raises((ValueError, INVALID), match="shape"):
        ops.zeros_on_demand(shape=tf.constant(bad, tf.int64), T="float32")


def test_a_large_table_takes_no_memory_until_rows_are_used():
    """100 million rows of 4 floats are 1.6 GB, and their index takes as much again."""
    capacity = 100_000_000
    before = resident_mib()
    table = tf.Variable(zeros(capacity, 4))
    index = tf.Variable(empty_index(capacity))
    made = resident_mib()
    assert made - before < 64
    small = KeyedTable(2, 4)
    keys = tf.range(10_000, dtype=tf.int64)
    changes = {"table": table.handle, "index": index.handle}
    _, rows = small.train(keys, **changes)
    np.testing.assert_array_equal(rows, np.arange(10_000))
    values, _ = small.gather(keys, **changes)
    assert values.any(1).all()
    assert resident_mib() - made < 128


def test_tables_larger_than_memory_are_trained_in_place():
    """Together they are beyond what an allocator of TensorFlow with a limit would give."""
    rows = 2 * memory_bytes() // (4 * 16)
    slots = [tf.Variable(zeros(rows, 16)) for _ in range(3)]
    before = resident_mib()
    last = tf.constant([rows - 1, 0])
    for step in range(3):
        for variable in slots:
            variable.scatter_add(tf.IndexedSlices(tf.ones([2, 16]), last))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=slots[0].handle,
            accum=slots[1].handle,
            lr=1.0,
            epsilon=0.0,
            grad=tf.ones([2, 16]),
            indices=last,
        )
        assert not tf.gather(slots[2], [1, rows // 2]).numpy().any()
        assert tf.gather(slots[2], last).numpy().tolist() == [[step + 1] * 16] * 2
    assert tf.gather(slots[1], last).numpy().tolist() == [[6] * 16] * 2
    assert resident_mib() - before < 128


def test_memory_is_given_back():
    before = virtual_mib()
    table = tf.Variable(zeros(1 << 26, 16))
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 16]), [1 << 25]))
    assert virtual_mib() - before >= 4096
    del table
    gc.collect()
    assert virtual_mib() - before < 1024


@pytest.mark.parametrize("capacity", [1, 1000, 100_000])
def test_an_index_is_empty_and_as_large_as_is_said(capacity):
    words = empty_index(capacity, admission=3, seed=-5, waits=True).numpy()
    assert words.nbytes == index_bytes(capacity)
    head = words[: KeyIndex.SIZE].view(np.int64)
    assert head[KeyIndex.capacity] == capacity
    assert head[KeyIndex.admission] == 3
    assert head[KeyIndex.seed] == -5
    assert head[KeyIndex.waits] == 1
    assert head[KeyIndex.key_count] == head[KeyIndex.row_count] == 0
    assert not words[KeyIndex.SIZE :].view(np.int64).any()


@pytest.mark.parametrize("capacity", [0, -1, -(2**63), MAX_ROWS + 1, 2**63 - 1])
def test_no_capacity(capacity):
    with pytest.raises(INVALID, match=f"capacity must be from 1 to {MAX_ROWS}, but is {capacity}"):
        empty_index(capacity)


@pytest.mark.parametrize("bad", [[], [1, 2], [[1]], 1])
def test_capacities_of_another_shape(bad):
    with pytest.raises((ValueError, INVALID), match="capacity"):
        ops.embedding_key_index(
            capacity=tf.constant(bad, tf.int64), admission=1, seed=0, waits=False
        )


@pytest.mark.parametrize("admission", [0, -1])
def test_no_admission(admission):
    with pytest.raises((ValueError, INVALID), match="admission"):
        empty_index(4, admission=admission)


# --- FillEmbeddingSlot ----------------------------------------------------------------------


def fill(table, variable, values, **changes):
    given = {
        "slot": variable.handle,
        "index": table.index.handle,
        "values": tf.constant(values, table.dtype),
        "dim": table.dim,
        "number": 0,
    }
    return ops.fill_embedding_slot(**(given | changes)).numpy().tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("values", "row"), [([0.5], [0.5] * 3), (2.0, [2] * 3), ([1, 2, 3], [1, 2, 3])]
)
def test_rows_that_keys_have_got_are_filled_once(dtype, values, row):
    table = KeyedTable(5, 3, dtype)
    slot = tf.Variable(zeros(5, 3, dtype))
    assert fill(table, slot, values) == [0]
    table.train([8, 9])
    assert fill(table, slot, values) == [2]
    np.testing.assert_array_equal(slot.numpy(), [row] * 2 + [[0] * 3] * 3)
    slot.scatter_update(tf.IndexedSlices(tf.fill([1, 3], tf.constant(7, dtype)), [0]))
    table.train([7])
    assert fill(table, slot, values) == [1]
    np.testing.assert_array_equal(slot.numpy(), [[7] * 3] + [row] * 2 + [[0] * 3] * 2)


def test_every_slot_is_filled_for_itself():
    table = KeyedTable(4, 2)
    table.train([1, 2, 3])
    slots = [tf.Variable(zeros(4, 2)) for _ in range(MAX_SLOTS)]
    for number, slot in enumerate(slots):
        assert fill(table, slot, [float(number + 1)], number=number) == [3]
    for number, slot in enumerate(slots):
        assert fill(table, slot, [0.0], number=number) == [0]
        np.testing.assert_array_equal(slot.numpy(), [[number + 1] * 2] * 3 + [[0] * 2])


@pytest.mark.parametrize("number", [-1, MAX_SLOTS])
def test_numbers_of_no_slot(number):
    table = KeyedTable(4, 2)
    with pytest.raises((ValueError, INVALID), match="number"):
        fill(table, tf.Variable(zeros(4, 2)), [1.0], number=number)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_values_of_another_dimension(count):
    table = KeyedTable(4, 3)
    with pytest.raises(INVALID, match=f"values has {count} elements, not 1 or 3"):
        fill(table, tf.Variable(zeros(4, 3)), [1.0] * count)


def test_a_slot_of_other_rows():
    table = KeyedTable(4, 3)
    with pytest.raises(INVALID, match="60 bytes, but the index is of 4 rows of 12 bytes"):
        fill(table, tf.Variable(zeros(5, 3)), [1.0])


def test_a_slot_of_no_index():
    table = KeyedTable(4, 3)
    index = tf.Variable(tf.zeros([7], tf.float64))
    with pytest.raises(UNMET, match="no EmbeddingKeyIndex, but 7 other words"):
        fill(table, tf.Variable(zeros(4, 3)), [1.0], index=index.handle)


@pytest.mark.parametrize("argument", ["slot", "index"])
def test_variables_of_another_dtype(argument):
    table = KeyedTable(4, 3)
    wrong = tf.Variable(tf.zeros([4, 3], tf.int32))
    with pytest.raises(INVALID, match="is not of dtype float"):
        fill(table, tf.Variable(zeros(4, 3)), [1.0], **{argument: wrong.handle})


@pytest.mark.parametrize("argument", ["slot", "index"])
def test_variables_that_were_never_assigned(argument):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = KeyedTable(4, 3)
        slot = tf.Variable(zeros(4, 3))
        session.run(tf.compat.v1.global_variables_initializer())
        dtype = tf.float64 if argument == "index" else tf.float32
        empty = tf.raw_ops.VarHandleOp(dtype=dtype, shape=None, shared_name="nothing")
        given = {"slot": slot.handle, "index": table.index.handle} | {argument: empty}
        filled = ops.fill_embedding_slot(**given, values=tf.ones([1]), dim=3, number=0)
        with pytest.raises(UNMET):
            session.run(filled)
