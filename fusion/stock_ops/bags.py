"""The combination of rows by stock ops, as the fused ops behind a gather have it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.stock_ops.combine import combine_entries
from fusion.stock_ops.entries import Attrs, NoDefinition, Tensors

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
