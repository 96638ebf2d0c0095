"""Bags as stock TensorFlow's dense reductions make them: what the ops for whole columns compute."""

from __future__ import annotations

import tensorflow as tf

from fusion.schema.columns import is_mean
from fusion.stock_ops.entries import Attrs, NoDefinition, Tensors


def dense_sum(attrs: Attrs, inputs: Tensors) -> tf.Tensor:
    """Returns a column whose rows are added over an axis, in sequence or by segments.

    Args:
      attrs: of FusedEmbeddingLookup, strings as `str`.
      inputs: its inputs.

    Raises:
      NoDefinition: rows are added as a segment reduction does.
    """
    if attrs["sum_order"] == "axis":
        return _over_axis(attrs, inputs)
    if attrs["sum_order"] == "sequence":
        return _in_sequence(attrs, inputs)
    if attrs["sum_order"] == "dense_segment":
        table, ids, rows, _, _ = inputs
        is_sum = attrs["combiner"] == "sum"
        reduced = tf.math.segment_sum if is_sum else tf.math.segment_mean
        return reduced(_rows(attrs, table, ids), rows)
    raise NoDefinition


def wrapped(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Counts ids < 0 from the end of the table."""
    return tf.where(ids < 0, ids + tf.shape(table, out_type=ids.dtype)[0], ids)


def _rows(attrs: Attrs, table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, wrapped(ids, table) if attrs["wrap_negative"] else ids)


def _over_axis(attrs: Attrs, inputs: Tensors) -> tf.Tensor:
    table, ids, lengths, _, weights = inputs
    width = tf.shape(ids)[-1]
    ids = tf.reshape(ids, tf.stack([tf.size(ids) // tf.maximum(width, 1), width]))
    counts = tf.ones_like(ids, tf.bool)
    if attrs["use_ignored_id"]:
        counts = tf.not_equal(ids, tf.constant(attrs["ignored_id"], ids.dtype))
    if attrs["form"] == "lengths":
        lengths = tf.reshape(lengths, [-1, 1])
        counts = tf.logical_and(counts, tf.range(tf.cast(width, lengths.dtype)) < lengths)
    counts = counts[:, :, tf.newaxis]
    numbers = tf.cast(counts, table.dtype)
    if attrs["use_sparse_weights"]:
        numbers = tf.reshape(weights, tf.stack([-1, width, 1]))
    rows = _masked(attrs, _rows(attrs, table, ids), counts, numbers)
    if attrs["combiner"] == "max":
        return tf.reduce_max(rows, 1)
    if is_mean(attrs):
        return tf.reduce_mean(rows, 1)
    total = tf.reduce_sum(rows, 1)
    if attrs["combiner"] == "sum":
        return total
    if attrs["form"] == "lengths":
        divisor = tf.cast(lengths, table.dtype)
    elif attrs["combiner"] == "mean":
        divisor = tf.reduce_sum(numbers, 1)
    else:
        divisor = tf.reduce_sum(tf.square(numbers), 1)
    if attrs["combiner"] == "sqrtn":
        divisor = tf.sqrt(divisor)
    epsilon = tf.constant(attrs["divisor_epsilon"], table.dtype)
    if attrs["epsilon_input"]:
        epsilon = tf.reshape(weights, [])
    return _divided(attrs, total, divisor + epsilon)


def _masked(attrs: Attrs, rows: tf.Tensor, counts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """What is added up of rows [B, L, D].

    Args:
      attrs: of the column.
      rows: of all ids.
      counts: bool [B, L, 1], which of these are entries.
      numbers: the same as numbers, or the weights.
    """
    if attrs["use_sparse_weights"] or attrs["mask_product"]:
        return rows * numbers
    if attrs["mask_penalty"]:
        return rows - (1 - numbers) * tf.constant(attrs["mask_penalty"], rows.dtype)
    if attrs["use_ignored_id"] or attrs["form"] == "lengths":
        return tf.where(counts, rows, tf.zeros([], rows.dtype))
    return rows


def _in_sequence(attrs: Attrs, inputs: Tensors) -> tf.Tensor:
    table, ids, splits, _, weights = inputs
    count = tf.size(splits) - 1
    rows = tf.repeat(tf.range(count), splits[1:] - splits[:-1])
    values = _rows(attrs, table, ids)
    if attrs["combiner"] == "max":
        return tf.math.unsorted_segment_max(values, rows, count)
    numbers = tf.ones([tf.size(ids), 1], table.dtype)
    if attrs["use_sparse_weights"]:
        numbers = weights[:, tf.newaxis]
        values *= numbers
    total = tf.math.unsorted_segment_sum(values, rows, count)
    if attrs["combiner"] == "sum":
        return total
    if attrs["combiner"] == "sqrtn":
        numbers = tf.square(numbers)
    divisor = tf.math.unsorted_segment_sum(numbers, rows, count)
    if attrs["combiner"] == "sqrtn":
        divisor = tf.sqrt(divisor)
    return _divided(attrs, total, divisor)


def _divided(attrs: Attrs, total: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    if attrs["divide_no_nan"]:
        return tf.math.divide_no_nan(total, divisor)
    return total / divisor
