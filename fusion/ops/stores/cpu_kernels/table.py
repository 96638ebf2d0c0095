"""The hot rows of a table, read by any number of threads while others change them.

The index is that of embedding variables (`tables.cpu_kernels.index`), whose stripes have versions.
A writer changes the row of a key while its stripe's version is odd; a row that changes owner is
taken from the old key first. So a reader that has copied a row and finds the version of the key's
stripe unchanged has one version of that row, whole; else it reads again.

Which row makes room is chosen as by CLOCK (F. Corbato, A paging experiment with the Multics system,
1968): a hand goes round, passes rows that were read since it came by, and takes the first other.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.stores.cpu_kernels.layout import HotTable
from fusion.ops.tables.cpu_kernels.buckets import (
    begin_change,
    bucket_of,
    end_change,
    hash_of,
    lock,
    unlock,
    whole_of,
)
from fusion.ops.tables.cpu_kernels.index import add, find, remove
from fusion.ops.tables.cpu_kernels.layout import STRIPES, Addition, KeyIndex
from fusion.ops.tables.cpu_kernels.rows import release_rows, retire_row
from fusion.runtime.layout import Layout, Words, fields
from fusion.runtime.native.atomic import atomic_add, atomic_load, keep_order
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load_as, store, store_as
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.threads.jobs import sched_yield

#: Keys that are looked up before their rows are read, so that loads from memory overlap.
BLOCK = 16

#: The stages of a block: prefetch buckets, find and prefetch rows, copy rows.
_STAGES = 3


class _Stage(Layout):
    """The state of a block of keys between the stages."""

    hashes: Words = fields(BLOCK)
    versions: Words = fields(BLOCK)  # of their stripes
    numbers: Words = fields(BLOCK)  # of their rows, from 1 on


#: Lines of a row that are prefetched.
_MAX_LINES = 8

_LINE_BYTES = 64

#: So often a row is read again before who changes it is let run.
_SPINS = 200


@jit
def _row(table: HotTable, number: int) -> int:
    """The address of a row by its number, counted from 1."""
    return table.rows + (number - 1) * table.row_bytes


@jit
def _version(table: HotTable, hashed: int) -> int:
    index = table.index
    return atomic_load(index, KeyIndex.versions + (hashed & (STRIPES - 1)))


@jit
def _mark(table: HotTable, number: int) -> None:
    """Notes that a row was read; what was noted already is not written, for others read it."""
    marks = table.marks
    if load_as(marks, number - 1, np.uint8) == np.uint8(0):
        store_as(marks, number - 1, np.uint8(1), np.uint8)


@jit
def read_row(table: HotTable, key: int, out: int) -> bool:
    """Copies the row of a key, if it is there."""
    index, hashed, spins = table.index, hash_of(key), 0
    while True:
        version = _version(table, hashed)
        if version & 1 == 0:
            count = atomic_load(index, KeyIndex.bucket_count)
            number = find(index, key, hashed, count, whole_of(count))
            if number <= 0:
                return False
            c_memcpy(out, _row(table, number), table.row_bytes)
            keep_order()
            if _version(table, hashed) == version:
                _mark(table, number)
                return True
        spins += 1
        if spins % _SPINS == 0:
            sched_yield()


@jit
def read_rows(table: HotTable, keys: Words, first: int, end: int, out: int, call: Words) -> None:
    """Copies the rows of those keys that are there.

    Args:
      table: a `HotTable`.
      keys: the address of all keys.
      first, end: which of them.
      out: the address of all rows.
      call: (missing, count) two words: the address of the numbers of keys that are not there, and
        how many these are; several threads may add to them.
    """
    index = table.index
    count = atomic_load(index, KeyIndex.bucket_count)
    whole = whole_of(count)
    stages = stack_words(int64(_STAGES * _Stage.SIZE))
    blocks = (end - first + BLOCK - 1) // BLOCK
    for step in range(blocks + _STAGES - 1):
        # Each block is a stage behind the next one, so that what a stage prefetches has come.
        if step < blocks:
            own, start = as_record(_Stage, _stage_of(stages, step)), first + step * BLOCK
            _ask_buckets(
                index, as_words(keys + 8 * start), min(end - start, int64(BLOCK)), own, count, whole
            )
        if 1 <= step <= blocks:
            own, start = as_record(_Stage, _stage_of(stages, step - 1)), first + (step - 1) * BLOCK
            _find(
                table, as_words(keys + 8 * start), min(end - start, int64(BLOCK)), own, count, whole
            )
        if step >= 2:
            own, start = as_record(_Stage, _stage_of(stages, step - 2)), first + (step - 2) * BLOCK
            _copy(table, keys, start, min(end - start, int64(BLOCK)), own, out, call)


@jit
def _stage_of(stages: int, block: int) -> int:
    return stages + 8 * _Stage.SIZE * (block % _STAGES)


@jit
def _ask_buckets(
    index: KeyIndex, keys: Words, size: int, stage: _Stage, count: int, whole: int
) -> None:
    """Prefetches the buckets of a block of keys."""
    for k in range(size):
        hashed = hash_of(keys[k])
        stage.hashes[k] = hashed
        prefetch_line(bucket_of(index, hashed, count, whole))


@jit
def _find(table: HotTable, keys: Words, size: int, stage: _Stage, count: int, whole: int) -> None:
    """Finds the rows of a block of keys, and prefetches them."""
    index, marks = table.index, table.marks
    lines = (table.row_bytes + _LINE_BYTES - 1) // _LINE_BYTES
    lines = min(lines, int64(_MAX_LINES))
    for k in range(size):
        hashed = stage.hashes[k]
        stage.versions[k] = _version(table, hashed)
        number = find(index, keys[k], hashed, count, whole)
        stage.numbers[k] = number
        if number > 0:
            row = _row(table, number)
            for line in range(lines):
                prefetch_line(row + _LINE_BYTES * line)
            prefetch_line(marks + number - 1)


@jit
def _copy(
    table: HotTable, keys: Words, start: int, size: int, stage: _Stage, out: int, call: Words
) -> None:
    """Copies the rows of a block of keys that have rows."""
    row_bytes = table.row_bytes
    for k in range(size):
        number, into = stage.numbers[k], out + (start + k) * row_bytes
        is_there = number > 0
        if is_there:
            c_memcpy(into, _row(table, number), row_bytes)
            keep_order()
            version, hashed = stage.versions[k], stage.hashes[k]
            if version & 1 == 0 and _version(table, hashed) == version:
                _mark(table, number)
            else:
                is_there = read_row(table, keys[start + k], into)
        if not is_there:
            at = atomic_add(call, int64(1), int64(1))
            store(call[0], at, start + k)


@jit
def insert_rows(
    table: HotTable, keys: Words, rows: int, count: int, is_new: int, chosen: int
) -> None:
    """Writes the rows of keys.

    Args:
      rows: their address.
      is_new: whether a key that has no row gets one, which another key may lose.
      chosen: the address of a byte for each key, 0 where nothing is done; or 0: all are.
    """
    lock(table, HotTable.lock)
    for k in range(count):
        if chosen == 0 or load_as(chosen, k, np.uint8) != np.uint8(0):
            _insert(table, keys[k], rows + k * table.row_bytes, is_new)
    unlock(table, HotTable.lock)


@jit
def _insert(table: HotTable, key: int, row: int, is_new: int) -> None:
    index, hashed = table.index, hash_of(key)
    count = atomic_load(index, KeyIndex.bucket_count)
    number = find(index, key, hashed, count, whole_of(count))
    row_bytes = table.row_bytes
    if number > 0:
        stripe = hashed & (STRIPES - 1)
        begin_change(index, stripe)
        c_memcpy(_row(table, number), row, row_bytes)
        end_change(index, stripe)
        return
    if is_new == 0:
        return
    _make_room(table)
    addition = stack_record(Addition)
    clear(addition)
    addition.admission = 1
    addition.table = table.rows
    addition.first = row
    addition.dim = row_bytes // 4
    addition.item_bytes = 4
    number = add(index, key, hashed, int64(1), addition)
    if number > 0:
        table.owners[number - 1] = key
        store_as(table.marks, number - 1, np.uint8(0), np.uint8)
        atomic_add(table, HotTable.insert_count, int64(1))


@jit
def _make_room(table: HotTable) -> None:
    """Takes a row from a key, unless there is one that no key has."""
    index, capacity = table.index, table.capacity
    if index.free_rows > 0 or index.row_count < capacity:
        return
    marks, hand = table.marks, table.hand
    while load_as(marks, hand, np.uint8) != np.uint8(0):
        store_as(marks, hand, np.uint8(0), np.uint8)
        hand = hand + 1 if hand + 1 < capacity else int64(0)
    _remove(table, table.owners[hand])
    table.hand = hand + 1 if hand + 1 < capacity else int64(0)
    atomic_add(table, HotTable.evict_count, int64(1))


@jit
def _remove(table: HotTable, key: int) -> None:
    index = table.index
    number = remove(index, key)
    if number > 0:
        retire_row(index, number)
        release_rows(index, int64(1))


@jit
def remove_rows(table: HotTable, keys: Words, count: int) -> None:
    """Takes keys out; those that are not there stay so."""
    lock(table, HotTable.lock)
    for k in range(count):
        _remove(table, keys[k])
    unlock(table, HotTable.lock)


@jit
def remove_all(table: HotTable) -> None:
    """Takes all keys out."""
    lock(table, HotTable.lock)
    index = table.index
    for number in range(index.row_count):
        key = table.owners[number]
        hashed, count = hash_of(key), index.bucket_count
        # The row may be free, and its last owner have another one.
        if find(index, key, hashed, count, whole_of(count)) == number + 1:
            _remove(table, key)
    unlock(table, HotTable.lock)
