"""What a column of an op for whole columns is given: its tensors, checked.

An op behind gathers has rows of each column and, for all of them, which entries mean which rows:
tensors that its columns *share*.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_words import (
    BATCH,
    BOUNDARIES,
    COLUMN_WORDS,
    COPY,
    DENSE,
    DIM,
    FORM,
    ID_COLUMNS,
    ID_COUNT,
    IDS,
    INDICES,
    LIMITS,
    LISTED_PLACE,
    ROW_BYTES,
    ROW_COUNT,
    ROW_SPLITS,
    ROW_STEP,
    ROWS,
    ROWS_KIND,
    SOURCE_WORDS,
    TABLE,
    TABLE_DIM,
    TABLE_KIND,
    TABLE_ROWS,
    TENSORS,
    WEIGHTED,
    WEIGHTS,
    ZEROS,
)
from fusion.cpu_ops.elements import integer_at, overflows, rows_until
from fusion.ops.columns.state import (
    BODY,
    COLUMNS,
    COUNT,
    ITEM,
    KIND,
    LIMITS_AT,
    POST,
    PRE,
    ROLE,
    ZEROS_AT,
)
from fusion.runtime.native.frame import (
    INVALID_ARGUMENT,
    check,
    fail,
    fail_column,
    failed,
    status_of,
)
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

#: What columns share, by word: the places of entries in their rows, int32; their number; row
#: splits, int32, and how many each column has; weights; the three tensors, to be released.
(ENTRIES, ENTRY_COUNT, SPLITS, SPLIT_COUNT, ENTRY_WEIGHTS, SHARED_TENSORS) = range(6)
_SHARED = 3
SHARED_WORDS = SHARED_TENSORS + _SHARED


@jit
def column_at(state: int, place: int) -> int:
    """The address of a column's words."""
    return state + 8 * (BODY + COLUMNS + place * COLUMN_WORDS)


@jit
def body(state: int, word: int) -> int:
    """A word of the body of a kernel's state."""
    return load(state, BODY + word)


@jit
def input_tensor(ctx: int, index: int, slot: int, status: int) -> int:
    """Input number `index`, also stored at the address `slot`, by which it is to be released."""
    tf_get_input(ctx, np.int32(index), slot, status)
    if tf_get_code(status) != 0:
        store(slot, 0, 0)
    return load(slot, 0)


@jit
def _take(ctx: int, state: int, place: int, which: int, source: int, status: int) -> int:
    slot = source + 8 * (TENSORS + which)
    list_place = which - 1 if body(state, ROLE) == PRE else which
    return input_tensor(ctx, list_place * body(state, COUNT) + place, slot, status)


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
    _release(source + 8 * TENSORS, _TENSORS)


@jit
def take_shared(
    frame: int, ctx: int, first: int, shared: int, lookups: int, weighted: bool
) -> None:
    """Fills the words of what columns share; to be released whatever the result is.

    Args:
      first: the number of the first of the three inputs.
      lookups: how many columns have row splits.
      weighted: whether any has weights.
    """
    status = status_of(frame)
    for k in range(SHARED_WORDS):
        store(shared, k, 0)
    slots = shared + 8 * SHARED_TENSORS
    places = input_tensor(ctx, first, slots, status)
    check(frame)
    splits = input_tensor(ctx, first + 1, slots + 8, status)
    check(frame)
    weights = input_tensor(ctx, first + 2, slots + 16, status)
    check(frame)
    if failed(frame):
        return
    if tf_num_dims(places) != 1 or tf_num_dims(splits) != 2 or tf_num_dims(weights) != 1:
        text = "unique_idxs, row_splits, entry_weights have ranks %lld, %lld, %lld, not 1, 2, 1"
        ranks = int64(tf_num_dims(places)), int64(tf_num_dims(splits)), int64(tf_num_dims(weights))
        fail(frame, INVALID_ARGUMENT, text, ranks[0], ranks[1], ranks[2])
        return
    rows, count = tf_dim(splits, np.int32(0)), tf_dim(places, np.int32(0))
    if rows != lookups or tf_dim(splits, np.int32(1)) < 1:
        text = "row_splits are [%lld, %lld], but there are %lld lookups, of at least one split"
        fail(frame, INVALID_ARGUMENT, text, rows, tf_dim(splits, np.int32(1)), lookups)
        return
    if weighted and tf_dim(weights, np.int32(0)) != count:
        text = "there are %lld entry_weights for %lld unique_idxs"
        fail(frame, INVALID_ARGUMENT, text, tf_dim(weights, np.int32(0)), count)
        return
    store(shared, ENTRIES, tf_tensor_data(places))
    store(shared, ENTRY_COUNT, count)
    store(shared, SPLITS, tf_tensor_data(splits))
    store(shared, SPLIT_COUNT, tf_dim(splits, np.int32(1)))
    store(shared, ENTRY_WEIGHTS, tf_tensor_data(weights))


