"""The entries of a lookup by stock ops, as the fused ops that prune and fill have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

Attrs = Mapping[str, Any]
Tensors = Sequence[tf.Tensor]


class NoDefinition(Exception):
    """The op is used in a way that has no definition by stock ops."""


class StockEntries(NamedTuple):
    """Entries [m] of `count` rows."""

    ids: tf.Tensor
    rows: tf.Tensor
    columns: tf.Tensor
    weights: tf.Tensor
    is_row_empty: tf.Tensor
    mask: tf.Tensor


def pruned(
    attrs: Attrs, ids: tf.Tensor, indices: tf.Tensor, count: tf.Tensor, weights: tf.Tensor | None
) -> StockEntries:
    """Drops entries, and appends one for each row that is left empty.

    Args:
      attrs: of PruneInvalidAndFillEmptyRows.
      ids: [nnz].
      indices: int64 [nnz, 2].
      count: int64 [], the number of rows.
      weights: [nnz]; None without weights.
    """
    if attrs["num_buckets"] > 0:
        inside = tf.logical_and(ids >= 0, ids < attrs["num_buckets"])
        ids = tf.where(inside, ids, tf.constant(attrs["bucket_default"], ids.dtype))
    keep = tf.ones_like(ids, tf.bool)
    if attrs["prune"]:
        keep = ids >= 0
        if weights is not None and attrs["prune_sparse_weights"]:
            keep = tf.logical_and(keep, weights > 0)
    positions = tf.where(keep)[:, 0]
    ids, indices = tf.gather(ids, positions), tf.gather(indices, positions)
    weights = None if weights is None else tf.gather(weights, positions)
    ones = tf.ones_like(indices[:, 0], tf.int32)
    is_row_empty = tf.equal(tf.math.unsorted_segment_sum(ones, indices[:, 0], count), 0)
    if attrs["fill_empty_row"]:
        empty = tf.where(is_row_empty)
        filler = tf.constant(max(attrs["default_id"], 0), ids.dtype)
        ids = tf.concat([ids, tf.fill(tf.shape(empty)[:1], filler)], 0)
        indices = tf.concat([indices, tf.concat([empty, tf.zeros_like(empty)], 1)], 0)
        if weights is not None:
            weight = tf.constant(attrs["default_weight"], weights.dtype)
            weights = tf.concat([weights, tf.fill(tf.shape(empty)[:1], weight)], 0)
    return StockEntries(ids, indices[:, 0], indices[:, 1], weights, is_row_empty, keep)


def pruned_matrix(
    attrs: Attrs, matrix: tf.Tensor, dtype: tf.DType
) -> tuple[StockEntries, tf.Tensor]:
    """Returns the entries of a dense matrix, and its shape, int64 [2].

    Args:
      attrs: of PruneDenseAndFillEmptyRows.
      matrix: [B, L].
      dtype: of the ids.
    """
    shape = tf.shape(matrix, out_type=tf.int64)
    is_entry = tf.ones_like(matrix, tf.bool)
    if attrs["use_ignored_id"]:
        is_entry = tf.not_equal(matrix, tf.constant(attrs["ignored_id"], matrix.dtype))
    ids = tf.cast(matrix, dtype)
    if attrs["column_stride"]:
        ids += tf.cast(tf.range(shape[1]), dtype) * tf.constant(attrs["column_stride"], dtype)
    indices = tf.where(is_entry)
    prune_attrs = {"prune_sparse_weights": False, "default_weight": 1.0, **attrs}
    return pruned(prune_attrs, tf.gather_nd(ids, indices), indices, shape[0], None), shape


def or_default(entries: StockEntries, attrs: Attrs, dtype: tf.DType) -> tf.Tensor:
    """Returns the weights of entries, which count as `default_weight` where there are none."""
    if entries.weights is not None:
        return entries.weights
    return tf.fill(tf.shape(entries.ids), tf.constant(attrs["default_weight"], dtype))


def shard_of(attrs: Attrs, ids: tf.Tensor, shapes: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
    """The shard of each id, int32, and the id inside it."""
    count, strategy = len(shapes), attrs["partition_strategy"]
    if count == 1:
        return tf.zeros_like(ids, tf.int32), ids
    if strategy == "mod":
        return tf.cast(ids % count, tf.int32), ids // count
    if strategy != "div":
        raise NoDefinition
    ends = tf.cast(tf.cumsum(tf.stack([shape[0] for shape in shapes])), ids.dtype)
    shard = tf.searchsorted(ends, ids, side="right")
    # An id that is in no shard is an error of the gather of the last one.
    shard = tf.clip_by_value(shard, 0, count - 1)
    firsts = tf.concat([tf.zeros([1], ids.dtype), ends[:-1]], 0)
    return shard, ids - tf.gather(firsts, shard)
