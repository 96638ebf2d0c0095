"""EmbeddingKeyEntries, AddEmbeddingKeys and RemoveEmbeddingKeys in TensorFlow."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.keyed_tables import KeyedTable

INVALID, EXHAUSTED = tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError


def entries(table):
    """The row, count and last step of each key."""
    found = ops.embedding_key_entries(index=table.index.handle)
    columns = (found.keys, found.rows, found.counts, found.steps)
    rows = [*zip(*(column.numpy().tolist() for column in columns), strict=True)]
    assert len({key for key, *_ in rows}) == len(rows)
    return {key: tuple(rest) for key, *rest in rows}


def add(table, keys, counts, steps, values=None):
    values = np.zeros([0, table.dim]) if values is None else values
    return ops.add_embedding_keys(
        table=table.table.handle,
        index=table.index.handle,
        values=tf.constant(np.asarray(values), table.dtype),
        dim=table.dim,
        keys=tf.constant(keys, tf.int64),
        counts=tf.constant(counts, tf.int32),
        steps=tf.constant(steps, tf.int64),
    ).numpy()


def remove(table, keys, released=0):
    return ops.remove_embedding_keys(
        index=table.index.handle,
        keys=tf.constant(keys, tf.int64),
        release=tf.constant(released, tf.int64),
    ).numpy()


def state(table):
    """The rows that are pending, and the clock."""
    found = ops.embedding_key_entries(index=table.index.handle)
    return found.pending.numpy().tolist(), found.clock.numpy().tolist()


def test_entries_of_an_empty_index():
    table = KeyedTable(4, 2)
    assert entries(table) == {}
    assert state(table) == ([], [0])


def test_entries():
    table = KeyedTable(8, 2, admission=2)
    table.train([5, 6, 5], step=tf.constant(7, tf.int64))
    table.train([-6, 8], step=tf.constant(9, tf.int64))
    table.gather([5, 9])
    assert entries(table) == {5: (0, 2, 7), 6: (-1, 1, -1), -6: (-1, 1, -1), 8: (-1, 1, -1)}
    assert state(table) == ([], [2])


def test_entries_are_put_into_another_index():
    table, other = KeyedTable(3000, 2, admission=2), KeyedTable(2500, 2, admission=9)
    rng = np.random.default_rng(0)
    for _ in range(4):
        table.train(rng.zipf(1.3, 2000) % 5000)
    found = entries(table)
    keys, rest = [*found], [*found.values()]
    rows = add(other, keys, [count for _, count, _ in rest], [step for *_, step in rest])
    assert [row >= 0 for row in rows] == [row >= 0 for row, *_ in rest]
    assert {key: more for key, (_, *more) in entries(other).items()} == {
        key: more for key, (_, *more) in found.items()
    }
    assert other.gather(keys)[1].tolist() == rows.tolist()


def test_keys_that_are_added_twice_keep_their_rows():
    table = KeyedTable(8, 2)
    assert add(table, [3, 4], [2, 5], [1, 1]).tolist() == [0, 1]
    assert add(table, [4, 5, 6], [7, 1, 3], [8, 2, -1]).tolist() == [1, 2, -1]
    assert entries(table) == {3: (0, 2, 1), 4: (1, 7, 8), 5: (2, 1, 2), 6: (-1, 3, -1)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_added_keys_have_the_rows_that_are_given(dtype):
    table = KeyedTable(4, 2, dtype)
    table.train([7])
    rows = add(table, [3, 5, 7], [1, 1, 1], [1, -1, 1], [[1, 2], [3, 4]])
    assert rows.tolist() == [1, -1, 0]
    values = table.gather([3, 5, 7])[0].tolist()
    assert values == [[1, 2], table.default.tolist(), [3, 4]]


def test_rows_of_keys_that_are_found():
    table = KeyedTable(8, 2, admission=2)
    table.train([5, 7, 9, 7, 9])

    def found(keys):
        keys = tf.constant(keys, tf.int64)
        return ops.find_embedding_keys(index=table.index.handle, keys=keys).numpy().tolist()

    assert found([9, 5, 1, 7, 9]) == [1, -1, -1, 0, 1]  # 5 waits
    assert found([]) == []
    remove(table, [7], released=-1)
    assert found([7, 9]) == [-1, 1]
    assert entries(table).keys() == {5, 9}
    with pytest.raises(tf.errors.FailedPreconditionError, match="index has no EmbeddingKeyIndex"):
        ops.find_embedding_keys(index=tf.Variable([1.0, 2.0], dtype=tf.float64).handle, keys=[1])


def test_added_keys_without_values_have_zeros_or_the_rows_that_they_had():
    table = KeyedTable(4, 2)
    before = table.train([7, 8])[0][0].tolist()
    remove(table, [8], released=0)
    remove(table, [], released=1)
    assert add(table, [7, 9], [0, 0], [0, 0]).tolist() == [0, 1]  # the row that 8 had
    assert table.gather([7, 9])[0].tolist() == [before, [0, 0]]
    assert entries(table)[7] == (0, 1, 1)


def test_added_keys_take_pending_rows_rather_than_none():
    table = KeyedTable(2, 2)
    table.train([1, 2])
    remove(table, [1, 2], released=-1)
    assert add(table, [3, 4], [1, 1], [1, 1], np.ones([2, 2])).tolist() == [1, 0]
    assert state(table)[0] == []


@pytest.mark.parametrize("shape", [[1, 2], [3, 2], [2, 3]])
def test_values_of_another_number(shape):
    table = KeyedTable(8, 2)
    with pytest.raises(INVALID, match=r"values has \d elements, not 2 rows of 2"):
        add(table, [1, 2, 3], [1, 1, 1], [1, -1, 1], np.ones(shape))
    assert entries(table) == {}


def test_pending_rows_are_aged_by_an_eviction():
    table = KeyedTable(4, 2)
    table.train([1, 2, 3])

    def aged():
        return ops.embedding_key_entries(index=table.index.handle).aged.numpy().tolist()

    remove(table, [1], released=-1)
    assert (state(table)[0], aged()) == ([0], [0])
    remove(table, [2], released=0)
    assert (state(table)[0], aged()) == ([0, 1], [2])
    remove(table, [3], released=-1)
    assert (state(table)[0], aged()) == ([0, 1, 2], [2])
    remove(table, [], released=2)
    assert (state(table)[0], aged()) == ([2], [1])


def test_keys_that_find_no_room():
    table = KeyedTable(2, 2)
    with pytest.raises(EXHAUSTED, match="no room for 1 keys more than the capacity of 2 rows"):
        add(table, [3, 4, 5], [1, 1, 1], [0, 0, 0])
    assert table.gather([3, 4, 5])[1].tolist() == [0, 1, -1]


def test_rows_of_keys_that_are_removed_are_used_again_when_they_are_released():
    table = KeyedTable(3, 2, admission=1)
    table.train([1, 2, 3])
    assert remove(table, [2, 7, 2, 3]).tolist() == [1, -1, -1, 2]
    assert table.gather([1, 2, 3])[1].tolist() == [0, -1, -1]
    assert state(table)[0] == [1, 2]
    with pytest.raises(EXHAUSTED):
        table.train([4])
    assert remove(table, [], released=1).tolist() == []
    assert state(table)[0] == [2]
    assert table.train([4])[1].tolist() == [1]
    remove(table, [4], released=5)
    assert state(table)[0] == [1]
    assert table.train([8])[1].tolist() == [2]


def test_a_key_without_a_row_is_removed_too():
    table = KeyedTable(3, 2, admission=2)
    table.train([1])
    assert remove(table, [1]).tolist() == [-1]
    assert entries(table) == {}
    table.train([1])
    assert table.train([1])[1].tolist() == [0]


def test_entries_are_whole_while_others_train_and_remove():
    table = KeyedTable(40_000, 2)
    stop = threading.Event()

    def change(number):
        rng = np.random.default_rng(number)
        own = 10_000 * number
        while not stop.is_set():
            table.train(own + rng.integers(0, 10_000, 500))
            remove(table, own + rng.integers(0, 10_000, 100), released=100)

    threads = [threading.Thread(target=change, args=[number]) for number in range(1, 4)]
    table.train(np.arange(1000))
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            found = entries(table)
            rows = [row for row, *_ in found.values()]
            assert len({*rows}) == len(rows)
            assert [found[key][0] for key in range(1000)] == [*range(1000)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("counts", "steps"), [([1], [1, 1]), ([1, 1], [1]), ([], [1, 1])])
def test_lists_of_other_lengths(counts, steps):
    table = KeyedTable(4, 2)
    with pytest.raises((ValueError, INVALID), match=r"counts|steps"):
        add(table, [1, 2], counts, steps)
    assert entries(table) == {}


@pytest.mark.parametrize("released", [[], [1, 1]])
def test_a_release_of_another_length(released):
    with pytest.raises(INVALID, match=f"release must have one element, but has {len(released)}"):
        remove(KeyedTable(4, 2), [1], released)


def test_a_variable_that_is_no_index():
    table = KeyedTable(4, 2)
    table.index = tf.Variable(tf.zeros([4], tf.float64))
    for run in (
        lambda: entries(table),
        lambda: add(table, [1], [1], [1]),
        lambda: remove(table, [1]),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="no EmbeddingKeyIndex, but 4"):
            run()
    table.index = tf.Variable(tf.zeros([4], tf.float32))
    with pytest.raises(INVALID, match="is not of dtype float64"):
        entries(table)
