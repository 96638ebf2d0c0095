"""Many lookups by one op, from tables and ids of all kinds: the numbers of each on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.lookup import (
    VERSIONS,
    Lookup,
    LookupOptions,
    grouped_lookup,
    lookup,
    trained_lookup,
)
from tests.reference import assert_same_bits

RAGGED = tf.RaggedTensor.from_row_lengths(tf.constant([3, -1, 0, 4, 4], tf.int64), [2, 0, 3])
WEIGHTS = tf.constant([0.5, 1.0, -2.0, 2.0, 0.0])


def table(dtype: Any = tf.float32, dim: int = 3) -> tf.Variable:
    values = np.random.default_rng(dim).normal(size=(5, dim))
    return tf.Variable(tf.cast(values, dtype))


def options(version: str = "v2", **given: Any) -> LookupOptions:
    """Those of a safe lookup."""
    chosen = {"combiner": "mean", "max_norm": None, "default_id": None} | given
    return LookupOptions.checked(
        **chosen, partition_strategy=None, prune=True, fill_empty_row=True, version=version
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16], ids=str)
@pytest.mark.parametrize("version", VERSIONS)
def test_lookups_side_by_side(version: str, dtype: Any) -> None:
    limit = None if dtype == tf.bfloat16 else 0.5
    weights = tf.cast(WEIGHTS, dtype)
    columns = [
        Lookup(table(dtype), RAGGED, None, options(version, combiner="sqrtn")),
        Lookup(table(dtype, 2), RAGGED.to_sparse(), weights, options(version, default_id=1)),
        Lookup(table(dtype), RAGGED, weights, options(version, combiner="sum", max_norm=limit)),
    ]
    assert all(column.is_groupable and column.reads_table_well for column in columns)
    alone = [lookup(one.table, one.ids, one.weights, one.options) for one in columns]
    matrix = tf.cast([[1], [2], [3]], dtype)
    found = grouped_lookup([columns[0], matrix, *columns[1:]])
    expected = tf.concat([alone[0], matrix, *alone[1:]], 1)
    assert_same_bits(tf.cast(found, tf.float64).numpy(), tf.cast(expected, tf.float64).numpy())


def test_dense_ids() -> None:
    ids = tf.constant([[3, -1], [-1, -1], [4, 4]])
    found = grouped_lookup([Lookup(table(), ids, None, options())])
    kept = tf.RaggedTensor.from_row_lengths(tf.constant([3, 4, 4]), [1, 0, 2])
    assert_same_bits(found.numpy(), lookup(table(), kept, None, options()).numpy())


def test_dense_ids_with_one_that_is_ignored() -> None:
    ids = tf.constant([[3, 0], [0, 0], [4, 4]])
    column = Lookup(table(), ids, None, LookupOptions(prune=False), ignored_id=0)
    kept = tf.RaggedTensor.from_row_lengths(tf.constant([3, 4, 4]), [1, 0, 2])
    expected = lookup(table(), kept, None, options()).numpy()
    assert_same_bits(grouped_lookup([column]).numpy(), expected)
    assert_same_bits(trained_lookup([column]).numpy(), expected)


def test_maxima() -> None:
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([3, 1, 4]), [2, 1])
    chosen = LookupOptions("max", prune=False, fill_empty_row=False)
    found = grouped_lookup([Lookup(table(), ids, None, chosen, sum_order="sequence")])
    rows = table().numpy()
    assert_same_bits(found.numpy(), np.stack([np.maximum(rows[3], rows[1]), rows[4]]))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_without_pruning_all_weights_count(combiner: str) -> None:
    ids = RAGGED.with_values(tf.abs(RAGGED.values)).to_sparse()
    weights = tf.SparseTensor(ids.indices, WEIGHTS, ids.dense_shape)
    stock = tf.nn.embedding_lookup_sparse(table(), ids, weights, combiner=combiner)
    chosen = LookupOptions(combiner, prune=False, fill_empty_row=False)
    column = Lookup(table(), ids, weights, chosen)
    for find in (grouped_lookup, trained_lookup):
        np.testing.assert_allclose(find([column]), stock, rtol=1e-6)


@pytest.mark.parametrize(
    "column",
    [
        Lookup([table(), table()], RAGGED, None, options()),
        Lookup(table(tf.float16), RAGGED, None, options(max_norm=0.5)),
        Lookup(table(tf.float64), RAGGED, None, options(max_norm=0.1)),
        Lookup(table(), tf.sparse.expand_dims(RAGGED.to_sparse(), 0), None, options()),
        Lookup(table(), tf.constant([1, 2]), None, options()),
    ],
    ids=["shards", "half", "digits", "rank 3", "rank 1"],
)
def test_lookups_that_no_op_shares(column: Lookup) -> None:
    assert not (column.is_groupable and column.reads_table_well)


def test_different_numbers_of_rows() -> None:
    columns = [Lookup(table(), RAGGED, None, options()), tf.zeros([2, 1])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows"):
        grouped_lookup(columns)
