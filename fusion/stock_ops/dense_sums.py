"""Bags as stock TensorFlow's dense reductions make them: what the ops for whole columns compute."""

from __future__ import annotations

import tensorflow as tf

from fusion.schema.columns import Column
from fusion.stock_ops.entries import NoDefinition, Tensors


def dense_sum(column: Column, inputs: Tensors) -> tf.Tensor:
    """Returns a column whose rows are added over an axis, in sequence or by segments.

    Args:
      inputs: those of FusedEmbeddingLookup.

    Raises:
      NoDefinition: rows are added as a segment reduction does.
    """
    if column.sum_order == "axis":
        return _over_axis(column, inputs)
    if column.sum_order == "sequence":
        return _in_sequence(column, inputs)
    if column.sum_order == "dense_segment":
        table, ids, rows, _, _ = inputs
        is_sum = column.combiner == "sum"
        reduced = tf.math.segment_sum if is_sum else tf.math.segment_mean
        return reduced(_rows(column, table, ids), rows)
    raise NoDefinition


def wrapped(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Counts ids < 0 from the end of the table."""
    return tf.where(ids < 0, ids + tf.shape(table, out_type=ids.dtype)[0], ids)


def _rows(column: Column, table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, wrapped(ids, table) if column.wrap_negative else ids)


def _over_axis(column: Column, inputs: Tensors) -> tf.Tensor:
    table, ids, lengths, _, weights = inputs
    width = tf.shape(ids)[-1]
    ids = tf.reshape(ids, tf.stack([tf.size(ids) // tf.maximum(width, 1), width]))
    counts = tf.ones_like(ids, tf.bool)
    if column.use_ignored_id:
        counts = tf.not_equal(ids, tf.constant(column.ignored_id, ids.dtype))
    if column.form == "lengths":
        lengths = tf.reshape(lengths, [-1, 1])
        counts = tf.logical_and(counts, tf.range(tf.cast(width, lengths.dtype)) < lengths)
    counts = counts[:, :, tf.newaxis]
    numbers = tf.cast(counts, table.dtype)
    if column.use_sparse_weights:
        numbers = tf.reshape(weights, tf.stack([-1, width, 1]))
    rows = _masked(column, _rows(column, table, ids), counts, numbers)
    if column.combiner == "max":
        return tf.reduce_max(rows, 1)
    if column.is_mean:
        return tf.reduce_mean(rows, 1)
    total = tf.reduce_sum(rows, 1)
    if column.combiner == "sum":
        return total
    if column.form == "lengths":
        divisor = tf.cast(lengths, table.dtype)
    elif column.combiner == "mean":
        divisor = tf.reduce_sum(numbers, 1)
    else:
        divisor = tf.reduce_sum(tf.square(numbers), 1)
    if column.combiner == "sqrtn":
        divisor = tf.sqrt(divisor)
    epsilon = tf.constant(column.divisor_epsilon, table.dtype)
    if column.epsilon_input:
        epsilon = tf.reshape(weights, [])
    return _divided(column, total, divisor + epsilon)


def _masked(column: Column, rows: tf.Tensor, counts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """What is added up of rows [B, L, D].

    Args:
      rows: of all ids.
      counts: bool [B, L, 1], which of these are entries.
      numbers: the same as numbers, or the weights.
    """
    if column.use_sparse_weights or column.mask_product:
        return rows * numbers
    if column.mask_penalty:
        return rows - (1 - numbers) * tf.constant(column.mask_penalty, rows.dtype)
    if column.use_ignored_id or column.form == "lengths":
        return tf.where(counts, rows, tf.zeros([], rows.dtype))
    return rows


def _in_sequence(column: Column, inputs: Tensors) -> tf.Tensor:
    table, ids, splits, _, weights = inputs
    count = tf.size(splits) - 1
    rows = tf.repeat(tf.range(count), splits[1:] - splits[:-1])
    values = _rows(column, table, ids)
    if column.combiner == "max":
        return tf.math.unsorted_segment_max(values, rows, count)
    numbers = tf.ones([tf.size(ids), 1], table.dtype)
    if column.use_sparse_weights:
        numbers = weights[:, tf.newaxis]
        values *= numbers
    total = tf.math.unsorted_segment_sum(values, rows, count)
    if column.combiner == "sum":
        return total
    if column.combiner == "sqrtn":
        numbers = tf.square(numbers)
    divisor = tf.math.unsorted_segment_sum(numbers, rows, count)
    if column.combiner == "sqrtn":
        divisor = tf.sqrt(divisor)
    return _divided(column, total, divisor)


def _divided(column: Column, total: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    if column.divide_no_nan:
        return tf.math.divide_no_nan(total, divisor)
    return total / divisor
