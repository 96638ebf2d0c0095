"""What a column of an inference op is given: its tensors, checked."""

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
from fusion.cpu_ops.elements import integer_at
from fusion.ops.lookup_state import BODY, COLUMNS, COUNT, ITEM, KIND, LIMITS_AT, ZEROS_AT
from fusion.runtime.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_get_code,
    tf_get_input,
    tf_num_dims,
    tf_tensor_data,
)
from fusion.runtime.jit import int64, jit
from fusion.runtime.memory import load, store
from fusion.runtime.native import INVALID_ARGUMENT, fail

_TENSORS = 5
#: No memory has room for so many rows.
_TOO_MANY_ROWS = 2**48

#: The inputs of a column, in their order.
_TABLE_INPUT, _IDS_INPUT, _ROWS_INPUT, _SHAPE_INPUT, _WEIGHTS_INPUT = range(_TENSORS)


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
    return input_tensor(ctx, which * body(state, COUNT) + place, slot, status)


@jit
def release(source: int) -> None:
    """Releases the tensors of a source."""
    for k in range(_TENSORS):
        tensor = load(source, TENSORS + k)
        if tensor != 0:
            tf_delete_tensor(tensor)
            store(source, TENSORS + k, 0)


@jit
def _has_rank(frame: int, place: int, tensor: int, rank: int) -> bool:
    if tensor != 0 and tf_num_dims(tensor) == rank:
        return True
    if frame != 0 and tensor != 0:
        text = "column %lld: an input has rank %lld where %lld is needed"
        fail(frame, INVALID_ARGUMENT, text, place, int64(tf_num_dims(tensor)), rank)
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
            text = "column %lld: the table has rows of %lld elements, but dim is %lld"
            fail(frame, INVALID_ARGUMENT, text, place, dim, load(column, DIM))
        return False
    store(source, TABLE, tf_tensor_data(table))
    store(source, TABLE_ROWS, tf_dim(table, np.int32(0)))
    store(source, TABLE_DIM, dim)
    store(source, TABLE_KIND, body(state, KIND))
    store(source, ROW_BYTES, dim * body(state, ITEM))
    zeros = body(state, ZEROS_AT)
    store(source, ZEROS, state + 8 * zeros if zeros != 0 else int64(0))
    limits = state + 8 * body(state, LIMITS_AT) + 4 * load(column, BOUNDARIES)
    store(source, LIMITS, limits)
    return True


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
            text = "column %lld: there are %lld weights for %lld ids"
            fail(frame, INVALID_ARGUMENT, text, place, tf_dim(weights, np.int32(0)), count)
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
                text = "column %lld: entry_rows have no column"
                fail(frame, INVALID_ARGUMENT, text, place)
            return False
    store(source, ROWS, tf_tensor_data(rows))
    store(source, ROW_STEP, step)
    if form == ROW_SPLITS:
        if count < 1:
            if frame != 0:
                fail(frame, INVALID_ARGUMENT, "column %lld: there are no row splits", place)
            return False
        store(source, BATCH, count - 1)
    elif count != load(source, ID_COUNT):
        if frame != 0:
            text = "column %lld: there are %lld entry_rows for %lld ids"
            fail(frame, INVALID_ARGUMENT, text, place, count, load(source, ID_COUNT))
        return False
    return True


@jit
def _take_batch(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    """Finds the number of rows of a column whose entries have row numbers."""
    column = column_at(state, place)
    if load(column, ROW_COUNT) != 0:
        entries, last = load(source, ID_COUNT), int64(-1)
        if entries > 0:
            place_of_last = (entries - 1) * load(source, ROW_STEP)
            last = integer_at(load(source, ROWS), place_of_last, load(column, ROWS_KIND))
        store(source, BATCH, min(max(last, int64(-1)), int64(_TOO_MANY_ROWS)) + 1)
        return True
    shape = _take(ctx, state, place, _SHAPE_INPUT, source, status)
    if shape == 0:
        return False
    rank = tf_num_dims(shape)
    if rank > 1 or (rank == 1 and tf_dim(shape, np.int32(0)) < 1):
        if frame != 0:
            text = "column %lld: dense_shape must be a number or a vector of one and more"
            fail(frame, INVALID_ARGUMENT, text, place)
        return False
    batch = load(tf_tensor_data(shape), 0)
    if batch < 0:
        if frame != 0:
            text = "column %lld: dense_shape must not be negative, but has %lld rows"
            fail(frame, INVALID_ARGUMENT, text, place, batch)
        return False
    store(source, BATCH, batch)
    return True


@jit
def take_source(frame: int, ctx: int, state: int, place: int, source: int, status: int) -> bool:
    """Fills the words of what column `place` is given; to be released whatever the result is.

    Returns:
      Whether it is sound; if not, `frame` tells why, unless it is 0.
    """
    for k in range(SOURCE_WORDS):
        store(source, k, 0)
    if not _take_table(frame, ctx, state, place, source, status):
        return False
    form = load(column_at(state, place), FORM)
    if form == COPY:
        store(source, BATCH, load(source, TABLE_ROWS))
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
