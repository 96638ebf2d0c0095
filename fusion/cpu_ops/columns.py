"""Lists the entries of a column: which ids count, and the addresses of their rows.

What a column does, and its inputs, its *source*: see `ColumnAttrs` and `ColumnInputs`; both
are addresses here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import DENSE, LISTED, ROW_SPLITS, ColumnAttrs, ColumnInputs
from fusion.cpu_ops.elements import (
    INVALID,
    Batch,
    first_element,
    id_at,
    integer_at,
    is_dropped,
    is_ignored,
    weight_at,
)
from fusion.cpu_ops.plain_columns import (
    list_rows,
    list_single_buckets,
    list_single_ids,
    list_sorted,
    list_sorted_weighted,
)
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.tensorflow.dtypes import FLOAT32, FLOAT64, INT32, INT64


@jit
def _put(batch: Batch, count: int, number: int, index: int) -> int:
    """Appends an entry; returns the new count, or INVALID for an id out of bounds."""
    column, source = batch.column, batch.source
    if is_dropped(column, source, number, index):
        return count
    if number < 0 or number >= source.table_rows:
        return int64(INVALID)
    address = source.table + number * source.row_bytes
    batch.addresses[count] = address
    if column.use_sparse_weights != 0:
        dtype = source.table_dtype
        _put_weight(batch, count, weight_at(source.weights, index, dtype))
    return count + 1


@jit
def _list_sorted(batch: Batch, first: int, end: int) -> int:
    column, source = batch.column, batch.source
    rows = source.entry_rows
    step = source.entry_row_stride
    dtype = column.rows_dtype
    for row in range(batch.count + 1):
        batch.starts[row] = 0
    changes = column.num_buckets | column.wrap_negative
    if dtype == INT64 and changes == 0:
        if column.use_sparse_weights == 0:
            return list_sorted(batch, first, end)
        if source.table_dtype == FLOAT32:
            return list_sorted_weighted(batch, first, end)
    before, count = int64(0), int64(0)
    for k in range(first, end):
        row = integer_at(rows, k * step, dtype) - batch.first
        if row < before or row >= batch.count:
            return int64(INVALID)
        before = row
        count = _put(batch, count, id_at(column, source, k, 0), k)
        if count < 0:
            return int64(INVALID)
        batch.starts[row + 1] = count
    return count


@jit
def _list_rows(batch: Batch, first: int, last: int) -> int:
    column, source = batch.column, batch.source
    if column.use_sparse_weights == 0 and column.boundary_count == 0:
        return list_rows(batch, first, last)
    count, end = int64(0), first_element(column, source, batch.first)
    batch.starts[0] = 0
    for row in range(batch.count):
        start, end = end, first_element(column, source, batch.first + row + 1)
        if start < 0 or start > end or end > source.id_count:
            return int64(INVALID)
        for k in range(start, end):
            if not is_ignored(column, source, k):
                count = _put(batch, count, id_at(column, source, k, k - start), k)
                if count < 0:
                    return int64(INVALID)
        batch.starts[row + 1] = count
    return count


@jit
def _has_single_ids(column: ColumnAttrs, source: ColumnInputs) -> bool:
    """Whether rows have one element each, and a row of zeros can stand for an empty one."""
    if column.id_format != DENSE or source.id_columns != 1 or source.zeros == 0:
        return False
    if column.max_norm >= 0 or source.table_rows == 0:
        return False
    if column.fill_empty_row != 0 and column.default_id >= 0:
        return False
    # Of values, `ignored` is compared before they become ids.
    has_limits = column.boundary_count > 0
    dtype = column.ids_dtype
    if has_limits:
        return dtype == FLOAT32 and column.use_ignored_id == 0
    return dtype in (INT32, INT64)


@jit
def list_unfilled(batch: Batch, first: int, end: int) -> int:
    """Lists the entries of rows that are in order, without those that fill empty rows.

    The start of a row after an empty one may be 0.

    Args:
      first, end: the elements of the rows, see `element_range`.

    Returns:
      The number of entries, or INVALID: rows are not in order, or something is out of bounds.
    """
    if batch.column.id_format in (DENSE, ROW_SPLITS, LISTED):
        return _list_rows(batch, first, end)
    return _list_sorted(batch, first, end)


@jit
def list_entries(batch: Batch, first: int, end: int) -> int:
    """Lists the entries of rows that are in order.

    Args:
      first, end: the elements of the rows, see `element_range`.

    Returns:
      The number of entries, at most one for each element and row, or INVALID: rows are not in
      order, or something is out of bounds.
    """
    if _has_single_ids(batch.column, batch.source):
        # One id each, or a value.
        if batch.column.boundary_count > 0:
            return list_single_buckets(batch)
        return list_single_ids(batch)
    count = list_unfilled(batch, first, end)
    return _filled(batch, count) if count >= 0 else count


@jit
def list_unsorted(batch: Batch, order: Words) -> int:
    """Lists the entries of all rows of a column, in any order, as `list_entries` does.

    Args:
      batch: what to list; its starts must hold one more.
      order: scratch, int64 [nnz].
    """
    count = list_unfilled_unsorted(batch, order)
    return _filled(batch, count) if count >= 0 else count


@jit
def list_unfilled_unsorted(batch: Batch, order: Words) -> int:
    """As `list_unsorted`, without the entries that fill empty rows."""
    column = batch.column
    source = batch.source
    starts = batch.starts
    rows = source.entry_rows
    step = source.entry_row_stride
    dtype = column.rows_dtype
    for row in range(batch.count + 2):
        starts[row] = 0
    for turn in range(2):
        for k in range(source.id_count):
            if is_dropped(column, source, id_at(column, source, k, 0), k):
                continue
            row = integer_at(rows, k * step, dtype)
            if row < 0 or row >= batch.count:
                return int64(INVALID)
            # Counted one further on, so that in the end each row's start stands in its place.
            slot = row + 2 - turn
            if turn == 1:
                order[starts[slot]] = k
            starts[slot] = starts[slot] + 1
        if turn == 0:
            for row in range(batch.count):
                starts[row + 2] = starts[row + 2] + starts[row + 1]
    count = int64(0)
    for index in range(starts[batch.count]):
        k = order[index]
        count = _put(batch, count, id_at(column, source, k, 0), k)
        if count < 0:
            return count
    return count


@jit
def split_range(column: ColumnAttrs, source: ColumnInputs, first: int, count: int) -> Any:
    """As `element_range`, for rows that are dense or have splits."""
    start = first_element(column, source, first)
    end, total = first_element(column, source, first + count), source.id_count
    is_last = first + count == source.batch_size
    is_cut = (first == 0 and start != 0) or (is_last and end != total)
    if (is_cut and column.id_format != LISTED) or start < 0 or end < start or end > total:
        return int64(0), int64(-1)
    return start, end


@jit
def element_range(column: ColumnAttrs, source: ColumnInputs, first: int, count: int) -> Any:
    """The element range [first, end) of some rows; (0, -1) if the rows are invalid."""
    if column.id_format in (DENSE, ROW_SPLITS, LISTED):
        return split_range(column, source, first, count)
    rows = source.entry_rows
    dtype = column.rows_dtype
    total = source.id_count
    step = source.entry_row_stride
    start = int64(0) if first == 0 else lower_bound(rows, step, dtype, total, first)
    is_last = first + count == source.batch_size
    end = total if is_last else lower_bound(rows, step, dtype, total, first + count)
    return start, max(start, end)


@jit
def _put_weight(batch: Batch, index: int, weight: float) -> None:
    if batch.source.table_dtype == FLOAT64:
        store_as(batch.weights, index, weight, np.float64)
    else:
        store_as(batch.weights, index, np.float32(weight), np.float32)


@jit
def lower_bound(rows: int, step: int, dtype: int, count: int, row: int) -> int:
    """The number of sorted entries before a row: a binary search."""
    low, high = int64(0), count
    while low < high:
        middle = (low + high) // 2
        if integer_at(rows, middle * step, dtype) < row:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _filled(batch: Batch, count: int) -> int:
    """Fills rows without entries, if the column asks for it; returns the entry count or INVALID.

    Where no row has more than one, an empty row gets a row of zeros: then all have exactly one, and
    a kernel need not look.
    """
    column, source = batch.column, batch.source
    last, empty = int64(0), int64(0)
    for row in range(batch.count):
        end = max(batch.starts[row + 1], last)
        batch.starts[row + 1] = end
        empty += int64(1) if end == last else int64(0)
        last = end
    if empty == 0:
        return count
    if column.fill_empty_row != 0:
        number = max(column.default_id, int64(0))
        if number >= source.table_rows:
            return int64(INVALID)
        if column.default_id >= 0:
            address = source.table + number * source.row_bytes
            return _insert(batch, count, empty, address)
    # A row of zeros clipped to 0 is NaN.
    plain = column.use_sparse_weights == 0 and column.max_norm < 0
    if plain and count + empty == batch.count and source.zeros != 0:
        return _insert(batch, count, empty, source.zeros)
    return count


@jit
def _insert(batch: Batch, count: int, empty: int, address: int) -> int:
    """Inserts an entry at an address into each row without entries; moves later ones back."""
    weighted = batch.column.use_sparse_weights != 0
    is_double = batch.source.table_dtype == FLOAT64
    source, target = count, count + empty
    for row in range(batch.count - 1, -1, -1):
        n = batch.starts[row + 1] - batch.starts[row]
        batch.starts[row + 1] = target
        if n == 0:
            target -= 1
            batch.addresses[target] = address
            if weighted:
                _put_weight(batch, target, batch.column.default_weight)
        for _ in range(n):
            source -= 1
            target -= 1
            batch.addresses[target] = batch.addresses[source]
            if weighted and is_double:
                store(batch.weights, target, load(batch.weights, source))
            elif weighted:
                moved = load_as(batch.weights, source, np.float32)
                store_as(batch.weights, target, moved, np.float32)
    return count + empty
