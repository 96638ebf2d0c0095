"""The combination of weighted entries, by stock ops."""

from __future__ import annotations

import tensorflow as tf

from fusion.runtime.tensorflow.dtypes import DTYPES


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
