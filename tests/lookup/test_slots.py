"""Lookups of slots against NumPy, and by the numbers of HugeCTR's plugin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.embedding_variables.plain import keyed

#: Those of the plugin's notebook.
TABLE = np.arange(1, 33, dtype=np.float32).reshape(8, 4)
KEYS = np.array(
    [
        [[0, -1], [1, -1], [2, 6]],
        [[0, -1], [1, -1], [-1, -1]],
        [[0, -1], [1, -1], [6, -1]],
        [[0, -1], [1, -1], [2, -1]],
    ]
)
COMBINERS = ("sum", "mean", "sqrtn")


def combined(table: Any, keys: Any, combiner: str) -> Any:
    """[B, slots, D]."""
    result = np.zeros((*keys.shape[:2], table.shape[1]), table.dtype)
    for place in np.ndindex(keys.shape[:2]):
        rows = table[keys[place][keys[place] >= 0]]
        if len(rows):
            by = {"sum": 1, "mean": len(rows), "sqrtn": np.sqrt(len(rows))}[combiner]
            result[place] = rows.sum(0) / by
    return result


def random_keys(seed: int, slot_num: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 8, (5, slot_num, 4))


def test_the_plugins_numbers():
    table = tf.Variable(TABLE)
    result = fusion.slots_lookup(table, KEYS)
    np.testing.assert_array_equal(result[0], [[1, 2, 3, 4], [5, 6, 7, 8], [34, 36, 38, 40]])
    np.testing.assert_array_equal(result[1, 2], [0, 0, 0, 0])
    np.testing.assert_array_equal(result, combined(TABLE, KEYS, "sum"))


def test_the_plugins_numbers_after_a_step_of_adam():
    table = tf.Variable(TABLE)
    optimizer = tf.keras.optimizers.Adam(0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
    with tf.GradientTape() as tape:
        result = fusion.slots_lookup(table, KEYS)
    gradient = tape.gradient(result, table)
    assert isinstance(gradient, tf.IndexedSlices)
    optimizer.apply_gradients([(gradient, table)])
    second = fusion.slots_lookup(table, KEYS)
    np.testing.assert_allclose(second[0, 0], [0.90024936, 1.9002494, 2.9002495, 3.9002495], 1e-6)
    np.testing.assert_allclose(second[0, 2], [33.800995, 35.800995, 37.800995, 39.800995], 1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_all_forms_of_keys(combiner, dtype):
    table, keys = tf.Variable(TABLE), random_keys(1).astype(dtype)
    expected = combined(TABLE, keys, combiner)
    ragged = tf.RaggedTensor.from_tensor(keys.reshape(-1, 4), padding=None)
    ragged = tf.ragged.boolean_mask(keys.reshape(-1, 4), keys.reshape(-1, 4) >= 0)
    slotted = tf.RaggedTensor.from_uniform_row_length(ragged, 3)
    coordinates = fusion.slots_to_coo(keys)
    (csr,) = fusion.slots_to_csr(*coordinates, 5, 3)
    for result in (
        fusion.slots_lookup(table, keys, combiner),
        fusion.slots_lookup(table, slotted, combiner),
        fusion.slots_lookup_coo(table, *coordinates, 5, 3, combiner),
        fusion.slots_lookup_csr(table, csr.row_offsets, csr.values, 3, combiner),
    ):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, 1e-6)


def test_any_kind_of_table():
    keys = random_keys(2)
    expected = combined(TABLE, keys, "sum")
    variable = keyed(4, 100)
    variable.embedding_lookup(keys[keys >= 0])
    shards = [tf.Variable(TABLE[:5]), tf.Variable(TABLE[5:])]
    for table in (tf.constant(TABLE), shards):
        np.testing.assert_allclose(fusion.slots_lookup(table, keys), expected, 1e-6)
    rows = variable.embedding_lookup(np.arange(8)).numpy()
    ours = fusion.slots_lookup(variable, keys)
    np.testing.assert_allclose(ours, combined(rows, keys, "sum"), 1e-6)


def test_unknown_shapes_and_another_invalid_key():
    table, keys = tf.Variable(TABLE), random_keys(3)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.int64)])
    def look_up(given: Any) -> Any:
        return fusion.slots_lookup(table, given, "mean", invalid_key=100)

    other = np.where(keys < 0, 100, keys)
    np.testing.assert_allclose(look_up(other), combined(TABLE, keys, "mean"), 1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="100"):
        fusion.slots_lookup(table, other)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_keys_of_replicas(count):
    keys = random_keys(4)
    coordinates = fusion.slots_to_coo(keys)
    whole = combined(TABLE, keys, "sum")
    parts = fusion.slots_to_csr(*coordinates, 5, 3, count)
    sums = [fusion.slots_lookup_csr(tf.constant(TABLE), p.row_offsets, p.values, 3) for p in parts]
    np.testing.assert_allclose(tf.add_n(sums), whole, 1e-6)
    for replica, part in enumerate(parts):
        assert set(part.values.numpy() % count) <= {replica}
        assert part.nnz == part.row_offsets[-1] == len(part.values)
    parts = fusion.slots_to_csr(*coordinates, 5, 3, count, "localized")
    for replica, part in enumerate(parts):
        own = whole[:, replica::count]
        result = fusion.slots_lookup_csr(
            tf.constant(TABLE), part.row_offsets, part.values, own.shape[1]
        )
        np.testing.assert_allclose(result, own, 1e-6)


@pytest.mark.parametrize("mode", ["distributed", "localized"])
def test_no_keys(mode):
    coordinates = fusion.slots_to_coo(np.full((2, 3, 4), -1))
    for part in fusion.slots_to_csr(*coordinates, 2, 3, 2, mode):
        assert part.nnz == 0
        assert not part.row_offsets.numpy().any()
    result = fusion.slots_lookup_coo(tf.constant(TABLE), *coordinates, 2, 3)
    np.testing.assert_array_equal(result, np.zeros([2, 3, 4]))


def test_bad_arguments():
    table = tf.Variable(TABLE)
    with pytest.raises(ValueError, match=r"keys must be \[B, slots, nnz\], got shape \(3, 2\)"):
        fusion.slots_lookup(table, KEYS[0])
    with pytest.raises(ValueError, match="combiner must be one of"):
        fusion.slots_lookup(table, KEYS, "max")
    with pytest.raises(TypeError, match="keys must be int32 or int64, got float32"):
        fusion.slots_lookup(table, KEYS.astype(np.float32))
    with pytest.raises(ValueError, match="as many slots in each row"):
        fusion.slots_lookup(table, tf.ragged.constant([[[1], [2]], [[3]]]))
    with pytest.raises(ValueError, match="replica_count must be at least 1, got 0"):
        fusion.slots_to_csr(*fusion.slots_to_coo(KEYS), 4, 3, 0)
    with pytest.raises(ValueError, match="mode must be one of"):
        fusion.slots_to_csr(*fusion.slots_to_coo(KEYS), 4, 3, 2, "hashed")
    with pytest.raises(tf.errors.InvalidArgumentError, match="-2"):
        fusion.slots_lookup(table, np.full((1, 1, 1), -2))
