"""Gradients of the inference ops: the column is computed again by the v2 family, which has them.

Inference never gets here. But a model made for it can still be trained further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.ops.bags.stock import combine_entries
from fusion.ops.columns.stock import dense_sum, wrapped
from fusion.schema.columns import COLUMN_ATTRS, PRE_ATTRS, Column
from fusion.schema.row_formats import PLAIN


def single_gradient(op: tf.Operation, top_grad: tf.Tensor) -> list[Any]:
    """Gradients of FusedEmbeddingLookup's inputs: of the table and of the weights.

    Raises:
      LookupError: the table has packed rows.
    """
    column = Column.of({attr.name: op.get_attr(attr.name) for attr in COLUMN_ATTRS.values()})
    _refuse_packed([column])
    call = _with_own_ids(ColumnCall(*[*op.inputs, column, op.get_attr("boundaries")]))
    of_table, of_weights = column_gradients(call, top_grad)
    return [of_table, None, None, None, of_weights]


def grouped_gradient(op: tf.Operation, *top_grads: tf.Tensor) -> list[Any]:
    """Gradients of GroupedEmbeddingLookup's inputs: of the tables and of the weights."""
    columns = columns_of(op)
    parts = split_columns(op, columns, top_grads)
    gradients = [column_gradients(*pair) for pair in zip(columns, parts, strict=True)]
    of_tables, of_weights = zip(*gradients, strict=True)
    return [*of_tables, *[None] * (3 * len(columns)), *of_weights]


def columns_of(op: tf.Operation) -> list[ColumnCall]:
    """The columns of a GroupedEmbeddingLookup, or of another op whose first inputs are its.

    Raises:
      LookupError: a table has packed rows.
    """
    count = op.get_attr("num_columns")
    lists = {attr.name: op.get_attr(name) for name, attr in COLUMN_ATTRS.items()}
    columns = [Column.of({k: values[n] for k, values in lists.items()}) for n in range(count)]
    _refuse_packed(columns)
    all_boundaries = iter(op.get_attr("boundaries"))
    boundaries = [list(islice(all_boundaries, n)) for n in op.get_attr("boundary_counts")]
    inputs = [op.inputs[index * count : (index + 1) * count] for index in range(5)]
    parts = zip(*inputs, columns, boundaries, strict=True)
    return [_with_own_ids(ColumnCall(*one)) for one in parts]


def _refuse_packed(columns: Sequence[Column]) -> None:
    """Refuses columns that have no gradients."""
    for column in columns:
        if column.row_format != PLAIN:
            raise LookupError(f"gradient registry has no entry for: row_format {column.row_format}")