@jit
def release_shared(shared: int) -> None:
    """Releases what columns share."""
    _release(shared + 8 * SHARED_TENSORS, _SHARED)


@jit
def _has_rank(frame: int, place: int, tensor: int, rank: int) -> bool:
    if tensor != 0 and tf_num_dims(tensor) == rank:
        return True
    if frame != 0 and tensor != 0:
        text = ": an input has rank %lld where %lld is needed"
        fail_column(frame, INVALID_ARGUMENT, text, place, int64(tf_num_dims(tensor)), rank)
    return False


@jit
def _take_table(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    column = column_at(state, place)
    table = _take(ctx, state, place, _TABLE_INPUT, source, status)
    if not _has_rank(frame, place, table, int64(2)):
        return False
    dim = tf_dim(table, np.int32(1))
    if load(column, DIM) >= 0 and load(column, DIM) != dim:
        if frame != 0:
            text = ": the table has rows of %lld elements, but dim is %lld"
            fail_column(frame, INVALID_ARGUMENT, text, place, dim, load(column, DIM))
        return False
    store(source, TABLE, tf_tensor_data(table))
    store(source, TABLE_ROWS, tf_dim(table, np.int32(0)))
    store(source, TABLE_DIM, dim)
    store(source, TABLE_KIND, body(state, KIND))
    store(source, ROW_BYTES, dim * body(state, ITEM))
    zeros = body(state, ZEROS_AT)
    store(source, ZEROS, state + 8 * zeros if zeros != 0 else int64(0))
    return True


@jit
def _take_listed(column: int, source: int, shared: int) -> None:
    """Takes the part of what columns share that is the column's own."""
    splits = load(shared, SPLIT_COUNT)
    store(source, IDS, load(shared, ENTRIES))
    store(source, ID_COUNT, load(shared, ENTRY_COUNT))
    store(source, ROWS, load(shared, SPLITS) + 4 * splits * load(column, LISTED_PLACE))
    store(source, ROW_STEP, 1)
    store(source, BATCH, splits - 1)
    store(source, WEIGHTS, load(shared, ENTRY_WEIGHTS))


@jit
def _take_ids(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    column = column_at(state, place)
    is_dense = load(column, FORM) == DENSE
    ids = _take(ctx, state, place, _IDS_INPUT, source, status)
    if not _has_rank(frame, place, ids, int64(2) if is_dense else int64(1)):
        return False
    count, width = tf_dim(ids, np.int32(0)), int64(1)
    if is_dense:
        width = tf_dim(ids, np.int32(1))
        store(source, BATCH, count)
    store(source, IDS, tf_tensor_data(ids))
    store(source, ID_COUNT, count * width)
    store(source, ID_COLUMNS, width)
    if load(column, WEIGHTED) == 0:
        return True
    weights = _take(ctx, state, place, _WEIGHTS_INPUT, source, status)
    if not _has_rank(frame, place, weights, int64(1)):
        return False
    if tf_dim(weights, np.int32(0)) != count:
        if frame != 0:
            text = ": there are %lld weights for %lld ids"
            fail_column(frame, INVALID_ARGUMENT, text, place, tf_dim(weights, np.int32(0)), count)
        return False
    store(source, WEIGHTS, tf_tensor_data(weights))
    return True


@jit
def _take_rows(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    column = column_at(state, place)
    form = load(column, FORM)
    rows = _take(ctx, state, place, _ROWS_INPUT, source, status)
    if not _has_rank(frame, place, rows, int64(2) if form == INDICES else int64(1)):
        return False
    count, step = tf_dim(rows, np.int32(0)), int64(1)
    if form == INDICES:
        step = tf_dim(rows, np.int32(1))
        if step < 1:
            if frame != 0:
                text = ": entry_rows have no column"
                fail_column(frame, INVALID_ARGUMENT, text, place)
            return False
    store(source, ROWS, tf_tensor_data(rows))
    store(source, ROW_STEP, step)
    if form == ROW_SPLITS:
        if count < 1:
            if frame != 0:
                fail_column(frame, INVALID_ARGUMENT, ": there are no row splits", place)
            return False
        store(source, BATCH, count - 1)
    elif count != load(source, ID_COUNT):
        if frame != 0:
            text = ": there are %lld entry_rows for %lld ids"
            fail_column(frame, INVALID_ARGUMENT, text, place, count, load(source, ID_COUNT))
        return False
    return True


@jit
def _take_batch(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    """Finds the number of rows of a column whose entries have row numbers."""
    column = column_at(state, place)
    if (
        load(column, ROW_COUNT) != 0
        and load(source, ID_COUNT) > 0
        and load(state, State.launcher) != 0
    ):
        store(source, BATCH, -1)  # the host cannot read the last entry's row
        return True
    if load(column, ROW_COUNT) != 0:
        entries, last = load(source, ID_COUNT), int64(-1)
        if entries > 0:
            place_of_last = (entries - 1) * load(source, ROW_STEP)
            last = integer_at(load(source, ROWS), place_of_last, load(column, ROWS_KIND))
        store(source, BATCH, rows_until(last))
        return True
    shape = _take(ctx, state, place, _SHAPE_INPUT, source, status)
    if shape == 0:
        return False
    rank = tf_num_dims(shape)
    if rank > 1 or (rank == 1 and tf_dim(shape, np.int32(0)) < 1):
        if frame != 0:
            text = ": dense_shape must be a number or a vector of one and more"
            fail_column(frame, INVALID_ARGUMENT, text, place)
        return False
    sizes, count = tf_tensor_data(shape), tf_dim(shape, np.int32(0)) if rank == 1 else int64(1)
    if load(column, FORM) == INDICES and count > 1 and count != load(source, ROW_STEP):
        if frame != 0:
            text = ": dense_shape has %lld sizes, but entry_rows have %lld columns"
            fail_column(frame, INVALID_ARGUMENT, text, place, count, load(source, ROW_STEP))
        return False
    if not _is_shape(frame, place, sizes, count):
        return False
    store(source, BATCH, load(sizes, 0))
    return True


@jit
def _is_shape(frame: int, place: int, sizes: int, count: int) -> bool:
    """Whether sizes are those of a tensor: stock's SparseReshape, which the op stands for, asks."""
    elements = int64(1)
    for k in range(count):
        size = load(sizes, k)
        if size < 0:
            if frame != 0:
                text = ": dense_shape must not be negative, but dense_shape[%lld] = %lld"
                fail_column(frame, INVALID_ARGUMENT, text, place, k, size)
            return False
        if overflows(elements, size):
            if frame != 0:
                text = ": dense_shape has 2**63 elements or more: %lld times %lld"
                fail_column(frame, INVALID_ARGUMENT, text, place, elements, size)
            return False
        elements *= size
    return True


@jit
def take_source(
    frame: int, ctx: int, state: int, place: int, source: int, status: int, shared: int
) -> bool:
    """Fills the words of what column `place` is given; to be released whatever the result is.

    On a GPU the rows are -1 where they depend on what the host cannot read.

    Args:
      shared: what the columns of an op behind gathers share.

    Returns:
      Whether it is sound; if not, `frame` tells why, unless it is 0.
    """
    for k in range(SOURCE_WORDS):
        store(source, k, 0)
    column, role = column_at(state, place), body(state, ROLE)
    if role == PRE:
        # With addresses of rows of one byte from 0 on, ids are listed as they are.
        store(source, ROW_BYTES, 1)
        store(source, TABLE_ROWS, _NO_TABLE_ROWS)
        store(source, TABLE_KIND, body(state, KIND))
    elif not _take_table(frame, ctx, state, place, source, status):
        return False
    store(source, LIMITS, state + 8 * body(state, LIMITS_AT) + 4 * load(column, BOUNDARIES))
    form = load(column, FORM)
    if form == COPY:
        store(source, BATCH, load(source, TABLE_ROWS))
        return True
    if role == POST:
        _take_listed(column, source, shared)
        return True
    if not _take_ids(frame, ctx, state, place, source, status):
        return False
    if form == DENSE:
        return True
    if not _take_rows(frame, ctx, state, place, source, status):
        return False
    if form == ROW_SPLITS:
        return True
    return _take_batch(frame, ctx, state, place, source, status)
