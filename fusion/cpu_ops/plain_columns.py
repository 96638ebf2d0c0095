"""Listing the entries of columns of the usual dtypes and forms; see `columns`.

These loops read all that does not change before they begin: to the compiler, any store might change
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.elements import INVALID, Batch, bucket_id, first_element, integer_at, integer_id
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as


def _listing_sorted(weighted: bool) -> Any:
    """A jitted function (batch, first, end) that lists entries with their row, which is int64.

    Args:
      weighted: whether the entries have weights, which are float32.
    """

    @jit
    def list_sorted(batch: Batch, first: int, end: int) -> int:
        column, source = batch.column, batch.source
        rows = load(source, ColumnInputs.entry_rows)
        step = load(source, ColumnInputs.entry_row_stride)
        ids = load(source, ColumnInputs.ids)
        kind, weights = load(column, ColumnAttrs.ids_dtype), load(source, ColumnInputs.weights)
        table, table_rows = load(source, ColumnInputs.table), load(source, ColumnInputs.table_rows)
        row_bytes = load(source, ColumnInputs.row_bytes)
        dropped = (
            int64(0) if load(column, ColumnAttrs.prune) != 0 else int64(np.iinfo(np.int64).min)
        )
        prunes_weights = load(column, ColumnAttrs.prune_sparse_weights) != 0
        before, count = int64(0), int64(0)
        for k in range(first, end):
            row = load(rows, k * step) - batch.first
            number = integer_at(ids, k, kind)
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
            store(batch.addresses, count, table + number * row_bytes)
            count += 1
            store(batch.starts, row + 1, count)
        return count

    return list_sorted


list_sorted, list_sorted_weighted = _listing_sorted(weighted=False), _listing_sorted(weighted=True)


@jit
def _list_all(batch: Batch, first: int, end: int) -> bool:
    """Lists all elements, without a look at the rows; returns whether all are in the table."""
    column, source = batch.column, batch.source
    ids = load(source, ColumnInputs.ids)
    kind = load(column, ColumnAttrs.ids_dtype)
    addresses = batch.addresses
    table, table_rows = load(source, ColumnInputs.table), load(source, ColumnInputs.table_rows)
    row_bytes, inside = load(source, ColumnInputs.row_bytes), int64(-1)
    for k in range(first, end):
        number = integer_at(ids, k, kind)
        # The first is negative unless the id is, the second unless it is too large.
        inside &= ~number & (number - table_rows)
        store(addresses, k - first, table + number * row_bytes)
    return inside < 0


@jit
def list_rows(batch: Batch, first: int, last: int) -> int:
    """Lists rows that are dense or have splits, without weights."""
    column, source = batch.column, batch.source
    ids, kind = load(source, ColumnInputs.ids), load(column, ColumnAttrs.ids_dtype)
    addresses, starts = batch.addresses, batch.starts
    table, table_rows = load(source, ColumnInputs.table), load(source, ColumnInputs.table_rows)
    row_bytes = load(source, ColumnInputs.row_bytes)
    stride = load(column, ColumnAttrs.column_stride)
    dropped = int64(0) if load(column, ColumnAttrs.prune) != 0 else int64(np.iinfo(np.int64).min)
    ignored = load(column, ColumnAttrs.ignored_id)
    may_ignore = load(column, ColumnAttrs.use_ignored_id) != 0
    buckets = load(column, ColumnAttrs.num_buckets)
    bucket_default = load(column, ColumnAttrs.bucket_default)
    wrapped = table_rows if load(column, ColumnAttrs.wrap_negative) != 0 else int64(0)
    is_plain = not may_ignore and stride == 0 and buckets == 0
    is_listed = is_plain and _list_all(batch, first, last)
    count, end = int64(0), first
    store(starts, 0, 0)
    for row in range(batch.count):
        start, end = end, first_element(column, source, batch.first + row + 1)
        if start > end or end > last:
            return int64(INVALID)
        if is_listed:
            store(starts, row + 1, end - first)
            continue
        for k in range(start, end):
            number = integer_at(ids, k, kind)
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
            store(addresses, count, table + number * row_bytes)
            count += 1
        store(starts, row + 1, count)
    return end - first if is_listed else count


def _listing_singles(id_of: Any) -> Any:
    """A jitted function (batch) that lists rows with one id each; see `_has_single_ids`.

    Args:
      id_of: a jitted function (ids, kind, limits, number of limits, index) -> an element's id.
    """

    @jit
    def list_singles(batch: Batch) -> int:
        column, source = batch.column, batch.source
        ids = load(source, ColumnInputs.ids)
        kind = load(column, ColumnAttrs.ids_dtype)
        limits = load(source, ColumnInputs.boundaries)
        limit_count, first = load(column, ColumnAttrs.boundary_count), batch.first
        addresses, starts = batch.addresses, batch.starts
        table, zeros = load(source, ColumnInputs.table), load(source, ColumnInputs.zeros)
        table_rows = load(source, ColumnInputs.table_rows)
        row_bytes = load(source, ColumnInputs.row_bytes)
        # What is not in the table, but not wrong either.
        dropped = (
            int64(0) if load(column, ColumnAttrs.prune) != 0 else int64(np.iinfo(np.int64).min)
        )
        ignored = load(column, ColumnAttrs.ignored_id)
        buckets = load(column, ColumnAttrs.num_buckets)
        may_ignore = load(column, ColumnAttrs.use_ignored_id) != 0
        wrapped = table_rows if load(column, ColumnAttrs.wrap_negative) != 0 else int64(0)
        for row in range(batch.count):
            number = id_of(ids, kind, limits, limit_count, first + row)
            address = table + number * row_bytes
            is_ignored = may_ignore and number == ignored
            if buckets > 0 and not 0 <= number < buckets:
                number = load(column, ColumnAttrs.bucket_default)
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
            store(addresses, row, address)
            store(starts, row, row)
        store(starts, batch.count, batch.count)
        return batch.count

    return list_singles


list_single_ids = _listing_singles(integer_id)
list_single_buckets = _listing_singles(bucket_id)
