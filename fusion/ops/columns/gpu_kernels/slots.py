"""The positions of elements that count, and of rows that are to be filled.

A column has a position for each element that counts, rows ascending, and one among them for each
row that is empty and to be filled. It has an entry for each of its positions, but for those of rows
that get an id alone (`listing.fills_entries`).
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.elements import lower_bound
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    cuda,
    jit,
    load,
    load_as,
    store,
    store_as,
)
from fusion.gpu_ops.layout.call import PreLookupCall
from fusion.gpu_ops.layout.records import ListedElements
from fusion.ops.columns.gpu_kernels.listing import (
    column_attrs,
    column_inputs,
    elements_of,
    filler_of,
    fills_entries,
)
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64


@jit
def is_in_order(call: PreLookupCall, index: int) -> bool:
    """Whether the elements of a column are known to be in the order of rows."""
    return load(call.results, ErrorRecord.SIZE + index) == 0


@jit
def entries_before(call: PreLookupCall, sums: Words, index: int, row: int) -> int:
    """The elements that count in the rows of a column before one; that may be the last's end.

    Args:
        sums: int64, prefix sums of marks; see `mark_elements`.
    """
    if call.is_batch_open != 0:  # all are in one row
        starts = call.element_offsets
        end = starts[index + 1] if row > 0 else starts[index]
        return sums[end] - sums[starts[index]]
    first = elements_of(call) + index * call.batch_size
    return sums[first + row] - sums[first]


@jit
def fillers_before(call: PreLookupCall, sums: Words, index: int, row: int) -> int:
    """The rows of a column before one that are empty and to be filled; see `entries_before`."""
    batch = call.batch_size
    first = elements_of(call) + (call.column_count + index) * batch
    return sums[first + row] - sums[first]


@jit
def position_count(call: PreLookupCall, sums: Words, index: int) -> int:
    """How many positions a column has."""
    batch = call.batch_size
    return entries_before(call, sums, index, batch) + fillers_before(call, sums, index, batch)


@jit
def _fillers_among(call: PreLookupCall, sums: Words, index: int, row: int, is_ordered: int) -> int:
    """The positions for rows before those for elements of a row.

    None where the elements of a column are not in the order of rows: there rows come after them.
    """
    if is_ordered == 0 and not is_in_order(call, index):
        return int64(0)
    return fillers_before(call, sums, index, row)


def place_elements(
    call_address: int, listed: ListedElements, ranks: int, is_ordered: int, keys: int, sources: int
) -> None:
    """Kernel, a thread for each element of all columns: writes what its position has.

    Args:
        ranks: int64 by element, how many come before it that count; 0: as the sums have it.
        is_ordered: whether that is in the order of rows in all columns.
        keys, sources: out, as of `Pairs`.
    """
    call = as_record(PreLookupCall, call_address)
    element = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch, columns = call.batch_size, call.column_count
    if element >= elements_of(call):
        return
    owner = int64(load_as(listed.owners, element, np.int32))
    if owner == columns * batch:
        return
    index, row = owner // batch, owner % batch
    first = call.entry_offsets[index]
    own = load(ranks, element) if ranks != 0 else load(listed.sums, element)
    own -= load(listed.sums, call.element_offsets[index])
    own += first + _fillers_among(call, as_words(listed.sums), index, row, is_ordered)
    store(keys, own, load(listed.ids, element))
    store_as(sources, own, np.int32(element), np.int32)


def split_rows(call_address: int, sums: int, batch: int, splits: int) -> None:
    """Kernel, a thread for each row of each column, and one more of each: where its entries start.

    For calls whose rows became known after the other kernels (`is_batch_open`); all columns have
    rows in order, and fill none.

    Args:
        sums: as of `ListedElements`.
        batch: the rows.
        splits: out, int32 [columns, batch + 1].
    """
    call = as_record(PreLookupCall, call_address)
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread >= call.column_count * (batch + 1):
        return
    index, row = thread // (batch + 1), thread % (batch + 1)
    column, source = (
        as_record(ColumnAttrs, column_attrs(call, index)),
        as_record(ColumnInputs, column_inputs(call, index)),
    )
    rows = source.entry_rows
    step = source.entry_row_stride
    dtype = column.rows_dtype
    first = call.element_offsets[index]
    element = first + lower_bound(rows, step, dtype, source.id_count, row)
    split = call.entry_offsets[index] + load(sums, element) - load(sums, first)
    store_as(splits, thread, np.int32(split), np.int32)


def place_rows(
    call_address: int, sums: int, is_ordered: int, keys: int, sources: int, splits: int
) -> None:
    """Kernel, a thread for each row of each column, and one more of each.

    Writes what the positions of rows that are to be filled have, and where each row's entries
    start.

    Args:
        sums: as of `ListedElements`.
        is_ordered, keys, sources: see `place_elements`.
        splits: out, int32 [columns, batch + 1].
    """
    call = as_record(PreLookupCall, call_address)
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch, columns = call.batch_size, call.column_count
    if thread >= columns * (batch + 1):
        return
    index, row = thread // (batch + 1), thread % (batch + 1)
    column, first = (
        as_record(ColumnAttrs, column_attrs(call, index)),
        call.entry_offsets[index],
    )
    before, fillers = (
        entries_before(call, as_words(sums), index, row),
        fillers_before(call, as_words(sums), index, row),
    )
    split = first + before
    if fills_entries(column):
        split += fillers
    store_as(splits, thread, np.int32(split), np.int32)
    if row == batch or fillers_before(call, as_words(sums), index, row + 1) == fillers:
        return
    if is_ordered == 0 and not is_in_order(call, index):
        before = entries_before(call, as_words(sums), index, batch)
    own = first + before + fillers
    store(keys, own, filler_of(column))
    store_as(sources, own, np.int32(-1), np.int32)
