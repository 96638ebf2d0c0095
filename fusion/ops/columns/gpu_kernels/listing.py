"""The entries of columns: which elements count, and which rows have none.

As `fusion.cpu_ops.columns` lists them, but without a loop over rows: elements that count and rows
that are to be filled are marked, and prefix sums of the marks say where each goes, see `slots`.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_layout import DENSE, ROW_SPLITS, ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.elements import id_at, integer_at, is_dropped, is_ignored, rows_until
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.kernels.tiles import column_of
from fusion.gpu_ops.language.device import (
    as_record,
    atomic_add,
    cuda,
    jit,
    load_as,
    store,
    store_as,
)
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import PreLookupCall
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT32
from fusion.schema.attributes import LAST_ROW


@jit
def column_attrs(call: PreLookupCall, index: int) -> int:
    """The address of a column's `ColumnAttrs`."""
    return call.columns + 8 * ColumnAttrs.SIZE * index


@jit
def column_inputs(call: PreLookupCall, index: int) -> int:
    """The address of a column's `ColumnInputs`."""
    return call.inputs + 8 * ColumnInputs.SIZE * index


@jit
def elements_of(call: PreLookupCall) -> int:
    """The elements of all columns."""
    return call.element_offsets[call.column_count]


@jit
def fills_entries(column: ColumnAttrs) -> bool:
    """Whether a row that is to be filled gets an entry, and not only an id."""
    return column.default_id >= 0


@jit
def filler_of(column: ColumnAttrs) -> int:
    """The id of rows that are filled."""
    return max(column.default_id, int64(0))


@jit
def _row_by_splits(column: ColumnAttrs, source: ColumnInputs, k: int, batch: int) -> int:
    """The last row that starts at an element or before, or else the first one."""
    splits, dtype = source.entry_rows, column.rows_dtype
    row, end = int64(0), batch
    while end - row > 1:
        middle = (row + end) // 2
        if integer_at(splits, middle, dtype) <= k:
            row = middle
        else:
            end = middle
    return row


@jit
def _row_of(
    call: PreLookupCall, index: int, column: ColumnAttrs, source: ColumnInputs, k: int
) -> int:
    """The row of an element in the input; flags its column if rows are not in order.

    Writes the rows up to that of the last element, where these are the rows of the batch.
    """
    form = column.id_format
    if form == DENSE:
        return k // source.id_columns
    if form == ROW_SPLITS:
        return _row_by_splits(column, source, k, call.batch_size)
    rows = source.entry_rows
    step = source.entry_row_stride
    dtype = column.rows_dtype
    row = integer_at(rows, k * step, dtype)
    before = row
    if k > 0:
        before = integer_at(rows, (k - 1) * step, dtype)
    results = as_record(ErrorRecord, call.results)
    to_last = column.row_count == LAST_ROW
    if row < before:
        if to_last:
            report_error(results, call_of.UNSORTED_ROW, index, k, row)
        else:
            store(results, ErrorRecord.SIZE + index, 1)
    if to_last and row < 0:  # whether the element counts or not
        report_error(results, call_of.BAD_ROW, index, k, row)
    if to_last and k == source.id_count - 1:
        field = ErrorRecord.SIZE + 3 * call.column_count + index
        store(results, field, rows_until(row))
    return min(row, int64(0)) if call.is_batch_open != 0 else row


@jit
def fits(column: ColumnAttrs, number: int) -> bool:
    """Whether an id can be a key."""
    return column.keys_dtype != INT32 or number == int64(np.int32(number))


@jit
def _is_sound(
    call: PreLookupCall,
    index: int,
    column: ColumnAttrs,
    source: ColumnInputs,
    k: int,
    row: int,
    number: int,
) -> bool:
    """Whether an element that counts has a row and an id; else reports an error."""
    results = as_record(ErrorRecord, call.results)
    if row < 0 or row >= call.batch_size:
        if column.id_format != ROW_SPLITS:  # else `mark_rows` reports splits
            report_error(results, call_of.BAD_ROW, index, k, row)
        return False
    if number < 0 or number >= source.table_rows:
        report_error(results, call_of.BAD_ID, index, k, number)
        return False
    if not fits(column, number):
        report_error(results, call_of.BAD_KEY, index, k, number)
        return False
    return True


def mark_elements(call_address: int, ids: int, owners: int, marks: int) -> None:
    """Kernel, a thread for each element of all columns: its id and row, and whether it counts.

    Args:
        call: a `PreLookupCall`.
        ids: out, int64 by element.
        owners: out, int32 by element: the number of its row among those of all columns, or how
            many these are for an element that does not count.
        marks: out, int32, zeros before: 1 for each element that counts; how many each row of each
            column has, unless the call is open; what is for `mark_rows`.
    """
    call = as_record(PreLookupCall, call_address)
    element = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    elements, columns = elements_of(call), call.column_count
    if element >= elements:
        return
    starts, batch = call.element_offsets, call.batch_size
    index = column_of(starts, columns, element)
    column, source = (
        as_record(ColumnAttrs, column_attrs(call, index)),
        as_record(ColumnInputs, column_inputs(call, index)),
    )
    k, in_row = element - starts[index], int64(0)
    if column.id_format == DENSE:
        in_row = k % source.id_columns
    row, number = _row_of(call, index, column, source, k), id_at(column, source, k, in_row)
    counts = not is_ignored(column, source, k) and not is_dropped(column, source, number, k)
    counts = counts and _is_sound(call, index, column, source, k, row, number)
    owner = columns * batch
    if counts:
        owner = index * batch + row
        store_as(marks, element, np.int32(1), np.int32)
        if call.is_batch_open == 0:  # else all threads would add to one word
            atomic_add(marks, elements + owner, np.int32(1), np.int32)
    store(ids, element, number)
    store_as(owners, element, np.int32(owner), np.int32)


@jit
def _check_split(
    call: PreLookupCall, index: int, column: ColumnAttrs, source: ColumnInputs, row: int
) -> None:
    """Reports a row split that is less than the one before, or is not where ids begin or end."""
    splits = source.entry_rows
    dtype = column.rows_dtype
    total = source.id_count
    split, before = integer_at(splits, row, dtype), int64(0)
    if row > 0:
        before = integer_at(splits, row - 1, dtype)
    is_cut = (row == 0 and split != 0) or (row == call.batch_size and split != total)
    if is_cut or split < before or split > total:
        report_error(as_record(ErrorRecord, call.results), call_of.BAD_SPLIT, index, row, split)


def mark_rows(call_address: int, marks: int) -> None:
    """Kernel, a thread for each row of each column, and one more of each: marks those to fill.

    Args:
        marks: after what `mark_elements` writes, out: 1 for each row that is to be filled.
    """
    call = as_record(PreLookupCall, call_address)
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch, columns = call.batch_size, call.column_count
    if thread >= columns * (batch + 1):
        return
    index, row = thread // (batch + 1), thread % (batch + 1)
    column, source = (
        as_record(ColumnAttrs, column_attrs(call, index)),
        as_record(ColumnInputs, column_inputs(call, index)),
    )
    if column.id_format == ROW_SPLITS:
        _check_split(call, index, column, source, row)
    if row == batch or column.fill_empty_row == 0:
        return
    own = elements_of(call) + index * batch + row
    if load_as(marks, own, np.int32) != 0:
        return
    store_as(marks, own + columns * batch, np.int32(1), np.int32)
    number = filler_of(column)
    if not fits(column, number):
        report_error(
            as_record(ErrorRecord, call.results), call_of.BAD_KEY, index, int64(-1), number
        )
