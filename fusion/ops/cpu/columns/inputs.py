"""The inputs of a column of an op for whole columns: its tensors, checked.

An op behind gathers has rows of each column and, for all of them, which entries mean which rows:
tensors that its columns *share*.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_layout import (
    COPY,
    DENSE,
    INDICES,
    MOST_ZEROS,
    ROW_SPLITS,
    ColumnAttrs,
    ColumnInputs,
)
from fusion.cpu_ops.elements import integer_at, overflows, rows_until
from fusion.ops.cpu.columns.layout import POST, PRE, ColumnsState
from fusion.runtime.layout import Address, Fields, Int64, Layout, fields
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail, fail_column
from fusion.runtime.native.frame import check, failed, status_of
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_get_code,
    tf_get_input,
    tf_num_dims,
    tf_tensor_data,
)
from fusion.runtime.tensorflow.layout import State

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
    tensors: Fields = fields(3)  # TF_Tensor*, to be released; 0 for none


_SHARED = SharedInputs.SIZE - SharedInputs.tensors


@jit
def column_at(state: int, index: int) -> int:
    """The address of a column's attrs."""
    return state + 8 * (ColumnsState.columns + index * ColumnAttrs.SIZE)


@jit
def state_field(state: int, field: int) -> int:
    """A field of a kernel's state."""
    return load(state, field)


@jit
def input_tensor(ctx: int, index: int, slot: int, status: int) -> int:
    """Input number `index`, also stored at the address `slot`, by which it is to be released."""
    tf_get_input(ctx, np.int32(index), slot, status)
    if tf_get_code(status) != 0:
        store(slot, 0, 0)
    return load(slot, 0)


@jit
def _take(ctx: int, state: int, index: int, which: int, source: int, status: int) -> int:
    slot = source + 8 * (ColumnInputs.tensors + which)
    list_index = which - 1 if state_field(state, ColumnsState.role) == PRE else which
    return input_tensor(
        ctx, list_index * state_field(state, ColumnsState.column_count) + index, slot, status
    )


@jit
def _release(tensors: int, count: int) -> None:
    for k in range(count):
        tensor = load(tensors, k)
        if tensor != 0:
            tf_delete_tensor(tensor)
            store(tensors, k, 0)


@jit
def release(source: int) -> None:
    """Releases the tensors of a source."""
    _release(source + 8 * ColumnInputs.tensors, _TENSORS)


@jit
def take_shared(
    frame: int, ctx: int, first: int, shared: int, lookups: int, weighted: bool
) -> None:
    """Fills `SharedInputs`; to be released whatever the result is.

    Args:
      first: the number of the first of the three inputs.
      lookups: how many columns have row splits.
      weighted: whether any has weights.
    """
    status = status_of(frame)
    for k in range(SharedInputs.SIZE):
        store(shared, k, 0)
    slots = shared + 8 * SharedInputs.tensors
    unique_idxs = input_tensor(ctx, first, slots, status)
    check(frame)
    splits = input_tensor(ctx, first + 1, slots + 8, status)
    check(frame)
    weights = input_tensor(ctx, first + 2, slots + 16, status)
    check(frame)
    if failed(frame):
        return
    if tf_num_dims(unique_idxs) != 1 or tf_num_dims(splits) != 2 or tf_num_dims(weights) != 1:
        text = "unique_idxs, row_splits, entry_weights have ranks %lld, %lld, %lld, not 1, 2, 1"
        ranks = tf_num_dims(unique_idxs), tf_num_dims(splits), tf_num_dims(weights)
        fail(frame, INVALID_ARGUMENT, text, int64(ranks[0]), int64(ranks[1]), int64(ranks[2]))
        return
    rows, count = tf_dim(splits, np.int32(0)), tf_dim(unique_idxs, np.int32(0))
    if rows != lookups or tf_dim(splits, np.int32(1)) < 1:
        text = "row_splits are [%lld, %lld], but there are %lld lookups, of at least one split"
        fail(frame, INVALID_ARGUMENT, text, rows, tf_dim(splits, np.int32(1)), lookups)
        return
    if weighted and tf_dim(weights, np.int32(0)) != count:
        text = "there are %lld entry_weights for %lld unique_idxs"
        fail(frame, INVALID_ARGUMENT, text, tf_dim(weights, np.int32(0)), count)
        return
    store(shared, SharedInputs.unique_idxs, tf_tensor_data(unique_idxs))
    store(shared, SharedInputs.entry_count, count)
    store(shared, SharedInputs.row_splits, tf_tensor_data(splits))
    store(shared, SharedInputs.split_count, tf_dim(splits, np.int32(1)))
    store(shared, SharedInputs.entry_weights, tf_tensor_data(weights))


