"""Gradients of the inference ops: the column is computed again by the v2 family, which has them.

Inference never gets here. But a model made for it can still be trained further.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import tensorflow as tf

from fusion.schema.columns import COLUMN_ATTRS


def single_gradient(op: tf.Operation, top_grad: tf.Tensor) -> list[Any]:
    """Gradients of FusedEmbeddingLookup's inputs: of the table and of the weights."""
    names = [*(attr.name for attr in COLUMN_ATTRS.values()), "boundaries"]
    attrs = {name: op.get_attr(name) for name in names}
    of_table, of_weights = _column_gradients(_Column(*[*op.inputs, attrs]), top_grad)
    return [of_table, None, None, None, of_weights]


def grouped_gradient(op: tf.Operation, top_grad: tf.Tensor) -> list[Any]:
    """Gradients of GroupedEmbeddingLookup's inputs: of the tables and of the weights."""
    count = op.get_attr("num_columns")
    lists = {attr.name: op.get_attr(name) for name, attr in COLUMN_ATTRS.items()}
    boundaries = iter(op.get_attr("boundaries"))
    lists["boundaries"] = [list(islice(boundaries, n)) for n in op.get_attr("boundary_counts")]
    attrs = [{name: values[i] for name, values in lists.items()} for i in range(count)]
    inputs = [op.inputs[place * count : (place + 1) * count] for place in range(5)]
    columns = [_Column(*parts) for parts in zip(*inputs, attrs, strict=True)]
    widths = [tf.shape(column.table)[1] for column in columns]
    parts = tf.split(top_grad, widths, axis=1, num=count)
    found = [_column_gradients(*pair) for pair in zip(columns, parts, strict=True)]
    of_tables, of_weights = zip(*found, strict=True)
    return [*of_tables, *[None] * (3 * count), *of_weights]


class _Column(NamedTuple):
    """The inputs of FusedEmbeddingLookup, and its attrs as TensorFlow returns them."""

    table: tf.Tensor
    ids: tf.Tensor
    entry_rows: tf.Tensor
    dense_shape: tf.Tensor
    weights: tf.Tensor
    attrs: Mapping[str, Any]


def _column_gradients(column: _Column, top_grad: tf.Tensor) -> tuple[Any, tf.Tensor | None]:
    """Gradients of the table, as slices of its distinct rows, and of the weights, if any.

    Args:
      column: the lookup, or a matrix that is taken over.
      top_grad: [B, D], the gradient of its result.
    """
    if column.attrs["form"] == b"copy":
        return top_grad, None
    from fusion import ops

    attrs = column.attrs
    weights = column.weights if attrs["use_sparse_weights"] else tf.ones([1], column.table.dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        values, indices, flags, shape, kept = _entries(column, weights)
        unique = ops.unique_with_counts_v3(input=values)
        rows = tf.gather(column.table, unique.unique_keys)
        tape.watch(rows)
        until_last = attrs["row_count"] == b"last_row"
        result = ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=[rows],
            partition_permutation=tf.zeros([1, 2], tf.int32),
            sp_dense_shape=shape,
            indices_before_unique=indices,
            is_row_empty=tf.zeros([0], tf.bool) if until_last else flags,
            unique_idxs=unique.unique_idxs,
            sp_weights_values=kept,
            **_given(attrs, "fill_empty_row", "default_id", "combiner", "max_norm"),
            **_given(attrs, "use_sparse_weights", "row_count", "divide_no_nan"),
        ).emb_vectors
    of_rows, of_weights = tape.gradient(result, [rows, weights], top_grad)
    # As those of a stock gather: the branches of a conditional have to agree.
    of_table = tf.IndexedSlices(of_rows, unique.unique_keys, tf.shape(column.table))
    return of_table, of_weights if attrs["use_sparse_weights"] else None


def _entries(column: _Column, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Values, indices, flags of empty rows, dense shape [2] and weights, pruned and filled."""
    from fusion import ops

    attrs = column.attrs
    options = _given(
        attrs, "fill_empty_row", "prune", "default_id", "num_buckets", "bucket_default"
    )
    if attrs["form"] == b"dense":
        ids = column.ids
        if attrs["boundaries"]:
            ids = tf.raw_ops.Bucketize(input=ids, boundaries=list(attrs["boundaries"]))
        dense = _given(attrs, "use_ignored_id", "ignored_id", "column_stride")
        values, indices, flags, shape = ops.prune_dense_and_fill_empty_rows(
            dense_ids=ids, Tid=tf.int64, **options, **dense
        )
        return values, indices, flags, shape, weights
    rows, count = _rows(column)
    pair, shape = tf.stack([rows, rows], axis=1), tf.stack([count, count])
    values, indices, kept, flags = ops.prune_invalid_and_fill_empty_rows(
        sp_values=column.ids,
        sp_indices=pair,
        sp_dense_shape=shape,
        sp_weights_values=weights,
        **options,
        **_given(attrs, "use_sparse_weights", "prune_sparse_weights", "default_weight"),
    )
    return values, indices, flags, shape, kept


def _rows(column: _Column) -> tuple[tf.Tensor, tf.Tensor]:
    """The row of each entry and the number of rows, int64."""
    form, entry_rows = column.attrs["form"], column.entry_rows
    if form == b"row_splits":
        lengths = entry_rows[1:] - entry_rows[:-1]
        count = tf.size(lengths, out_type=tf.int64)
        return tf.repeat(tf.range(count), lengths), count
    rows = tf.cast(entry_rows if form == b"row_ids" else entry_rows[:, 0], tf.int64)
    if column.attrs["row_count"] == b"last_row":
        return rows, tf.reduce_max(tf.concat([rows, [-1]], 0)) + 1
    return rows, tf.reshape(column.dense_shape, [-1])[0]


def _given(attrs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Some attrs, as the functions of ops take them."""
    return {name: _plain(attrs[name]) for name in names}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
