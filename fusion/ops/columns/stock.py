"""What the ops for whole columns compute, by stock ops."""

from __future__ import annotations

from itertools import accumulate, islice

import tensorflow as tf

from fusion.ops.bags.stock import (
    Attrs,
    Bags,
    NoDefinition,
    StockEntries,
    Tensors,
    combined,
    gradients,
    or_default,
    pruned,
    pruned_matrix,
)
from fusion.schema.columns import PRE_ATTRS, Column


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
            indices = tf.where(tf.logical_not(tf.gather(entries.is_row_empty, rows)))[:, 0]
            rows, own_positions = tf.gather(rows, indices), tf.gather(own_positions, indices)
            own_weights = tf.gather(own_weights, indices)
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
    remaining = iter(results)
    return [_joined([*islice(remaining, count)]) for count in _output_columns(attrs)]


def _output_columns(attrs: Attrs) -> list[int]:
    """How many columns each output of an op has, or each gradient of one."""
    return attrs["output_columns"] or [attrs["num_columns"]]


def _joined(matrices: list[tf.Tensor]) -> tf.Tensor:
    """Matrices concatenated by columns."""
    return tf.concat(matrices, 1) if len(matrices) > 1 else matrices[0]


def grouped_post_grad(attrs: Attrs, inputs: Tensors) -> Tensors:
    """GroupedEmbeddingPostLookUpGrad."""
    counts, end = _output_columns(attrs), attrs["num_columns"] + 1
    matrices, (positions, splits, weights) = inputs[1:end], inputs[end : end + 3]
    top_counts = zip((inputs[0], *inputs[end + 3 :]), counts, strict=True)
    tops = [top for top, count in top_counts for _ in range(count)]
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
    sizes = tf.shape(ids)
    count, width = tf.reduce_prod(sizes[:-1]), sizes[-1]
    ids = tf.reshape(ids, tf.stack([count, width]))
    counts = tf.ones_like(ids, tf.bool)
    if column.use_ignored_id:
        counts = tf.not_equal(ids, tf.constant(column.ignored_id, ids.dtype))
    if column.form == "lengths":
        lengths = tf.reshape(lengths, [-1, 1])
        counts = tf.logical_and(counts, tf.range(tf.cast(width, lengths.dtype)) < lengths)
    counts = counts[:, :, tf.newaxis]
    numbers = tf.cast(counts, table.dtype)
    if column.use_sparse_weights:
        numbers = tf.reshape(weights, tf.stack([count, width, 1]))
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
    """The terms that are added up: rows [B, L, D] after the mask.

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