@jit
def release_shared(shared: int) -> None:
    """Releases what columns share."""
    _release(shared + 8 * SharedInputs.tensors, _SHARED)


@jit
def _has_rank(frame: int, index: int, tensor: int, rank: int) -> bool:
    if tensor != 0 and tf_num_dims(tensor) == rank:
        return True
    if frame != 0 and tensor != 0:
        text = ": an input has rank %lld where %lld is needed"
        fail_column(frame, INVALID_ARGUMENT, text, index, int64(tf_num_dims(tensor)), rank)
    return False


@jit
def _take_table(frame: int, ctx: int, state: int, index: int, source: int, status: int) -> bool:
    column = column_at(state, index)
    table = _take(ctx, state, index, _TABLE_INPUT, source, status)
    if not _has_rank(frame, index, table, int64(2)):
        return False
    width, dim = tf_dim(table, np.int32(1)), load(column, ColumnAttrs.dim)
    words = load(column, ColumnAttrs.row_words)
    if words != 0:
        if width != words:
            if frame != 0:
                text = ": the table has rows of %lld words, but packed ones of dim %lld have %lld"
                fail_column(frame, INVALID_ARGUMENT, text, index, width, dim, words)
            return False
    elif dim >= 0 and dim != width:
        if frame != 0:
            text = ": the table has rows of %lld elements, but dim is %lld"
            fail_column(frame, INVALID_ARGUMENT, text, index, width, dim)
        return False
    store(source, ColumnInputs.table, tf_tensor_data(table))
    store(source, ColumnInputs.table_rows, tf_dim(table, np.int32(0)))
    store(source, ColumnInputs.table_dim, width if words == 0 else dim)
    store(source, ColumnInputs.table_dtype, state_field(state, ColumnsState.dtype_code))
    store(source, ColumnInputs.row_bytes, width * state_field(state, ColumnsState.item_bytes))
    zeros = state_field(state, ColumnsState.zeros_offset)
    has_zeros = zeros != 0 and 0 <= load(column, ColumnAttrs.dim) <= MOST_ZEROS
    store(source, ColumnInputs.zeros, state + 8 * zeros if has_zeros else int64(0))
    return True


@jit
def _take_listed(column: int, source: int, shared: int) -> None:
    """Takes the part of what columns share that is the column's own."""
    splits = load(shared, SharedInputs.split_count)
    store(source, ColumnInputs.ids, load(shared, SharedInputs.unique_idxs))
    store(source, ColumnInputs.id_count, load(shared, SharedInputs.entry_count))
    store(
        source,
        ColumnInputs.entry_rows,
        load(shared, SharedInputs.row_splits) + 4 * splits * load(column, ColumnAttrs.lookup_index),
    )
    store(source, ColumnInputs.entry_row_stride, 1)
    store(source, ColumnInputs.batch_size, splits - 1)
    store(source, ColumnInputs.weights, load(shared, SharedInputs.entry_weights))


@jit
def _take_each(ids: int, source: int) -> bool:
    """Takes ids of any shape, each of which is a row."""
    if ids == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(ids)):
        count *= tf_dim(ids, np.int32(k))
    store(source, ColumnInputs.batch_size, count)
    store(source, ColumnInputs.ids, tf_tensor_data(ids))
    store(source, ColumnInputs.id_count, count)
    store(source, ColumnInputs.id_columns, 1)
    return True


@jit
def _take_dense_weights(
    frame: int, index: int, weights: int, source: int, rows: int, width: int
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
            fail_column(frame, INVALID_ARGUMENT, text, index, count, rows, width)
        return False
    store(source, ColumnInputs.weight_step, width if count == rows * width else int64(0))
    store(source, ColumnInputs.weights, tf_tensor_data(weights))
    return True


@jit
def _take_epsilon(frame: int, index: int, epsilon: int, source: int) -> bool:
    """Takes a tensor of one element."""
    if epsilon == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(epsilon)):
        count *= tf_dim(epsilon, np.int32(k))
    if count != 1:
        if frame != 0:
            text = ": weights have %lld elements, not the one that is added to divisors"
            fail_column(frame, INVALID_ARGUMENT, text, index, count)
        return False
    store(source, ColumnInputs.weights, tf_tensor_data(epsilon))
    return True


