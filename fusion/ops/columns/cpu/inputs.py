"""The inputs of a column of an op for whole columns: its tensors, checked.

An op behind gathers has rows of each column and, for all of them, which entries mean which rows:
tensors that its columns *share*.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_layout import COPY, DENSE, INDICES, ROW_SPLITS, ColumnAttrs, ColumnInputs
from fusion.cpu_ops.elements import integer_at, overflows, rows_until, value_bytes
from fusion.ops.columns.cpu.layout import POST, PRE, ColumnsState
from fusion.runtime.layout import Address, Int64, Layout, Words, fields
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_get_code,
    tf_get_input,
    tf_num_dims,
    tf_tensor_data,
)
from fusion.schema.attributes import LAST_ROW
from fusion.schema.columns import MAX_ZEROS

_TENSORS = 5

#: The inputs of a column, in their order; an op before gathers has no tables.
_TABLE_INPUT, _IDS_INPUT, _ROWS_INPUT, _SHAPE_INPUT, _WEIGHTS_INPUT = range(_TENSORS)

#: More than any id or table.
_NO_TABLE_ROWS = 2**63 - 1


class SharedInputs(Layout):
    """What the columns of an op behind gathers share."""

    unique_idxs: Address  # int32
    entry_count: Int64
    row_splits: Address  # int32 [lookups, split_count]
    split_count: Int64
    entry_weights: Address
    tensors: Words = fields(3)  # TF_Tensor*, to be released; 0 for none


_SHARED = SharedInputs.SIZE - SharedInputs.tensors


@jit
def input_tensor(ctx: int, index: int, slot: Words, status: int) -> int:
    """Input number `index`, also stored at the address `slot`, by which it is to be released."""
    tf_get_input(ctx, np.int32(index), slot, status)
    if tf_get_code(status) != 0:
        slot[0] = 0
    return slot[0]


@jit
def _take(ctx: int, state: ColumnsState, index: int, which: int, source: int, status: int) -> int:
    slot = as_words(source + 8 * (ColumnInputs.tensors + which))
    list_index = which - 1 if state.role == PRE else which
    return input_tensor(ctx, list_index * state.column_count + index, slot, status)


@jit
def _release(tensors: Words, count: int) -> None:
    for k in range(count):
        tensor = tensors[k]
        if tensor != 0:
            tf_delete_tensor(tensor)
            tensors[k] = 0


@jit
def release(source: int) -> None:
    """Releases the tensors of a source."""
    _release(as_words(source + 8 * ColumnInputs.tensors), _TENSORS)


@jit
def take_shared(
    frame: op.Frame, ctx: int, first: int, shared: SharedInputs, lookups: int, weighted: bool
) -> None:
    """Fills `SharedInputs`; to be released whatever the result is.

    Args:
      first: the number of the first of the three inputs.
      lookups: how many columns have row splits.
      weighted: whether any has weights.
    """
    status = frame.status
    clear(shared)
    slots = shared.tensors
    unique_idxs = input_tensor(ctx, first, slots, status)
    op.check(frame)
    splits = input_tensor(ctx, first + 1, as_words(slots + 8), status)
    op.check(frame)
    weights = input_tensor(ctx, first + 2, as_words(slots + 16), status)
    op.check(frame)
    if op.failed(frame):
        return
    if tf_num_dims(unique_idxs) != 1 or tf_num_dims(splits) != 2 or tf_num_dims(weights) != 1:
        text = "unique_idxs, row_splits, entry_weights have ranks %lld, %lld, %lld, not 1, 2, 1"
        ranks = tf_num_dims(unique_idxs), tf_num_dims(splits), tf_num_dims(weights)
        op.fail(frame, op.INVALID_ARGUMENT, text, int64(ranks[0]), int64(ranks[1]), int64(ranks[2]))
        return
    rows, count = tf_dim(splits, np.int32(0)), tf_dim(unique_idxs, np.int32(0))
    if rows != lookups or tf_dim(splits, np.int32(1)) < 1:
        text = "row_splits are [%lld, %lld], but there are %lld lookups, of at least one split"
        op.fail(frame, op.INVALID_ARGUMENT, text, rows, tf_dim(splits, np.int32(1)), lookups)
        return
    if weighted and tf_dim(weights, np.int32(0)) != count:
        text = "there are %lld entry_weights for %lld unique_idxs"
        op.fail(frame, op.INVALID_ARGUMENT, text, tf_dim(weights, np.int32(0)), count)
        return
    shared.unique_idxs = tf_tensor_data(unique_idxs)
    shared.entry_count = count
    shared.row_splits = tf_tensor_data(splits)
    shared.split_count = tf_dim(splits, np.int32(1))
    shared.entry_weights = tf_tensor_data(weights)


@jit
def release_shared(shared: int) -> None:
    """Releases what columns share."""
    _release(as_words(shared + 8 * SharedInputs.tensors), _SHARED)


@jit
def _has_rank(frame: int, index: int, tensor: int, rank: int) -> bool:
    if tensor != 0 and tf_num_dims(tensor) == rank:
        return True
    if frame != 0 and tensor != 0:
        text = ": an input has rank %lld where %lld is needed"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(tf_num_dims(tensor)), rank)
    return False


@jit
def _take_table(
    frame: int, ctx: int, state: ColumnsState, index: int, source: ColumnInputs, status: int
) -> bool:
    column = state.columns[index]
    table = _take(ctx, state, index, _TABLE_INPUT, source, status)
    if not _has_rank(frame, index, table, int64(2)):
        return False
    width, dim = tf_dim(table, np.int32(1)), column.dim
    words = column.row_words
    if words != 0:
        if width != words:
            if frame != 0:
                text = ": the table has rows of %lld words, but packed ones of dim %lld have %lld"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, index, width, dim, words)
            return False
    elif dim >= 0 and dim != width:
        if frame != 0:
            text = ": the table has rows of %lld elements, but dim is %lld"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, width, dim)
        return False
    source.table = tf_tensor_data(table)
    source.table_rows = tf_dim(table, np.int32(0))
    source.table_dim = width if words == 0 else dim
    source.table_dtype = state.dtype_code
    source.row_bytes = width * state.item_bytes
    zeros = state.zeros_offset
    has_zeros = zeros != 0 and 0 <= column.dim <= MAX_ZEROS
    source.zeros = state + 8 * zeros if has_zeros else int64(0)
    return True


@jit
def _take_listed(column: ColumnAttrs, source: ColumnInputs, shared: SharedInputs) -> None:
    """Takes the part of what columns share that is the column's own."""
    splits = shared.split_count
    source.ids = shared.unique_idxs
    source.id_count = shared.entry_count
    source.entry_rows = shared.row_splits + 4 * splits * column.lookup_index
    source.entry_row_stride = 1
    source.batch_size = splits - 1
    source.weights = shared.entry_weights


