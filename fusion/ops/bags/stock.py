"""What the ops of lookups compute, by stock ops: entries, and rows that are combined of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fusion.runtime.tensorflow.dtypes import DTYPES

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


def combine_entries(
    combiner: str,
    embeddings: tf.Tensor,
    weights: tf.Tensor,
    rows: tf.Tensor,
    n_rows: tf.Tensor,
    masked: tf.Tensor | None,
) -> tf.Tensor:
    """Combines weighted entries [m, D] into `n_rows` rows as stock TensorFlow does.

    Args:
      combiner: sum, mean or sqrtn.
      embeddings: [m, D], one per entry, clipped.
      weights: [m].
      rows: integers [m], the row of each entry.
      n_rows: rows of the result.
      masked: bool [n_rows], rows that give zeros; None for none.
    """
    dtype, wide = embeddings.dtype, widened(embeddings)
    weights = tf.cast(weights, wide.dtype)[:, tf.newaxis]
    result = tf.math.unsorted_segment_sum(wide * weights, rows, n_rows)
    if combiner == "mean":
        result = tf.math.divide_no_nan(result, tf.math.unsorted_segment_sum(weights, rows, n_rows))
    elif combiner == "sqrtn":
        squares = tf.math.unsorted_segment_sum(tf.pow(weights, 2), rows, n_rows)
        result = tf.math.divide_no_nan(result, tf.sqrt(squares))
    if masked is not None:
        result = tf.where(masked[:, tf.newaxis], tf.zeros_like(result), result)
    return tf.cast(result, dtype)


def widened(values: tf.Tensor) -> tf.Tensor:
    """Half types as float32, in which the ops compute."""
    return tf.cast(values, DTYPES[values.dtype.base_dtype.name].compute)


_REDUCTIONS = {
    "sum": tf.raw_ops.SparseSegmentSumWithNumSegments,
    "mean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
    "sqrtn": tf.raw_ops.SparseSegmentSqrtNWithNumSegments,
}


class Bags(NamedTuple):
    """Entries in the order of their rows.

    Attributes:
      positions: int32 [m], the row of the matrix that each means.
      rows: [m], ascending.
      weights: [m]; None without weights.
      count: [], the number of rows.
      masked: bool [count], rows that give zeros; None for none.
    """

    positions: tf.Tensor
    rows: tf.Tensor
    weights: tf.Tensor | None
    count: tf.Tensor
    masked: tf.Tensor | None


def sorted_bags(
    positions: tf.Tensor,
    rows: tf.Tensor,
    weights: tf.Tensor | None,
    count: tf.Tensor | None,
    masked: tf.Tensor | None,
) -> Bags:
    """Returns entries in any order as bags; by default rows end with the last that has one."""
    order = tf.argsort(rows, stable=True)
    rows = tf.gather(rows, order)
    if count is None:
        count = tf.reduce_max(tf.concat([rows, [-1]], 0)) + 1
    weights = None if weights is None else tf.gather(weights, order)
    return Bags(tf.gather(positions, order), rows, weights, count, masked)


def combined(attrs: Attrs, matrix: tf.Tensor, bags: Bags) -> tf.Tensor:
    """Combines the rows of a matrix into one for each bag."""
    limit = attrs.get("max_norm", -1.0)
    if limit >= 0:
        if DTYPES[matrix.dtype.base_dtype.name].is_widened:
            raise NoDefinition
        matrix = tf.clip_by_norm(matrix, limit, axes=[1])
    if bags.weights is not None:
        if not attrs.get("divide_no_nan", True):
            raise NoDefinition
        entries = tf.gather(matrix, bags.positions)
        return combine_entries(
            attrs["combiner"], entries, bags.weights, bags.rows, bags.count, bags.masked
        )
    result = _REDUCTIONS[attrs["combiner"]](
        data=matrix, indices=bags.positions, segment_ids=bags.rows, num_segments=bags.count
    )
    if bags.masked is None:
        return result
    return tf.compat.v1.where(bags.masked, tf.zeros_like(result), result)


def entry_counts(bags: Bags) -> tf.Tensor:
    """Returns how many entries each bag has."""
    return tf.math.unsorted_segment_sum(tf.ones_like(bags.positions), bags.rows, bags.count)


def gradients(result: Any, sources: Tensors, top: Any) -> list[tf.Tensor]:
    """Returns the gradients of the sources, from that of the result, as dense tensors."""
    results = tf.gradients(result, list(sources), top)
    pairs = zip(results, sources, strict=True)
    return [tf.zeros_like(source) if g is None else tf.convert_to_tensor(g) for g, source in pairs]
