"""What the fused ops for training in groups compute: by stock ops."""

from __future__ import annotations

from itertools import accumulate, islice

import tensorflow as tf

from fusion.schema.columns import PRE_ATTRS
from fusion.stock_ops.bags import Bags, combined, gradients
from fusion.stock_ops.entries import (
    Attrs,
    NoDefinition,
    StockEntries,
    Tensors,
    or_default,
    pruned,
    pruned_matrix,
)


def grouped_pre(attrs: Attrs, inputs: Tensors) -> Tensors:
    """GroupedEmbeddingPreLookUp."""
    number = attrs["num_columns"]
    columns = [inputs[index::number] for index in range(number)]
    names = {name: attr.name for name, attr in PRE_ATTRS.items()}
    boundaries = iter(attrs["boundaries"])
    keys, positions, splits, weights, end = [], [], [], [], tf.constant(0)
    for index, column in enumerate(columns):
        own = {name: attrs[key][index] for key, name in names.items()}
        own["boundaries"] = [*islice(boundaries, attrs["boundary_counts"][index])]
        entries, count = _column_entries(own, column, attrs["Tkeys"][index])
        order = tf.argsort(entries.rows, stable=True)
        ids, rows = tf.gather(entries.ids, order), tf.gather(entries.rows, order)
        unique, own_positions = tf.unique(ids)
        if own["sort_key"]:
            ascending = tf.argsort(unique)
            unique = tf.gather(unique, ascending)
            own_positions = tf.gather(tf.argsort(ascending), own_positions)
        own_weights = tf.gather(or_default(entries, own, attrs["T"]), order)
        if own["default_id"] < 0:
            # Rows that were filled have the id, but no entry.
            left = tf.where(tf.logical_not(tf.gather(entries.is_row_empty, rows)))[:, 0]
            rows, own_positions = tf.gather(rows, left), tf.gather(own_positions, left)
            own_weights = tf.gather(own_weights, left)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(own_positions), rows, count)
        splits.append(end + tf.concat([[0], tf.cumsum(lengths)], 0))
        end += tf.size(rows, tf.int32)
        weights.append(own_weights)
        keys.append(unique)
        positions.append(own_positions)
    joined = tf.concat(weights, 0) if any(attrs["use_sparse_weights"]) else None
    joined = tf.zeros([0], attrs["T"]) if joined is None else joined
    return *keys, tf.concat(positions, 0), tf.stack(splits), joined


def _column_entries(own: Attrs, inputs: Tensors, dtype: tf.DType) -> tuple[StockEntries, tf.Tensor]:
    """Returns the entries of a column, and the number of rows."""
    ids, entry_rows, dense_shape, weights = inputs
    form = own["form"]
    if own["boundaries"]:
        ids = tf.raw_ops.Bucketize(input=ids, boundaries=own["boundaries"])
    if form in ("dense", "each"):
        rows = tf.shape(ids)[0] if form == "dense" else tf.size(ids)
        matrix = tf.reshape(ids, tf.stack([rows, -1 if form == "dense" else 1]))
        entries, shape = pruned_matrix(own, matrix, dtype)
        return entries, shape[0]
    ids = tf.cast(ids, dtype)
    if form == "row_splits":
        lengths = entry_rows[1:] - entry_rows[:-1]
        count = tf.size(lengths, out_type=tf.int64)
        rows = tf.repeat(tf.range(count), lengths)
    else:
        rows = tf.cast(entry_rows if form == "row_ids" else entry_rows[:, 0], tf.int64)
        if own["row_count"] == "last_row":
            raise NoDefinition
        count = tf.reshape(dense_shape, [-1])[0]
    used = weights if own["use_sparse_weights"] else None
    return pruned(own, ids, tf.stack([rows, rows], 1), count, used), count


def _grouped_bags(
    weighted: bool, number: int, positions: tf.Tensor, splits: tf.Tensor, weights: tf.Tensor
) -> Bags:
    """The bags of one lookup, whose entries are divided by `splits` [lookups, B + 1]."""
    own = splits[number]
    count = tf.shape(splits)[1] - 1
    rows = tf.repeat(tf.range(count), own[1:] - own[:-1])
    used_weights = weights[own[0] : own[-1]] if weighted else None
    return Bags(positions[own[0] : own[-1]], rows, used_weights, count, None)


def grouped_post(attrs: Attrs, inputs: Tensors) -> Tensors:
    """GroupedEmbeddingPostLookUp."""
    *matrices, positions, splits, weights = inputs
    results, number = [], 0
    for index, matrix in enumerate(matrices):
        if attrs["copied"][index]:
            results.append(matrix)
            continue
        weighted = attrs["use_sparse_weights"][index]
        bags = _grouped_bags(weighted, number, positions, splits, weights)
        own = {"combiner": attrs["combiners"][index]}
        own["divide_no_nan"] = attrs["divide_no_nans"][index]
        results.append(combined(own, matrix, bags))
        number += 1
    left = iter(results)
    return [_joined([*islice(left, count)]) for count in _output_columns(attrs)]


def _output_columns(attrs: Attrs) -> list[int]:
    """How many columns each output of an op has, or each gradient of one."""
    return attrs["output_columns"] or [attrs["num_columns"]]


def _joined(matrices: list[tf.Tensor]) -> tf.Tensor:
    """Matrices side by side."""
    return tf.concat(matrices, 1) if len(matrices) > 1 else matrices[0]


def grouped_post_grad(attrs: Attrs, inputs: Tensors) -> Tensors:
    """GroupedEmbeddingPostLookUpGrad."""
    counts, end = _output_columns(attrs), attrs["num_columns"] + 1
    matrices, (positions, splits, weights) = inputs[1:end], inputs[end : end + 3]
    given = zip((inputs[0], *inputs[end + 3 :]), counts, strict=True)
    tops = [top for top, count in given for _ in range(count)]
    results, end = list[tf.Tensor](), tf.constant(0)
    for number, (matrix, top) in enumerate(zip(matrices, tops, strict=True)):
        if number in accumulate(counts):
            end = tf.constant(0)
        weighted, offset = attrs["use_sparse_weights"][number], attrs["offsets"][number]
        bags = _grouped_bags(weighted, number, positions, splits, weights)
        first, width = end if offset < 0 else tf.constant(offset), tf.shape(matrix)[1]
        end = first + width
        part = tf.slice(top, tf.stack([0, first]), tf.stack([bags.count, width]))
        result = combined({"combiner": attrs["combiners"][number]}, matrix, bags)
        (gradient,) = gradients(result, [matrix], part)
        # For no entries stock's gradient is whatever lies in memory.
        results.append(tf.where(tf.size(bags.positions) > 0, gradient, tf.zeros_like(gradient)))
    return results