@jit
def _take_column(
    frame: int, column: ColumnAttrs, index: int, ids: int, source: ColumnInputs
) -> bool:
    """Takes a column of a matrix of ids, each of which is a row."""
    if not _has_rank(frame, index, ids, int64(2)):
        return False
    number, columns = column.id_column, tf_dim(ids, np.int32(1))
    if number >= columns:
        if frame != 0:
            text = ": id_column is %lld, but ids have %lld columns"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, number, columns)
        return False
    source.batch_size = tf_dim(ids, np.int32(0))
    source.ids = tf_tensor_data(ids) + number * value_bytes(column.ids_dtype)
    source.id_count = source.batch_size
    source.id_columns = 1
    source.id_gap = columns - 1
    return True


@jit
def _take_each(ids: int, source: ColumnInputs) -> bool:
    """Takes ids of any shape, each of which is a row."""
    if ids == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(ids)):
        count *= tf_dim(ids, np.int32(k))
    source.batch_size = count
    source.ids = tf_tensor_data(ids)
    source.id_count = count
    source.id_columns = 1
    return True


@jit
def _take_dense_weights(
    frame: int, index: int, weights: int, source: ColumnInputs, rows: int, width: int
) -> bool:
    """Takes weights of any shape, one for each element of each row, or of all rows alike."""
    if weights == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(weights)):
        count *= tf_dim(weights, np.int32(k))
    if count not in (rows * width, width):
        if frame != 0:
            text = ": there are %lld weights for %lld rows of %lld ids"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, count, rows, width)
        return False
    source.weight_step = width if count == rows * width else int64(0)
    source.weights = tf_tensor_data(weights)
    return True


