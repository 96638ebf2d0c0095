"""Listing the entries of columns of the usual dtypes and forms; see `columns`.

These loops read all that does not change before they begin: to the compiler, any store might change
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.elements import INVALID, Batch, bucket_id, first_element, integer_at, integer_id
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as
from fusion.runtime.native.pointers import as_words


def _listing_sorted(weighted: bool) -> Any:
    """A jitted function (batch, first, end) that lists entries with their row, which is int64.

    Args:
      weighted: whether the entries have weights, which are float32.
    """

    @jit
    def list_sorted(batch: Batch, first: int, end: int) -> int:
        column, source = batch.column, batch.source
        rows = as_words(source.entry_rows)
        step = source.entry_row_stride
        ids = source.ids
        dtype, weights = column.ids_dtype, source.weights
        table, table_rows = source.table, source.table_rows
        row_bytes = source.row_bytes
        dropped = int64(0) if column.prune != 0 else int64(np.iinfo(np.int64).min)
        prunes_weights = column.prune_sparse_weights != 0
        before, count = int64(0), int64(0)
        for k in range(first, end):
            row = rows[k * step] - batch.first
            number = integer_at(ids, k, dtype)
            if row < before or row >= batch.count:
                return int64(INVALID)
            before = row
            if weighted:
                weight = load_as(weights, k, np.float32)
                # A NaN weight is not > 0: it is dropped, as stock TensorFlow does.
                if prunes_weights and not weight > 0:
                    continue
                store_as(batch.weights, count, weight, np.float32)
            if number < 0 or number >= table_rows:
                if number >= dropped:
                    return int64(INVALID)
                continue
            batch.addresses[count] = table + number * row_bytes
            count += 1
            batch.starts[row + 1] = count
        return count

    return list_sorted


list_sorted, list_sorted_weighted = _listing_sorted(weighted=False), _listing_sorted(weighted=True)


@jit
def _list_all(batch: Batch, first: int, end: int) -> bool:
    """Lists all elements, ignoring rows; returns whether all ids are in the table."""
    column, source = batch.column, batch.source
    ids, step = source.ids, 1 + source.id_gap
    dtype = column.ids_dtype
    addresses = batch.addresses
    table, table_rows = source.table, source.table_rows
    row_bytes, inside = source.row_bytes, int64(-1)
    for k in range(first, end):
        number = integer_at(ids, k * step, dtype)
        # The first is negative unless the id is, the second unless it is too large.
        inside &= ~number & (number - table_rows)
        addresses[k - first] = table + number * row_bytes
    return inside < 0


@jit
def list_rows(batch: Batch, first: int, last: int) -> int:
    """Lists rows that are dense or have splits, without weights."""
    column, source = batch.column, batch.source
    ids, dtype, step = source.ids, column.ids_dtype, 1 + source.id_gap
    addresses, starts = batch.addresses, batch.starts
    table, table_rows = source.table, source.table_rows
    row_bytes = source.row_bytes
    stride = column.column_stride
    dropped = int64(0) if column.prune != 0 else int64(np.iinfo(np.int64).min)
    ignored = column.ignored_id
    may_ignore = column.use_ignored_id != 0
    buckets = column.num_buckets
    bucket_default = column.bucket_default
    wrapped = table_rows if column.wrap_negative != 0 else int64(0)
    is_plain = not may_ignore and stride == 0 and buckets == 0
    is_listed = is_plain and _list_all(batch, first, last)
    count, end = int64(0), first
    starts[0] = 0
    for row in range(batch.count):
        start, end = end, first_element(column, source, batch.first + row + 1)
        if start > end or end > last:
            return int64(INVALID)
        if is_listed:
            starts[row + 1] = end - first
            continue
        for k in range(start, end):
            number = integer_at(ids, k * step, dtype)
            if may_ignore and number == ignored:
                continue
            number += (k - start) * stride
            if buckets > 0 and not 0 <= number < buckets:
                number = bucket_default
            number += wrapped if number < 0 else int64(0)
            if number < 0 or number >= table_rows:
                if number >= dropped:
                    return int64(INVALID)
                continue
            addresses[count] = table + number * row_bytes
            count += 1
        starts[row + 1] = count
    return end - first if is_listed else count


def _listing_singles(id_of: Any) -> Any:
    """A jitted function (batch) that lists rows with one id each; see `_has_single_ids`.

    Args:
      id_of: a jitted function (ids, dtype, limits, number of limits, index) -> an element's id.
    """

    @jit
    def list_singles(batch: Batch) -> int:
        column, source = batch.column, batch.source
        ids, step = source.ids, 1 + source.id_gap
        dtype = column.ids_dtype
        limits = source.boundaries
        limit_count, first = column.boundary_count, batch.first
        addresses, starts = batch.addresses, batch.starts
        table, zeros = source.table, source.zeros
        table_rows = source.table_rows
        row_bytes = source.row_bytes
        # What is not in the table, but not wrong either.
        dropped = int64(0) if column.prune != 0 else int64(np.iinfo(np.int64).min)
        ignored = column.ignored_id
        buckets = column.num_buckets
        may_ignore = column.use_ignored_id != 0
        wrapped = table_rows if column.wrap_negative != 0 else int64(0)
        for row in range(batch.count):
            number = id_of(ids, dtype, limits, limit_count, (first + row) * step)
            address = table + number * row_bytes
            is_ignored = may_ignore and number == ignored
            if buckets > 0 and not 0 <= number < buckets:
                number = column.bucket_default
                address = table + number * row_bytes
            if is_ignored:
                address = zeros
            elif number < 0 or number >= table_rows:
                number += wrapped if number < 0 else int64(0)
                address = table + number * row_bytes
                if number < 0 or number >= table_rows:
                    if number >= dropped:
                        return int64(INVALID)
                    address = zeros
            addresses[row] = address
            starts[row] = row
        starts[batch.count] = batch.count
        return batch.count

    return list_singles


list_single_ids = _listing_singles(integer_id)
list_single_buckets = _listing_singles(bucket_id)