def split_columns(
    op: tf.Operation, columns: Sequence[ColumnCall], top_grads: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The gradient of each column's result.

    Args:
      top_grads: those of the op's outputs.
    """
    parts = list[tf.Tensor]()
    for top, indices in zip(top_grads, _columns_of_outputs(op), strict=True):
        parts += _split(top, [tf.shape(columns[index].table)[1] for index in indices])
    return parts


def _columns_of_outputs(op: tf.Operation) -> list[range]:
    """Which columns each output of an op has, or each gradient of one."""
    counts = op.get_attr("output_columns") or [op.get_attr("num_columns")]
    ends = [*accumulate(counts)]
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def _split(matrix: tf.Tensor, widths: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits a matrix into the matrices that are concatenated in it."""
    if len(widths) == 1:
        return [matrix]
    parts: list[tf.Tensor] = tf.split(matrix, widths, axis=1, num=len(widths))
    return parts


class ColumnCall(NamedTuple):
    """The inputs of FusedEmbeddingLookup, and its attrs."""

    table: tf.Tensor
    ids: tf.Tensor
    entry_rows: tf.Tensor
    dense_shape: tf.Tensor
    weights: tf.Tensor
    column: Column
    boundaries: Sequence[float]


def _with_own_ids(call: ColumnCall) -> ColumnCall:
    """Takes ids that are a column of a matrix out of it."""
    if call.column.id_column < 0:
        return call
    column = replace(call.column, id_column=-1)
    return call._replace(ids=call.ids[:, call.column.id_column], column=column)


def column_gradients(call: ColumnCall, top_grad: tf.Tensor) -> tuple[Any, tf.Tensor | None]:
    """Gradients of the table, as slices of its distinct rows, and of the weights, if any.

    Args:
      call: the lookup, or a matrix that is taken over.
      top_grad: [B, D], the gradient of its result.
    """
    column = call.column
    if column.form == "copy":
        return top_grad, None
    if column.sum_order != "segment":
        return _dense_gradients(call, top_grad)
    weights = call.weights if column.use_sparse_weights else tf.ones([1], call.table.dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        values, indices, flags, shape, entry_weights = _entries(call, weights)
        unique = ops.unique_with_counts_v3(input=values)
        rows = tf.gather(call.table, unique.unique_keys)
        tape.watch(rows)
        until_last = column.row_count == "last_row"
        result = ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=[rows],
            partition_permutation=tf.zeros([1, 2], tf.int32),
            sp_dense_shape=shape,
            indices_before_unique=indices,
            is_row_empty=tf.zeros([0], tf.bool) if until_last else flags,
            unique_idxs=unique.unique_idxs,
            sp_weights_values=entry_weights,
            **column.only("fill_empty_row", "default_id", "combiner", "max_norm"),
            **column.only("use_sparse_weights", "row_count", "divide_no_nan"),
        ).emb_vectors
    of_rows, of_weights = tape.gradient(result, [rows, weights], top_grad)
    # As those of a stock gather: the branches of a conditional have to agree.
    of_table = tf.IndexedSlices(of_rows, unique.unique_keys, tf.shape(call.table))
    return of_table, of_weights if column.use_sparse_weights else None


def _entries(call: ColumnCall, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Values, indices, flags of empty rows, dense shape [2] and weights, pruned and filled."""
    column, ids = call.column, call.ids
    options = column.only("fill_empty_row", "prune", "default_id", "num_buckets", "bucket_default")
    if column.form in ("dense", "each"):
        ids = ids if column.form == "dense" else tf.reshape(ids, [-1, 1])
        if column.wrap_negative:
            ids = wrapped(ids, call.table)
        if call.boundaries:
            ids = tf.raw_ops.Bucketize(input=ids, boundaries=list(call.boundaries))
        dense = column.only("use_ignored_id", "ignored_id", "column_stride")
        values, indices, flags, shape = ops.prune_dense_and_fill_empty_rows(
            dense_ids=ids, Tid=tf.int64, **options, **dense
        )
        return values, indices, flags, shape, weights
    rows, count = _rows(call)
    ids = wrapped(ids, call.table) if column.wrap_negative else ids
    pair, shape = tf.stack([rows, rows], axis=1), tf.stack([count, count])
    values, indices, entry_weights, flags = ops.prune_invalid_and_fill_empty_rows(
        sp_values=ids,
        sp_indices=pair,
        sp_dense_shape=shape,
        sp_weights_values=weights,
        **options,
        **column.only("use_sparse_weights", "prune_sparse_weights", "default_weight"),
    )
    return values, indices, flags, shape, entry_weights


def _dense_gradients(call: ColumnCall, top_grad: tf.Tensor) -> tuple[Any, tf.Tensor | None]:
    """Gradients of the table and of the weights, if any, of what is added as dense sums are."""
    inputs = [tf.identity(tensor) for tensor in call[:5]]
    with tf.GradientTape() as tape:
        tape.watch([inputs[0], inputs[-1]])
        result = dense_sum(call.column, inputs)
    of_table, of_weights = tape.gradient(result, [inputs[0], inputs[-1]], top_grad)
    return of_table, of_weights if call.column.use_sparse_weights else None


def _rows(call: ColumnCall) -> tuple[tf.Tensor, tf.Tensor]:
    """The row of each entry and the number of rows, int64."""
    form, entry_rows = call.column.form, call.entry_rows
    if form == "row_splits":
        lengths = entry_rows[1:] - entry_rows[:-1]
        count = tf.size(lengths, out_type=tf.int64)
        return tf.repeat(tf.range(count), lengths), count
    rows = tf.cast(entry_rows if form == "row_ids" else entry_rows[:, 0], tf.int64)
    if call.column.row_count == "last_row":
        return rows, tf.reduce_max(tf.concat([rows, [-1]], 0)) + 1
    return rows, tf.reshape(call.dense_shape, [-1])[0]


def post_gradient(op: tf.Operation, *top_grads: tf.Tensor) -> list[Any]:
    """Gradients of GroupedEmbeddingPostLookUp's inputs: of rows, matrices and weights."""
    count, copied = op.get_attr("num_columns"), op.get_attr("copied")
    emb_rows, (unique_idxs, splits, weights) = op.inputs[:count], op.inputs[count:]
    result: list[Any] = [None] * (count + 3)
    lookups, tops, counts, offsets = [], list[Any](), list[int](), list[int]()
    for top, columns in zip(top_grads, _columns_of_outputs(op), strict=True):
        matrices = emb_rows[columns.start : columns.stop]
        own = [index for index in columns if not copied[index]]
        firsts = _firsts(matrices)
        for index, first, matrix in zip(columns, firsts, matrices, strict=True):
            if copied[index]:
                result[index] = tf.slice(top, [0, first], [-1, tf.shape(matrix)[1]])
        if not own:
            continue
        lookups += own
        counts.append(len(own))
        if any(isinstance(first, tf.Tensor) for first in firsts):
            parts = _split(top, [tf.shape(matrix)[1] for matrix in matrices])
            tops.append(tf.concat([parts[index - columns.start] for index in own], 1))
            offsets += [-1] * len(own)
        else:
            tops.append(top)
            offsets += [firsts[index - columns.start] for index in own]
    if not lookups:
        return result
    rows = [emb_rows[index] for index in lookups]
    grads = ops.grouped_embedding_post_look_up_grad(
        top_grad=tops[0],
        other_top_grads=tops[1:],
        emb_rows=rows,
        unique_idxs=unique_idxs,
        row_splits=splits,
        entry_weights=weights,
        offsets=offsets,
        output_columns=counts if len(counts) > 1 else [],
        **{
            name: [op.get_attr(name)[index] for index in lookups]
            for name in ("combiners", "use_sparse_weights", "dims")
        },
    )
    for index, grad in zip(lookups, grads, strict=True):
        result[index] = grad
    if any(op.get_attr("use_sparse_weights")) and is_wanted(op, count + 2):
        parts = _parts(tops, counts, rows, offsets)
        result[count + 2] = _of_weights(op, parts, rows, lookups)
    return result


def is_wanted(op: tf.Operation, index: int) -> bool:
    """Whether the gradient of an input is needed; TensorFlow says so in eager mode only."""
    return index not in (getattr(op, "skip_input_indices", None) or ())


def _firsts(matrices: Sequence[tf.Tensor]) -> list[Any]:
    """Where each of the matrices starts if they are side by side: numbers if they are known."""
    firsts: list[Any] = [0]
    for matrix in matrices:
        width = matrix.shape[1] if matrix.shape.rank == 2 else None
        firsts.append(firsts[-1] + (tf.shape(matrix)[1] if width is None else width))
    return firsts[:-1]


def _of_weights(
    op: tf.Operation, parts: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], lookups: Sequence[int]
) -> tf.Tensor:
    """The gradient of the entries' weights, by stock ops: it is rarely needed.

    Args:
      parts: the gradient of each lookup's result.
    """
    weights = op.inputs[-1]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        results = _combined(op, op.inputs[-3:-1], rows, weights, lookups)
    return tape.gradient(results, weights, list(parts))


def _parts(
    tops: Sequence[tf.Tensor],
    counts: Sequence[int],
    rows: Sequence[tf.Tensor],
    offsets: Sequence[int],
) -> list[Any]:
    """The gradient of each lookup's result.

    Args:
      tops: the gradients of matrices.
      counts: how many lookups are in each.
      rows: those of each lookup.
      offsets: as the attr of GroupedEmbeddingPostLookUpGrad.
    """
    parts, columns = list[Any](), iter(zip(rows, offsets, strict=True))
    for top, count in zip(tops, counts, strict=True):
        end = 0
        for part, offset in islice(columns, count):
            width = tf.shape(part)[1]
            first = end if offset < 0 else offset
            parts.append(tf.slice(top, [0, first], [-1, width]))
            end = first + width
    return parts


def _combined(
    op: tf.Operation,
    bags: Sequence[tf.Tensor],
    rows: Sequence[tf.Tensor],
    weights: tf.Tensor,
    lookups: Sequence[int],
) -> list[tf.Tensor]:
    """The results of the lookups, by stock ops.

    Args:
      op: the op after the gathers, or its gradient op.
      bags: its `unique_idxs` and `row_splits`.
      rows: the rows of each lookup.
      weights: of the entries.
      lookups: the index of each among the columns of `op`.
    """
    unique_idxs, splits = bags
    combiners, weighted = op.get_attr("combiners"), op.get_attr("use_sparse_weights")
    batch = tf.shape(splits)[1] - 1
    results = []
    for number, (part, column) in enumerate(zip(rows, lookups, strict=True)):
        own = splits[number]
        numbers = tf.repeat(tf.range(batch), own[1:] - own[:-1])
        entries = tf.gather(part, unique_idxs[own[0] : own[-1]])
        if weighted[column]:
            entry_weights = weights[own[0] : own[-1]]
        else:
            entry_weights = tf.ones_like(unique_idxs[own[0] : own[-1]], weights.dtype)
        combiner = tf.compat.as_str(combiners[column])
        results.append(combine_entries(combiner, entries, entry_weights, numbers, batch, None))
    return results


def second_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of GroupedEmbeddingPostLookUpGrad's inputs, which stock has for weighted lookups.

    Raises:
      LookupError: a lookup without weights.
    """
    if not all(op.get_attr("use_sparse_weights")):
        raise LookupError(f"gradient registry has no entry for: {op.type} without weights")
    outputs, end = _columns_of_outputs(op), op.get_attr("num_columns") + 1
    tops, rows = [op.inputs[0], *op.inputs[end + 3 :]], op.inputs[1:end]
    weights, lookups = op.inputs[end + 2], range(len(rows))
    sources = [*tops, *rows, weights]
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(rows)
            results = _combined(op, op.inputs[end : end + 2], rows, weights, lookups)
        parts = _parts(tops, [len(own) for own in outputs], rows, op.get_attr("offsets"))
        first = inner.gradient(results, rows, parts)
        first = [tf.convert_to_tensor(gradient) for gradient in first]
    gradients = outer.gradient(first, sources, list(grads))
    (of_top, *of_others), of_rows = gradients[: len(tops)], gradients[len(tops) : -1]
    return [of_top, *of_rows, None, None, gradients[-1], *of_others]


def pre_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of GroupedEmbeddingPreLookUp's inputs: those of the weights."""
    return weights_gradient(op, grads[-1])


def weights_gradient(op: tf.Operation, of_entries: Any) -> list[Any]:
    """Gradients of the inputs of columns before gathers, from that of the entries' weights.

    The gradient of an entry's weight goes to the weight that it came from; those of fillers are
    dropped, and pruned entries get 0.
    """
    count = op.get_attr("num_columns")
    result: list[Any] = [None] * (4 * count)
    weighted = op.get_attr("use_sparse_weights")
    if of_entries is None or not any(weighted):
        return result
    ids, rows, shapes, weights = (
        list(op.inputs[index * count : (index + 1) * count]) for index in range(4)
    )
    # The numbers of entries, from 1, in place of the weights: fillers have 0.
    numbered = [
        tf.where(
            values > 0 if prunes else tf.ones_like(values, tf.bool),
            tf.range(1, tf.size(values) + 1),
            0,
        )
        for values, prunes in zip(weights, op.get_attr("prune_sparse_weights"), strict=True)
    ]
    attrs = {name: op.get_attr(name) for name in PRE_ATTRS}
    again = ops.grouped_embedding_pre_look_up(
        ids=ids,
        entry_rows=rows,
        dense_shapes=shapes,
        weights=[tf.cast(values, tf.float64) for values in numbered],
        **attrs | {"default_weights": [0.0] * count},
        **{name: op.get_attr(name) for name in ("Tkeys", "boundaries", "boundary_counts")},
    )
    sources = tf.cast(again.entry_weights, tf.int32) - 1
    for index in range(count):
        if weighted[index]:
            splits = again.row_splits[index]
            entries = slice(splits[0], splits[-1])
            # Negative segments are dropped.
            result[3 * count + index] = tf.math.unsorted_segment_sum(
                of_entries[entries], sources[entries], tf.size(weights[index])
            )
    return result