@jit
def _take_epsilon(frame: int, index: int, epsilon: int, source: ColumnInputs) -> bool:
    """Takes a tensor of one element."""
    if epsilon == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(epsilon)):
        count *= tf_dim(epsilon, np.int32(k))
    if count != 1:
        if frame != 0:
            text = ": weights have %lld elements, not the one that is added to divisors"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, count)
        return False
    source.weights = tf_tensor_data(epsilon)
    return True


@jit
def _take_lengths(
    frame: int, ctx: int, state: ColumnsState, index: int, source: ColumnInputs, status: int
) -> bool:
    """Takes the number of entries of each row."""
    lengths = _take(ctx, state, index, _ROWS_INPUT, source, status)
    if lengths == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(lengths)):
        count *= tf_dim(lengths, np.int32(k))
    if count != source.batch_size:
        if frame != 0:
            text = ": there are %lld lengths for %lld rows"
            rows = source.batch_size
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, count, rows)
        return False
    source.entry_rows = tf_tensor_data(lengths)
    return True


@jit
def _take_ids(
    frame: int, ctx: int, state: ColumnsState, index: int, source: ColumnInputs, status: int
) -> bool:
    column = state.columns[index]
    is_dense = column.id_format == DENSE
    ids = _take(ctx, state, index, _IDS_INPUT, source, status)
    if column.id_column >= 0:
        return _take_column(frame, column, index, ids, source)
    if column.is_each != 0:
        return _take_each(ids, source)
    rank = int64(max(tf_num_dims(ids), np.int32(2))) if is_dense and ids != 0 else int64(1)
    if not _has_rank(frame, index, ids, rank):
        return False
    count, width = tf_dim(ids, np.int32(0)), int64(1)
    if is_dense:
        for k in range(int64(1), rank - 1):
            count *= tf_dim(ids, np.int32(k))
        width = tf_dim(ids, np.int32(rank - 1))
        source.batch_size = count
    source.ids = tf_tensor_data(ids)
    source.id_count = count * width
    source.id_columns = width
    has_epsilon = column.epsilon_input != 0
    if column.use_sparse_weights == 0 and not has_epsilon:
        return True
    weights = _take(ctx, state, index, _WEIGHTS_INPUT, source, status)
    if has_epsilon:
        return _take_epsilon(frame, index, weights, source)
    if is_dense:
        return _take_dense_weights(frame, index, weights, source, count, width)
    if not _has_rank(frame, index, weights, int64(1)):
        return False
    if tf_dim(weights, np.int32(0)) != count:
        if frame != 0:
            text = ": there are %lld weights for %lld ids"
            op.fail_column(
                frame, op.INVALID_ARGUMENT, text, index, tf_dim(weights, np.int32(0)), count
            )
        return False
    source.weights = tf_tensor_data(weights)
    return True


@jit
def _take_rows(
    frame: int, ctx: int, state: ColumnsState, index: int, source: ColumnInputs, status: int
) -> bool:
    column = state.columns[index]
    form = column.id_format
    rows = _take(ctx, state, index, _ROWS_INPUT, source, status)
    if not _has_rank(frame, index, rows, int64(2) if form == INDICES else int64(1)):
        return False
    count, step = tf_dim(rows, np.int32(0)), int64(1)
    if form == INDICES:
        step = tf_dim(rows, np.int32(1))
        if step < 1:
            if frame != 0:
                text = ": entry_rows have no column"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, index)
            return False
    source.entry_rows = tf_tensor_data(rows)
    source.entry_row_stride = step
    if form == ROW_SPLITS:
        if count < 1:
            if frame != 0:
                op.fail_column(frame, op.INVALID_ARGUMENT, ": there are no row splits", index)
            return False
        source.batch_size = count - 1
    elif count != source.id_count:
        if frame != 0:
            text = ": there are %lld entry_rows for %lld ids"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, count, source.id_count)
        return False
    return True


