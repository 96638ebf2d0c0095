"""Initial rows of sharded tables: the same for any number of replicas, none of which makes all."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.distribute import ShardedTable
from fusion.distribute.initial_rows import block_maker, rows_of_blocks
from fusion.distribute.layout import BLOCK_ROWS, Layout

ROWS, DIMENSION = 2 * BLOCK_ROWS + 100, 3


def made(
    initializer: Any, mode: str = "distributed", count: int = 1, rows: int = ROWS, seed: int = 7
) -> np.ndarray:
    """The rows that so many replicas make, each as in a process of its own."""
    layout, whole = Layout.of_mode(mode, rows, count), np.full((rows, DIMENSION), np.nan)
    for replica in range(count):
        own = layout.rows_of(replica)
        make_block = block_maker(initializer, rows, DIMENSION, tf.float32, seed)
        whole[own] = rows_of_blocks(make_block, DIMENSION, tf.float32, own)
    return whole


def row_numbers(
    shape: list[int], dtype: Any, partition_shape: list[int], partition_offset: list[int]
) -> tf.Tensor:
    """An initializer that makes a part of a variable."""
    assert shape == [ROWS, DIMENSION]
    assert partition_shape[0] <= BLOCK_ROWS
    numbers = tf.range(partition_offset[0], partition_offset[0] + partition_shape[0])
    return tf.repeat(tf.cast(numbers, dtype)[:, None], partition_shape[1], 1)


INITIALIZERS = {
    "default": None,
    "keras uniform": keras.initializers.RandomUniform(seed=3),
    "keras, of no seed": keras.initializers.RandomNormal(),
    "tf_keras truncated": tf_keras.initializers.TruncatedNormal(seed=2**32 - 1),
    "tf_keras, of no seed": tf_keras.initializers.RandomUniform(),
    "tensorflow normal": tf.random_normal_initializer(seed=3),
    "constant": keras.initializers.Constant(2.5),
    "parts": row_numbers,
    "other": keras.initializers.GlorotUniform(seed=3),
    "matrix": keras.initializers.Constant(np.arange(ROWS * DIMENSION).reshape(ROWS, DIMENSION)),
    "array": np.arange(ROWS * DIMENSION).reshape(ROWS, DIMENSION),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_rows_are_the_same_for_any_number_of_replicas(name):
    initializer = INITIALIZERS[name]
    whole = made(initializer)
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(made(initializer, count=3), whole)
    np.testing.assert_array_equal(made(initializer, "localized:1", 2), whole)
    if name != "constant":  # no block is another one again
        assert not np.isin(whole[BLOCK_ROWS:, 0], whole[:BLOCK_ROWS, 0]).all()


@pytest.mark.parametrize("name", ["parts", "matrix", "array"])
def test_rows_are_where_they_belong(name):
    steps = 1 if name == "parts" else DIMENSION
    np.testing.assert_array_equal(made(INITIALIZERS[name], count=3)[:, 0], steps * np.arange(ROWS))


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        (None, 0.88 / np.sqrt(DIMENSION)),  # truncated at two of the normal one's
        (keras.initializers.RandomNormal(1.0, 0.2), 0.2),
        (tf_keras.initializers.RandomUniform(-1, 3), 4 / np.sqrt(12)),
    ],
)
def test_rows_have_the_distribution(initializer, deviation):
    whole = made(initializer, count=2)
    assert np.std(whole) == pytest.approx(deviation, rel=0.02)
    assert not np.array_equal(made(initializer, seed=8), whole)


@pytest.mark.parametrize("package", [keras, tf_keras])
def test_a_table_of_one_block_has_the_rows_of_a_variable(package):
    initializer = package.initializers.RandomUniform(seed=3)
    expected = package.initializers.RandomUniform(seed=3)([50, DIMENSION])
    np.testing.assert_array_equal(made(initializer, count=3, rows=50), expected)


def test_initializers_without_a_seed_have_that_of_the_name():
    def rows(name: str) -> tf.Tensor:
        initializer = keras.initializers.RandomUniform()
        return ShardedTable(20, 4, initializer=initializer, name=name).saved_tensors()["table"]

    np.testing.assert_array_equal(rows("a"), rows("a"))
    assert not np.array_equal(rows("a"), rows("b"))


def test_other_initializers_are_called_once_and_where_there_are_rows():
    shapes = []

    def other(shape: list[int], dtype: Any) -> tf.Tensor:
        shapes.append(shape)
        return tf.zeros(shape, dtype)

    make_block = block_maker(other, ROWS, DIMENSION, tf.float32, 0)
    assert rows_of_blocks(make_block, DIMENSION, tf.float32, range(0)).shape == [0, DIMENSION]
    assert shapes == []
    rows_of_blocks(make_block, DIMENSION, tf.float32, range(0, ROWS, 2))
    assert shapes == [[ROWS, DIMENSION]]


def test_initial_rows_are_not_kept():
    array = np.zeros([ROWS, DIMENSION])
    kept = weakref.ref(array)
    table = ShardedTable(ROWS, DIMENSION, initializer=array)
    del array
    gc.collect()
    assert kept() is None
    assert table.shards[0].shape == [ROWS, DIMENSION]


def test_who_looks_like_stock_and_is_not():
    class RandomUniform:
        def __call__(self, shape: list[int], dtype: Any) -> tf.Tensor:
            return tf.reshape(tf.range(np.prod(shape), dtype=dtype), shape)

    assert made(RandomUniform(), count=2)[-1, -1] == ROWS * DIMENSION - 1


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        (lambda shape, dtype: tf.zeros([2, 2]), r"shape \[5, 2\], got \(2, 2\)"),
        (lambda shape, dtype, partition_shape, partition_offset: tf.zeros([5]), r"got \(5,\)"),
    ],
)
def test_initializers_of_other_shapes(initializer, message):
    with pytest.raises(ValueError, match=message):
        ShardedTable(5, 2, initializer=initializer)