@jit
def _take_lengths(frame: int, ctx: int, state: int, index: int, source: int, status: int) -> bool:
    """Takes the number of entries of each row."""
    lengths = _take(ctx, state, index, _ROWS_INPUT, source, status)
    if lengths == 0:
        return False
    count = int64(1)
    for k in range(tf_num_dims(lengths)):
        count *= tf_dim(lengths, np.int32(k))
    if count != load(source, ColumnInputs.batch_size):
        if frame != 0:
            text = ": there are %lld lengths for %lld rows"
            rows = load(source, ColumnInputs.batch_size)
            fail_column(frame, INVALID_ARGUMENT, text, index, count, rows)
        return False
    store(source, ColumnInputs.entry_rows, tf_tensor_data(lengths))
    return True


@jit
def _take_ids(frame: int, ctx: int, state: int, index: int, source: int, status: int) -> bool:
    column = column_at(state, index)
    is_dense = load(column, ColumnAttrs.id_format) == DENSE
    ids = _take(ctx, state, index, _IDS_INPUT, source, status)
    if load(column, ColumnAttrs.is_each) != 0:
        return _take_each(ids, source)
    rank = int64(max(tf_num_dims(ids), np.int32(2))) if is_dense and ids != 0 else int64(1)
    if not _has_rank(frame, index, ids, rank):
        return False
    count, width = tf_dim(ids, np.int32(0)), int64(1)
    if is_dense:
        for k in range(int64(1), rank - 1):
            count *= tf_dim(ids, np.int32(k))
        width = tf_dim(ids, np.int32(rank - 1))
        store(source, ColumnInputs.batch_size, count)
    store(source, ColumnInputs.ids, tf_tensor_data(ids))
    store(source, ColumnInputs.id_count, count * width)
    store(source, ColumnInputs.id_columns, width)
    has_epsilon = load(column, ColumnAttrs.epsilon_input) != 0
    if load(column, ColumnAttrs.use_sparse_weights) == 0 and not has_epsilon:
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
            fail_column(frame, INVALID_ARGUMENT, text, index, tf_dim(weights, np.int32(0)), count)
        return False
    store(source, ColumnInputs.weights, tf_tensor_data(weights))
    return True


@jit
def _take_rows(frame: int, ctx: int, state: int, index: int, source: int, status: int) -> bool:
    column = column_at(state, index)
    form = load(column, ColumnAttrs.id_format)
    rows = _take(ctx, state, index, _ROWS_INPUT, source, status)
    if not _has_rank(frame, index, rows, int64(2) if form == INDICES else int64(1)):
        return False
    count, step = tf_dim(rows, np.int32(0)), int64(1)
    if form == INDICES:
        step = tf_dim(rows, np.int32(1))
        if step < 1:
            if frame != 0:
                text = ": entry_rows have no column"
                fail_column(frame, INVALID_ARGUMENT, text, index)
            return False
    store(source, ColumnInputs.entry_rows, tf_tensor_data(rows))
    store(source, ColumnInputs.entry_row_stride, step)
    if form == ROW_SPLITS:
        if count < 1:
            if frame != 0:
                fail_column(frame, INVALID_ARGUMENT, ": there are no row splits", index)
            return False
        store(source, ColumnInputs.batch_size, count - 1)
    elif count != load(source, ColumnInputs.id_count):
        if frame != 0:
            text = ": there are %lld entry_rows for %lld ids"
            fail_column(
                frame, INVALID_ARGUMENT, text, index, count, load(source, ColumnInputs.id_count)
            )
        return False
    return True