@jit
def _take_batch(
    frame: int, ctx: int, state: ColumnsState, index: int, source: ColumnInputs, status: int
) -> bool:
    """Finds the number of rows of a column whose entries have row numbers."""
    column = state.columns[index]
    if column.row_count == LAST_ROW and source.id_count > 0 and state.launcher != 0:
        source.batch_size = -1  # the host cannot read the last entry's row
        return True
    if column.row_count == LAST_ROW:
        entries, last = source.id_count, int64(-1)
        if entries > 0:
            last_index = (entries - 1) * source.entry_row_stride
            last = integer_at(source.entry_rows, last_index, column.rows_dtype)
        source.batch_size = rows_until(last)
        return True
    shape = _take(ctx, state, index, _SHAPE_INPUT, source, status)
    if shape == 0:
        return False
    rank = tf_num_dims(shape)
    if rank > 1 or (rank == 1 and tf_dim(shape, np.int32(0)) < 1):
        if frame != 0:
            text = ": dense_shape must be a number or a vector of one and more"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index)
        return False
    sizes, count = (
        as_words(tf_tensor_data(shape)),
        tf_dim(shape, np.int32(0)) if rank == 1 else int64(1),
    )
    if column.id_format == INDICES and count > 1 and count != source.entry_row_stride:
        if frame != 0:
            text = ": dense_shape has %lld sizes, but entry_rows have %lld columns"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, count, source.entry_row_stride)
        return False
    if not _is_shape(frame, index, sizes, count):
        return False
    source.batch_size = sizes[0]
    return True


@jit
def _is_shape(frame: int, index: int, sizes: Words, count: int) -> bool:
    """Whether sizes are those of a tensor: stock's SparseReshape, which the op stands for, asks."""
    elements = int64(1)
    for k in range(count):
        size = sizes[k]
        if size < 0:
            if frame != 0:
                text = ": dense_shape must not be negative, but dense_shape[%lld] = %lld"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, index, k, size)
            return False
        if overflows(elements, size):
            if frame != 0:
                text = ": dense_shape has 2**63 elements or more: %lld times %lld"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, index, elements, size)
            return False
        elements *= size
    return True


@jit
def list_as_they_are(source: ColumnInputs) -> None:
    """Has ids listed as they are: as addresses of rows of one byte from 0 on."""
    source.table = 0
    source.row_bytes = 1
    source.table_rows = _NO_TABLE_ROWS


@jit
def take_source(
    frame: int,
    ctx: int,
    state: int,
    index: int,
    source: ColumnInputs,
    status: int,
    shared: SharedInputs,
) -> bool:
    """Fills `ColumnInputs` of column `index`; to be released whatever the result is.

    On a GPU the rows are -1 where they depend on what the host cannot read.

    Args:
      shared: what the columns of an op behind gathers share.

    Returns:
      Whether it is sound; if not, `frame` says why, unless it is 0.
    """
    clear(source)
    column, role = (
        as_record(ColumnsState, state).columns[index],
        as_record(ColumnsState, state).role,
    )
    if role == PRE:
        list_as_they_are(source)
        source.table_dtype = as_record(ColumnsState, state).dtype_code
    elif not _take_table(frame, ctx, as_record(ColumnsState, state), index, source, status):
        return False
    source.boundaries = (
        state + 8 * as_record(ColumnsState, state).boundaries_offset + 4 * column.first_boundary
    )
    form = column.id_format
    if form == COPY:
        source.batch_size = source.table_rows
        return True
    if role == POST:
        _take_listed(column, source, shared)
        return True
    if not _take_ids(frame, ctx, as_record(ColumnsState, state), index, source, status):
        return False
    if form == DENSE and column.has_lengths != 0:
        return _take_lengths(frame, ctx, as_record(ColumnsState, state), index, source, status)
    if form == DENSE:
        return True
    if not _take_rows(frame, ctx, as_record(ColumnsState, state), index, source, status):
        return False
    if form == ROW_SPLITS:
        return True
    return _take_batch(
        frame, ctx, as_record(ColumnsState, as_record(op.State, state)), index, source, status
    )
