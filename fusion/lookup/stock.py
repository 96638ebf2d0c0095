"""Lookups in embedding variables by stock ops: all but the gather is TensorFlow's."""

from __future__ import annotations

import tensorflow as tf

from fusion.tables.partitioned import KeyedTable


def stock_lookup(
    table: KeyedTable,
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    combiner: str,
    max_norm: float | None,
    is_safe: bool,
    name: str | None = None,
) -> tf.Tensor:
    """The lookup of a stock embedding column, in an embedding variable.

    Args:
      table: the embedding variable.
      ids: keys.
      weights: of the keys, or None.
      combiner, max_norm, name: as of `tf.nn.embedding_lookup_sparse`.
      is_safe: whether to do what `tf.nn.safe_embedding_lookup_sparse` does.

    Returns:
      A tensor [d0, ..., dn-1, D].
    """
    if is_safe:
        mask = ids.values >= 0
        if weights is not None and combiner != "sum":
            mask = tf.logical_and(mask, weights.values > 0)
        ids = tf.sparse.retain(ids, mask)
        weights = None if weights is None else tf.sparse.retain(weights, mask)
    keys, numbers, counts = tf.unique_with_counts(ids.values)
    rows = table.embedding_lookup(keys, counts)
    if not is_safe:
        numbered = tf.SparseTensor(ids.indices, numbers, ids.dense_shape)
        return tf.nn.embedding_lookup_sparse(
            rows, numbered, weights, combiner=combiner, max_norm=max_norm, name=name
        )
    # Rows without ids have id 0 meanwhile, which is to be none of the keys.
    rows = tf.concat([tf.zeros([1, table.dimension], rows.dtype), rows], 0)
    numbered = tf.SparseTensor(ids.indices, numbers + 1, ids.dense_shape)
    return tf.nn.safe_embedding_lookup_sparse(
        rows, numbered, weights, combiner=combiner, max_norm=max_norm, name=name
    )
