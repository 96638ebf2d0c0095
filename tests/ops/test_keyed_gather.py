"""KeyedEmbeddingGather in TensorFlow: values, threads, and what is refused."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.keyed_tables import KeyedTable, empty_index, zeros

INVALID, EXHAUSTED = tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError
UNMET = tf.errors.FailedPreconditionError


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_known_keys_have_their_rows_and_others_the_default(dtype, key_dtype):
    table = KeyedTable(20, 5, dtype)
    keys = tf.constant([7, -3, 7, 0], key_dtype)
    values, rows = table.train(keys)
    assert values.dtype == dtype
    assert rows.tolist() == [0, 1, 0, 2]
    np.testing.assert_array_equal(values, table.table.numpy()[rows])
    assert all({*values[:, k]} <= {*table.samples[:, k]} for k in range(5))
    asked = tf.constant([0, 5, -3, 6], key_dtype)
    values, rows = table.gather(asked)
    assert rows.tolist() == [2, -1, 1, -1]
    expected = np.where(rows[:, None] < 0, table.default, table.table.numpy()[rows])
    np.testing.assert_array_equal(values, expected)
    assert table.gather(asked)[1].tolist() == [2, -1, 1, -1]


def test_keys_of_any_size_are_told_apart():
    table = KeyedTable(8, 3)
    keys = [2**63 - 1, -(2**63), 2**32, 0, -1]
    assert table.train(keys)[1].tolist() == [0, 1, 2, 3, 4]
    assert table.gather(keys[::-1])[1].tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize("is_training", [False, True])
def test_no_keys(key_dtype, is_training):
    table = KeyedTable(8, 3)
    values, rows = table.gather(tf.constant([], key_dtype), is_training=is_training)
    assert (values.shape, rows.shape) == ((0, 3), (0,))


def test_rows_that_were_trained_are_gathered():
    table = KeyedTable(8, 3)
    _, rows = table.train([4, 5])
    table.table.scatter_update(tf.IndexedSlices([[1.0, 2, 3]], rows[1:]))
    values, _ = table.gather([5, 5, 4])
    np.testing.assert_array_equal(values[:2], [[1, 2, 3]] * 2)
    assert not np.array_equal(values[2], [1, 2, 3])


def test_counts_admit():
    table = KeyedTable(8, 3, admission=4)
    counts = tf.constant([3, 4, 1], tf.int32)
    values, rows = table.train([1, 2, 3], counts=counts)
    assert rows.tolist() == [-1, 0, -1]
    np.testing.assert_array_equal(values[[0, 2]], [table.default] * 2)
    assert table.train([3, 1], counts=tf.constant([2, 1], tf.int32))[1].tolist() == [-1, 1]
    assert table.train([3])[1].tolist() == [2]


def test_a_key_that_is_admitted_within_a_call_has_its_row_everywhere():
    table = KeyedTable(8, 3, admission=2)
    values, rows = table.train([6, 5, 6])
    assert rows.tolist() == [0, -1, 0]
    np.testing.assert_array_equal(values[[0, 2]], table.table.numpy()[[0, 0]])
    np.testing.assert_array_equal(values[1], table.default)


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [4095, 4096, 4097, 30_000])
def test_threads_give_what_one_gives(count, key_dtype):
    """Of 4,096 keys and more some are found by other threads."""
    rng = np.random.default_rng(count)
    first, other = KeyedTable(40_000, 9), KeyedTable(40_000, 9)
    for _ in range(3):
        keys = rng.integers(-20_000, 20_000, count)
        whole, rows = first.train(tf.constant(keys, key_dtype))
        parts = [other.train(tf.constant(part, key_dtype)) for part in np.array_split(keys, 40)]
        np.testing.assert_array_equal(whole, np.concatenate([values for values, _ in parts]))
        np.testing.assert_array_equal(rows, np.concatenate([rows for _, rows in parts]))
    keys = rng.integers(-40_000, 40_000, count)
    whole, rows = first.gather(tf.constant(keys, key_dtype))
    known = rows >= 0
    assert 0 < known.sum() < count
    np.testing.assert_array_equal(whole[known], first.table.numpy()[rows[known]])
    np.testing.assert_array_equal(whole[~known], np.broadcast_to(first.default, [sum(~known), 9]))


def test_calls_at_once_give_each_key_one_row():
    table, found = KeyedTable(50_000, 4), {}

    def work(number):
        rng, own = np.random.default_rng(number), []
        for _ in range(5):
            keys = rng.integers(0, 10_000, 6000)
            values, rows = table.train(keys)
            own.append((keys, values, rows))
        found[number] = own

    threads = [threading.Thread(target=work, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row_of = dict[int, int]()
    for keys, values, rows in (call for own in found.values() for call in own):
        np.testing.assert_array_equal(values, table.table.numpy()[rows])
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            assert row_of.setdefault(key, row) == row >= 0
    assert sorted(row_of.values()) == [*range(len(row_of))]


def test_initial_values_depend_on_the_seed_and_the_key():
    keys = [*range(100)]
    tables = [KeyedTable(100, 8, seed=seed) for seed in (1, 1, 2)]
    first, other = tables[0].train(keys)[0], tables[1].train(keys[::-1])[0]
    np.testing.assert_array_equal(first, other[::-1])
    assert (tables[2].train(keys)[0] != first).mean() > 0.5


@pytest.mark.parametrize("waits", [False, True])
def test_keys_that_find_no_room(waits):
    table = KeyedTable(3, 2, waits=waits)
    table.train([1, 2])
    before = table.table.numpy()[:2]
    if waits:
        values, rows = table.train([2, 3, 4, 5])
        assert rows.tolist() == [1, 2, -1, -1]
        np.testing.assert_array_equal(values[2:], [table.default] * 2)
    else:
        with pytest.raises(EXHAUSTED, match=r"no room for 2 keys more than .* of 3 rows"):
            table.train([2, 3, 4, 5])
    # Nothing is lost: those that found room are there, and go on.
    assert table.gather([1, 2, 3, 4])[1].tolist() == [0, 1, 2, -1]
    np.testing.assert_array_equal(table.table.numpy()[:2], before)
    assert table.train([3, 1])[1].tolist() == [2, 0]


def test_a_gradient_has_the_rows_of_known_keys():
    table = KeyedTable(8, 3)
    table.train([4, 6])
    with tf.GradientTape() as tape:
        tape.watch(table.table.handle)
        found = ops.keyed_embedding_gather(**table.arguments([6, 5, 4, 6]))
        loss = tf.reduce_sum(found.embeddings * tf.range(12.0)[:, None][::3])
    slices = tape.gradient(loss, table.table.handle)
    assert slices.indices.numpy().tolist() == [1, 0, 1]
    np.testing.assert_array_equal(slices.values, [[0] * 3, [6] * 3, [9] * 3])
    assert slices.dense_shape.numpy().tolist() == [8, 3]


def rows_of_fed(table, **changes):
    """The op in a v1 graph, where nothing is known of its inputs before it runs."""
    given = table.arguments([1, 2], **changes)
    fed = {name: given[name].numpy() for name in ("keys", "counts", "step")}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = KeyedTable(table.table.shape[0], table.dim)
        session.run(tf.compat.v1.global_variables_initializer())
        placeholders = {
            name: tf.compat.v1.placeholder(value.dtype, None) for name, value in fed.items()
        }
        found = ops.keyed_embedding_gather(**made.arguments([1], **(changes | placeholders)))
        feed = {placeholders[name]: value for name, value in fed.items()}
        return session.run(found.rows, feed)


def test_what_is_fed_is_taken_if_it_fits():
    assert rows_of_fed(KeyedTable(4, 3)).tolist() == [-1, -1]
    assert rows_of_fed(KeyedTable(4, 3), is_training=True).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": tf.constant([[1]], tf.int64)}, "keys must have rank 1, but have rank 2"),
        ({"keys": tf.constant(1, tf.int64)}, "keys must have rank 1, but have rank 0"),
        ({"counts": tf.ones([1], tf.int32)}, "counts has 1 elements, but there are 2 keys"),
        ({"counts": tf.ones([3], tf.int32)}, "counts has 3 elements, but there are 2 keys"),
        ({"step": tf.zeros([0], tf.int64)}, "step must have one element, but has 0"),
        ({"step": tf.zeros([2], tf.int64)}, "step must have one element, but has 2"),
    ],
)
@pytest.mark.parametrize("is_training", [False, True])
def test_tensors_that_do_not_fit(changes, message, is_training):
    with pytest.raises(INVALID, match=message):
        rows_of_fed(KeyedTable(4, 3), is_training=is_training, **changes)


@pytest.mark.parametrize("dim", [1, 2, 4, 6])
def test_another_dimension(dim):
    table = KeyedTable(4, 3)
    with pytest.raises(INVALID, match=rf"48 bytes, but the index is of 4 rows of {4 * dim} bytes"):
        table.train([1], dim=dim)
    assert table.gather([1])[1].tolist() == [-1]


@pytest.mark.parametrize("dim", [0, -1])
def test_no_dimension(dim):
    with pytest.raises((ValueError, INVALID), match="dim"):
        KeyedTable(4, 3).gather([1], dim=dim)


def test_an_index_of_other_rows():
    table = KeyedTable(4, 3)
    index = tf.Variable(empty_index(5))
    with pytest.raises(INVALID, match="48 bytes, but the index is of 5 rows of 12 bytes"):
        table.train([1], index=index.handle)


@pytest.mark.parametrize("words", [0, 1, 5000])
def test_an_index_that_is_none(words):
    table = KeyedTable(4, 3)
    index = tf.Variable(tf.zeros([words], tf.float64))
    with pytest.raises(UNMET, match=f"no EmbeddingKeyIndex, but {words} other words"):
        table.train([1], index=index.handle)


@pytest.mark.parametrize("rows", [0, 1])
def test_initial_rows_that_are_too_few(rows):
    table = KeyedTable(4, 3)
    initial = tf.Variable(tf.zeros([rows, 3]))
    with pytest.raises(INVALID, match=f"initial has {12 * rows} bytes"):
        table.gather([1], initial=initial.handle)
    initial = tf.Variable(tf.zeros([7]))
    with pytest.raises(INVALID, match="initial has 28 bytes, which are no two or more rows of 12"):
        table.gather([1], initial=initial.handle)


@pytest.mark.parametrize("argument", ["table", "index", "initial"])
@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "string"])
def test_variables_of_another_dtype(argument, dtype):
    table = KeyedTable(4, 3)
    wrong = tf.Variable(tf.constant([["a"]] if dtype == "string" else 1, dtype))
    with pytest.raises(INVALID, match="is not of dtype float"):
        table.train([1], **{argument: wrong.handle})


@pytest.mark.parametrize("argument", ["table", "index", "initial"])
def test_variables_that_were_never_assigned(argument):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = KeyedTable(4, 3)
        session.run(tf.compat.v1.global_variables_initializer())
        dtype = tf.float64 if argument == "index" else tf.float32
        empty = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[None, 3], shared_name="nothing")
        found = ops.keyed_embedding_gather(**table.arguments([1], **{argument: empty}))
        with pytest.raises(UNMET):
            session.run(found.rows)


def test_a_handle_of_something_else():
    words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    with pytest.raises(UNMET):
        KeyedTable(4, 3).gather([1], table=words.resource_handle)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_dtypes_of_no_kernel(dtype):
    with pytest.raises((TypeError, ValueError, INVALID), match="T"):
        KeyedTable(4, 3).gather([1], T=dtype)


def test_all_variables_may_be_shared_by_many_calls():
    """Two tables of one index, and a table that is its own initial rows."""
    table = KeyedTable(6, 3)
    other = tf.Variable(zeros(6, 3))
    table.train([1])
    values, rows = table.train([1, 2], table=other.handle)
    assert rows.tolist() == [0, 1]
    assert not values[0].any()
    values, rows = table.gather([1, 9], initial=table.table.handle)
    assert rows.tolist() == [0, -1]
    np.testing.assert_array_equal(values, table.table.numpy()[[0, 0]])
