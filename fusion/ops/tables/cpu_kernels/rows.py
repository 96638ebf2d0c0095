"""The rows that keys get: new ones, those of keys that are gone, and what they begin with."""

from __future__ import annotations

import numpy as np
from numba import int32

from fusion.ops.tables.cpu_kernels.buckets import hash_of, lock, unlock
from fusion.ops.tables.cpu_kernels.layout import Addition, KeyIndex
from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_add, atomic_load, atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, load_as, store_as
from fusion.runtime.native.pointers import as_words


@jit
def write_row(into: int, row: int, size: int) -> None:
    """Writes a row from an address, zeros from 0."""
    if row != 0:
        c_memcpy(into, row, size)
    else:
        c_memset(into, int32(0), size)


@jit
def begin_row(index: KeyIndex, key: int, row: int, addition: Addition) -> None:
    """Writes the initial values of a key: of samples, each element is that of some row of these.

    Which one depends on the key, the seed and the column alone.
    """
    if addition.table == 0:
        return
    size, dim = addition.item_bytes, addition.dim
    into = as_words(addition.table + row * dim * size)
    samples, count = as_words(addition.samples), addition.sample_count
    if samples == 0:
        write_row(into, addition.first, dim * size)
        return
    state = hash_of(key ^ hash_of(index.seed))
    for column in range(dim):
        sample = int64(0)
        if count > 1:
            # Of 32 bits of a hash (Lemire, Fast random integer generation in an interval, 2019).
            bits = np.uint64(hash_of(state + column)) >> np.uint64(32)
            sample = int64((bits * np.uint64(count)) >> np.uint64(32))
        if size == 4:
            value = load_as(samples, sample * dim + column, np.int32)
            store_as(into, column, value, np.int32)
        else:
            into[column] = samples[sample * dim + column]


@jit
def new_row(index: KeyIndex) -> int:
    """The number of a row that no key has, 0 if there is none."""
    if atomic_load(index, KeyIndex.free_rows) != 0:
        lock(index, KeyIndex.lock)
        free_rows, row = index.free_rows, int64(0)
        if free_rows != 0:
            row = int64(load_as(index + index.free, free_rows - 1, np.int32))
            index.free_rows = free_rows - 1
        unlock(index, KeyIndex.lock)
        if row != 0:
            return row
    row = atomic_add(index, KeyIndex.row_count, int64(1)) + 1
    if row > index.capacity:
        atomic_add(index, KeyIndex.row_count, int64(-1))
        return int64(0)
    return row


@jit
def retire_row(index: KeyIndex, row: int) -> None:
    """Notes the number of a row that no key has any more.

    It is not reused before `release_rows`, since updates may be on their way to it.
    """
    lock(index, KeyIndex.lock)
    count = index.pending_rows
    store_as(index + index.pending, count, np.int32(row), np.int32)
    index.pending_rows = count + 1
    unlock(index, KeyIndex.lock)


@jit
def pending_rows(index: KeyIndex, rows: Words, max_count: int) -> int:
    """Writes the pending rows, counted from 0, the oldest first; returns how many."""
    lock(index, KeyIndex.lock)
    count = min(index.pending_rows, max_count)
    for k in range(count):
        row = int64(load_as(index + index.pending, k, np.int32))
        rows[k] = row - 1
    unlock(index, KeyIndex.lock)
    return count


@jit
def release_rows(index: KeyIndex, count: int) -> None:
    """Frees the first pending rows for other keys."""
    lock(index, KeyIndex.lock)
    pending, count = index + index.pending, max(count, int64(0))
    remaining = max(index.pending_rows - count, int64(0))
    count = index.pending_rows - remaining
    free_rows = index.free_rows
    free = index + index.free
    for k in range(count):
        store_as(free, free_rows + k, load_as(pending, k, np.int32), np.int32)
    for k in range(remaining):
        store_as(pending, k, load_as(pending, count + k, np.int32), np.int32)
    index.pending_rows = remaining
    aged = index.aged_rows - count
    index.aged_rows = max(aged, int64(0))
    atomic_store(index, KeyIndex.free_rows, free_rows + count)
    unlock(index, KeyIndex.lock)


@jit
def age_rows(index: KeyIndex) -> None:
    """Notes that the rows that are pending were so at this moment."""
    lock(index, KeyIndex.lock)
    index.aged_rows = index.pending_rows
    unlock(index, KeyIndex.lock)


@jit
def fill_rows(index: KeyIndex, number: int, slot: int, row: int, row_bytes: int) -> int:
    """Writes a row to all of a slot that are in use and were not filled before.

    Args:
      index: its address.
      number: of the slot.
      slot: the address of its rows.
      row: that of what they begin with.

    Returns:
      How many they were.
    """
    end = min(atomic_load(index, KeyIndex.row_count), index.capacity)
    if atomic_load(index, KeyIndex.filled + number) >= end:
        return int64(0)
    lock(index, KeyIndex.fill_lock)
    first = index.filled[number]
    for k in range(first, end):
        c_memcpy(slot + k * row_bytes, row, row_bytes)
    if first < end:
        atomic_store(index, KeyIndex.filled + number, end)
    unlock(index, KeyIndex.fill_lock)
    return max(end - first, int64(0))
