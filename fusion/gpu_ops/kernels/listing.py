"""The entries of columns: which elements count, and which rows have none.

As `fusion.cpu_ops.columns` lists them, but without a loop over rows: elements that count and rows
that are to be filled are marked, and prefix sums of the marks say where each goes, see `places`.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_words import (
    COLUMN_WORDS,
    DEFAULT_ID,
    DENSE,
    FILL,
    FORM,
    ID_COLUMNS,
    ID_COUNT,
    KEYS_KIND,
    ROW_COUNT,
    ROW_SPLITS,
    ROW_STEP,
    ROWS,
    ROWS_KIND,
    SOURCE_WORDS,
    TABLE_ROWS,
)
from fusion.gpu_ops.kernels.elements import id_at, integer_at, is_dropped, is_ignored, rows_until
from fusion.gpu_ops.kernels.errors import tell_at
from fusion.gpu_ops.kernels.tiles import column_of
from fusion.gpu_ops.language.device import atomic_add, cuda, jit, load, load_as, store, store_as
from fusion.gpu_ops.layout import call as call_of
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT32


@jit
def column_words(call: int, place: int) -> int:
    """The address of the words of what a column does."""
    return load(call, call_of.PRE_COLUMNS) + 8 * COLUMN_WORDS * place


@jit
def source_words(call: int, place: int) -> int:
    """The address of the words of what a column is given."""
    return load(call, call_of.PRE_SOURCES) + 8 * SOURCE_WORDS * place


@jit
def elements_of(call: int) -> int:
    """The elements of all columns."""
    return load(load(call, call_of.PRE_ELEMENTS), load(call, call_of.PRE_COUNT))


@jit
def fills_entries(column: int) -> bool:
    """Whether a row that is to be filled gets an entry, and not only an id."""
    return load(column, DEFAULT_ID) >= 0


@jit
def filler_of(column: int) -> int:
    """The id of rows that are filled."""
    return max(load(column, DEFAULT_ID), int64(0))


@jit
def _row_by_splits(column: int, source: int, k: int, batch: int) -> int:
    """The last row that starts at an element or before, or else the first one."""
    splits, kind = load(source, ROWS), load(column, ROWS_KIND)
    row, end = int64(0), batch
    while end - row > 1:
        middle = (row + end) // 2
        if integer_at(splits, middle, kind) <= k:
            row = middle
        else:
            end = middle
    return row


@jit
def _row_of(call: int, place: int, column: int, source: int, k: int) -> int:
    """The row of an element, as it is told; flags its column if rows are not in order.

    Tells the rows up to that of the last element, where these are the rows of the batch.
    """
    form = load(column, FORM)
    if form == DENSE:
        return k // load(source, ID_COLUMNS)
    if form == ROW_SPLITS:
        return _row_by_splits(column, source, k, load(call, call_of.PRE_BATCH))
    rows, step, kind = load(source, ROWS), load(source, ROW_STEP), load(column, ROWS_KIND)
    row = integer_at(rows, k * step, kind)
    before = row
    if k > 0:
        before = integer_at(rows, (k - 1) * step, kind)
    told, to_last = load(call, call_of.PRE_TOLD), load(column, ROW_COUNT) != 0
    if row < before:
        if to_last:
            tell_at(told, call_of.UNSORTED_ROW, place, k, row)
        else:
            store(told, call_of.TROUBLE_WORDS + place, 1)
    if to_last and row < 0:  # whether the element counts or not
        tell_at(told, call_of.BAD_ROW, place, k, row)
    if to_last and k == load(source, ID_COUNT) - 1:
        word = call_of.TROUBLE_WORDS + 3 * load(call, call_of.PRE_COUNT) + place
        store(told, word, rows_until(row))
    return min(row, int64(0)) if load(call, call_of.PRE_IS_OPEN) != 0 else row


@jit
def fits(column: int, number: int) -> bool:
    """Whether an id can be a key."""
    return load(column, KEYS_KIND) != INT32 or number == int64(np.int32(number))


@jit
def _is_sound(
    call: int, place: int, column: int, source: int, k: int, row: int, number: int
) -> bool:
    """Whether an element that counts has a row and an id; else tells of it."""
    told = load(call, call_of.PRE_TOLD)
    if row < 0 or row >= load(call, call_of.PRE_BATCH):
        if load(column, FORM) != ROW_SPLITS:  # else `mark_rows` tells of splits
            tell_at(told, call_of.BAD_ROW, place, k, row)
        return False
    if number < 0 or number >= load(source, TABLE_ROWS):
        tell_at(told, call_of.BAD_ID, place, k, number)
        return False
    if not fits(column, number):
        tell_at(told, call_of.BAD_KEY, place, k, number)
        return False
    return True


def mark_elements(call: int, ids: int, owners: int, marks: int) -> None:
    """Kernel, a thread for each element of all columns: its id and row, and whether it counts.

    Args:
        call: its words (`call_words.PRE_COUNT` ...).
        ids: out, int64 by element.
        owners: out, int32 by element: the number of its row among those of all columns, or how
            many these are for an element that does not count.
        marks: out, int32, zeros before: 1 for each element that counts; how many each row of each
            column has, unless the call is open; what is for `mark_rows`.
    """
    element = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    elements, columns = elements_of(call), load(call, call_of.PRE_COUNT)
    if element >= elements:
        return
    starts, batch = load(call, call_of.PRE_ELEMENTS), load(call, call_of.PRE_BATCH)
    place = column_of(starts, columns, element)
    column, source = column_words(call, place), source_words(call, place)
    k, in_row = element - load(starts, place), int64(0)
    if load(column, FORM) == DENSE:
        in_row = k % load(source, ID_COLUMNS)
    row, number = _row_of(call, place, column, source, k), id_at(column, source, k, in_row)
    counts = not is_ignored(column, source, k) and not is_dropped(column, source, number, k)
    counts = counts and _is_sound(call, place, column, source, k, row, number)
    owner = columns * batch
    if counts:
        owner = place * batch + row
        store_as(marks, element, np.int32(1), np.int32)
        if load(call, call_of.PRE_IS_OPEN) == 0:  # else all threads would add to one word
            atomic_add(marks, elements + owner, np.int32(1), np.int32)
    store(ids, element, number)
    store_as(owners, element, np.int32(owner), np.int32)


@jit
def _check_split(call: int, place: int, column: int, source: int, row: int) -> None:
    """Tells of a row split that is less than the one before, or is not where ids begin or end."""
    splits, kind, total = load(source, ROWS), load(column, ROWS_KIND), load(source, ID_COUNT)
    split, before = integer_at(splits, row, kind), int64(0)
    if row > 0:
        before = integer_at(splits, row - 1, kind)
    is_cut = (row == 0 and split != 0) or (row == load(call, call_of.PRE_BATCH) and split != total)
    if is_cut or split < before or split > total:
        tell_at(load(call, call_of.PRE_TOLD), call_of.BAD_SPLIT, place, row, split)


def mark_rows(call: int, marks: int) -> None:
    """Kernel, a thread for each row of each column, and one more of each: marks those to fill.

    Args:
        marks: behind what `mark_elements` writes, out: 1 for each row that is to be filled.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch, columns = load(call, call_of.PRE_BATCH), load(call, call_of.PRE_COUNT)
    if thread >= columns * (batch + 1):
        return
    place, row = thread // (batch + 1), thread % (batch + 1)
    column, source = column_words(call, place), source_words(call, place)
    if load(column, FORM) == ROW_SPLITS:
        _check_split(call, place, column, source, row)
    if row == batch or load(column, FILL) == 0:
        return
    own = elements_of(call) + place * batch + row
    if load_as(marks, own, np.int32) != 0:
        return
    store_as(marks, own + columns * batch, np.int32(1), np.int32)
    number = filler_of(column)
    if not fits(column, number):
        tell_at(load(call, call_of.PRE_TOLD), call_of.BAD_KEY, place, int64(-1), number)
