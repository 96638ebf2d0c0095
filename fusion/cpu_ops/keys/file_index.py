"""Building an index of keys in a file, and looking keys up in it; its format: see `file_layout`.

Whoever looks up trusts the head, which was checked, and nothing else: the numbers of slots and rows
are compared with how many there are, and a key with that of the row which it is said to have.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.keys.buckets import hash_of
from fusion.cpu_ops.keys.file_layout import FileFill, FileHead, FileLookup, FileSlot, FileSpread
from fusion.cpu_ops.vectors import prefetch_line
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load, stack_words, store, store_as

#: Keys whose slots, and then rows, come from memory side by side.
_BLOCK = 32

#: Lines of a row that are asked for.
_MOST_LINES = 8

_LINE_BYTES = 64
_SLOT_BYTES = 8 * FileSlot.SIZE


@jit
def _segment_of(hashed: int, bits: int) -> int:
    return int64((np.uint64(hashed) >> np.uint64(1)) >> np.uint64(63 - bits))


@jit
def _slot_of(hashed: int, count: int) -> int:
    """The slot at which a key is first looked for, of `count`, by the lower half of its hash."""
    low = np.uint64(hashed) & np.uint64(0xFFFFFFFF)
    return int64((low * np.uint64(count)) >> np.uint64(32))


@jit
def look_up(args: int) -> None:
    """Gathers the rows of keys.

    Args:
      args: the address of a `FileLookup`.
    """
    rows = stack_words(int64(2 * _BLOCK))
    count, before = load(args, FileLookup.count), int64(0)
    for start in range(0, count, _BLOCK):
        size = min(int64(_BLOCK), count - start)
        found = rows + 8 * (start & _BLOCK)
        if load(load(args, FileLookup.index), FileHead.is_range) != 0:
            _rows_of_range(args, start, size, found)
        else:
            _ask_for_slots(args, start, size)
            for k in range(size):
                store(found, k, _find(args, load(load(args, FileLookup.keys), start + k)))
            _ask_for_keys(args, size, found)
        _ask_for_rows(args, size, found)
        if start > 0:
            _copy(args, before, int64(_BLOCK), rows + 8 * (before & _BLOCK))
        before = start
    if count > 0:
        _copy(args, before, count - before, rows + 8 * (before & _BLOCK))


@jit
def _rows_of_range(args: int, start: int, size: int, rows: int) -> None:
    key_count = load(load(args, FileLookup.index), FileHead.key_count)
    for k in range(size):
        key = load(load(args, FileLookup.keys), start + k)
        store(rows, k, key if 0 <= key < key_count else int64(-1))


@jit
def _ask_for_slots(args: int, start: int, size: int) -> None:
    index, slots = load(args, FileLookup.index), load(args, FileLookup.slots)
    for k in range(size):
        hashed = hash_of(load(load(args, FileLookup.keys), start + k))
        segment = FileHead.segments + _segment_of(hashed, load(index, FileHead.segment_bits))
        first = load(index, segment)
        slot = first + _slot_of(hashed, load(index, segment + 1) - first)
        prefetch_line(slots + _SLOT_BYTES * slot)


@jit
def _find(args: int, key: int) -> int:
    """The row of a key, -1 if it has none."""
    index, hashed = load(args, FileLookup.index), hash_of(key)
    segment = FileHead.segments + _segment_of(hashed, load(index, FileHead.segment_bits))
    first = load(index, segment)
    count = load(index, segment + 1) - first
    slots = load(args, FileLookup.slots) + _SLOT_BYTES * first
    slot = _slot_of(hashed, count)
    for _ in range(count):
        at = slots + _SLOT_BYTES * slot
        row = load(at, FileSlot.row)
        if row == 0:
            return int64(-1)
        if load(at, FileSlot.key) == key:
            if 0 < row <= load(index, FileHead.key_count):
                return row - 1
            store(args, FileLookup.is_damaged, int64(1))
            return int64(-1)
        slot = slot + 1 if slot + 1 < count else int64(0)
    return int64(-1)


@jit
def _ask_for_keys(args: int, size: int, rows: int) -> None:
    for k in range(size):
        row = load(rows, k)
        if row >= 0:
            prefetch_line(load(args, FileLookup.table_keys) + 8 * row)


@jit
def _ask_for_rows(args: int, size: int, rows: int) -> None:
    table, row_bytes = load(args, FileLookup.table), load(args, FileLookup.row_bytes)
    lines = min((row_bytes + _LINE_BYTES - 1) // _LINE_BYTES, int64(_MOST_LINES))
    for k in range(size):
        row = load(rows, k)
        if row >= 0:
            for line in range(lines):
                prefetch_line(table + row * row_bytes + _LINE_BYTES * line)


@jit
def _copy(args: int, start: int, size: int, rows: int) -> None:
    table, row_bytes = load(args, FileLookup.table), load(args, FileLookup.row_bytes)
    out = load(args, FileLookup.out) + start * row_bytes
    is_range = load(load(args, FileLookup.index), FileHead.is_range) != 0
    for k in range(size):
        row = load(rows, k)
        if row >= 0 and not is_range:
            key = load(load(args, FileLookup.keys), start + k)
            if load(load(args, FileLookup.table_keys), row) != key:
                store(args, FileLookup.is_damaged, int64(1))
                row = int64(-1)
        if row >= 0:
            c_memcpy(out + k * row_bytes, table + row * row_bytes, row_bytes)
        store_as(load(args, FileLookup.found), start + k, np.uint8(row >= 0), np.uint8)


@jit
def count(args: int) -> None:
    """Counts keys by segment.

    Args:
      args: the address of a `FileSpread`.
    """
    bits, sizes = load(args, FileSpread.segment_bits), load(args, FileSpread.sizes)
    for k in range(load(args, FileSpread.count)):
        segment = _segment_of(hash_of(load(load(args, FileSpread.keys), k)), bits)
        store(sizes, segment, load(sizes, segment) + 1)


@jit
def spread(args: int) -> None:
    """Makes slots of keys, those of a segment side by side.

    Args:
      args: the address of a `FileSpread`.
    """
    bits, ends = load(args, FileSpread.segment_bits), load(args, FileSpread.ends)
    for k in range(load(args, FileSpread.count)):
        key = load(load(args, FileSpread.keys), k)
        segment = _segment_of(hash_of(key), bits)
        end = load(ends, segment)
        slot = load(args, FileSpread.slots) + _SLOT_BYTES * end
        store(slot, FileSlot.key, key)
        store(slot, FileSlot.row, load(args, FileSpread.first_row) + k + 1)
        store(ends, segment, end + 1)


@jit
def fill(args: int) -> None:
    """Makes the hash table of a segment.

    Args:
      args: the address of a `FileFill`.
    """
    slots, count = load(args, FileFill.slots), load(args, FileFill.slot_count)
    store(args, FileFill.repeated, int64(-1))
    for k in range(load(args, FileFill.count)):
        given = load(args, FileFill.given) + _SLOT_BYTES * k
        key = load(given, FileSlot.key)
        slot = _slot_of(hash_of(key), count)
        while load(slots + _SLOT_BYTES * slot, FileSlot.row) != 0:
            if load(slots + _SLOT_BYTES * slot, FileSlot.key) == key:
                store(args, FileFill.repeated, k)
                return
            slot = slot + 1 if slot + 1 < count else int64(0)
        c_memcpy(slots + _SLOT_BYTES * slot, given, int64(_SLOT_BYTES))