@jit
def _take_batch(frame: int, ctx: int, state: int, index: int, source: int, status: int) -> bool:
    """Finds the number of rows of a column whose entries have row numbers."""
    column = column_at(state, index)
    if (
        load(column, ColumnAttrs.ends_at_last_row) != 0
        and load(source, ColumnInputs.id_count) > 0
        and load(state, State.launcher) != 0
    ):
        store(source, ColumnInputs.batch_size, -1)  # the host cannot read the last entry's row
        return True
    if load(column, ColumnAttrs.ends_at_last_row) != 0:
        entries, last = load(source, ColumnInputs.id_count), int64(-1)
        if entries > 0:
            last_index = (entries - 1) * load(source, ColumnInputs.entry_row_stride)
            last = integer_at(
                load(source, ColumnInputs.entry_rows),
                last_index,
                load(column, ColumnAttrs.rows_dtype),
            )
        store(source, ColumnInputs.batch_size, rows_until(last))
        return True
    shape = _take(ctx, state, index, _SHAPE_INPUT, source, status)
    if shape == 0:
        return False
    rank = tf_num_dims(shape)
    if rank > 1 or (rank == 1 and tf_dim(shape, np.int32(0)) < 1):
        if frame != 0:
            text = ": dense_shape must be a number or a vector of one and more"
            fail_column(frame, INVALID_ARGUMENT, text, index)
        return False
    sizes, count = tf_tensor_data(shape), tf_dim(shape, np.int32(0)) if rank == 1 else int64(1)
    if (
        load(column, ColumnAttrs.id_format) == INDICES
        and count > 1
        and count != load(source, ColumnInputs.entry_row_stride)
    ):
        if frame != 0:
            text = ": dense_shape has %lld sizes, but entry_rows have %lld columns"
            fail_column(
                frame,
                INVALID_ARGUMENT,
                text,
                index,
                count,
                load(source, ColumnInputs.entry_row_stride),
            )
        return False
    if not _is_shape(frame, index, sizes, count):
        return False
    store(source, ColumnInputs.batch_size, load(sizes, 0))
    return True


@jit
def _is_shape(frame: int, index: int, sizes: int, count: int) -> bool:
    """Whether sizes are those of a tensor: stock's SparseReshape, which the op stands for, asks."""
    elements = int64(1)
    for k in range(count):
        size = load(sizes, k)
        if size < 0:
            if frame != 0:
                text = ": dense_shape must not be negative, but dense_shape[%lld] = %lld"
                fail_column(frame, INVALID_ARGUMENT, text, index, k, size)
            return False
        if overflows(elements, size):
            if frame != 0:
                text = ": dense_shape has 2**63 elements or more: %lld times %lld"
                fail_column(frame, INVALID_ARGUMENT, text, index, elements, size)
            return False
        elements *= size
    return True


@jit
def list_as_they_are(source: int) -> None:
    """Has ids listed as they are: as addresses of rows of one byte from 0 on."""
    store(source, ColumnInputs.table, 0)
    store(source, ColumnInputs.row_bytes, 1)
    store(source, ColumnInputs.table_rows, _NO_TABLE_ROWS)


@jit
def take_source(
    frame: int, ctx: int, state: int, index: int, source: int, status: int, shared: int
) -> bool:
    """Fills `ColumnInputs` of column `index`; to be released whatever the result is.

    On a GPU the rows are -1 where they depend on what the host cannot read.

    Args:
      shared: what the columns of an op behind gathers share.

    Returns:
      Whether it is sound; if not, `frame` tells why, unless it is 0.
    """
    for k in range(ColumnInputs.SIZE):
        store(source, k, 0)
    column, role = column_at(state, index), state_field(state, ColumnsState.role)
    if role == PRE:
        list_as_they_are(source)
        store(source, ColumnInputs.table_dtype, state_field(state, ColumnsState.dtype_code))
    elif not _take_table(frame, ctx, state, index, source, status):
        return False
    store(
        source,
        ColumnInputs.boundaries,
        state
        + 8 * state_field(state, ColumnsState.boundaries_offset)
        + 4 * load(column, ColumnAttrs.first_boundary),
    )
    form = load(column, ColumnAttrs.id_format)
    if form == COPY:
        store(source, ColumnInputs.batch_size, load(source, ColumnInputs.table_rows))
        return True
    if role == POST:
        _take_listed(column, source, shared)
        return True
    if not _take_ids(frame, ctx, state, index, source, status):
        return False
    if form == DENSE and load(column, ColumnAttrs.has_lengths) != 0:
        return _take_lengths(frame, ctx, state, index, source, status)
    if form == DENSE:
        return True
    if not _take_rows(frame, ctx, state, index, source, status):
        return False
    if form == ROW_SPLITS:
        return True
    return _take_batch(frame, ctx, state, index, source, status)
