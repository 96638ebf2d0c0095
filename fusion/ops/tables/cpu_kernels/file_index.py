"""Building an index of keys in a file, and looking keys up in it; its format: see `file_layout`.

A lookup trusts the head, which was checked, and nothing else: the numbers of slots and rows are
compared with how many there are, and a key with that of the row which it is said to have.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.tables.cpu_kernels.buckets import hash_of
from fusion.ops.tables.cpu_kernels.file_layout import (
    FileFill,
    FileHead,
    FileLookup,
    FileSlot,
    FileSpread,
)
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load, store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_words

#: Keys whose slots, and then rows, come from memory side by side.
_BLOCK = 32

#: Lines of a row that are prefetched.
_MAX_LINES = 8

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
def look_up(args: FileLookup) -> None:
    """Gathers the rows of keys.

    Args:
      args: the address of a `FileLookup`.
    """
    rows = stack_words(int64(2 * _BLOCK))
    count, before = args.count, int64(0)
    for start in range(0, count, _BLOCK):
        size = min(int64(_BLOCK), count - start)
        block_rows = as_words(rows + 8 * (start & _BLOCK))
        if args.index.is_range != 0:
            _rows_of_range(args, start, size, block_rows)
        else:
            _ask_for_slots(args, start, size)
            for k in range(size):
                block_rows[k] = _find(args, args.keys[start + k])
            _ask_for_keys(args, size, block_rows)
        _ask_for_rows(args, size, block_rows)
        if start > 0:
            _copy(args, before, int64(_BLOCK), as_words(rows + 8 * (before & _BLOCK)))
        before = start
    if count > 0:
        _copy(args, before, count - before, as_words(rows + 8 * (before & _BLOCK)))


@jit
def _rows_of_range(args: FileLookup, start: int, size: int, rows: Words) -> None:
    key_count = args.index.key_count
    for k in range(size):
        key = args.keys[start + k]
        rows[k] = key if 0 <= key < key_count else int64(-1)


@jit
def _ask_for_slots(args: FileLookup, start: int, size: int) -> None:
    index, slots = args.index, args.slots
    for k in range(size):
        hashed = hash_of(args.keys[start + k])
        segment = FileHead.segments + _segment_of(hashed, index.segment_bits)
        first = load(index, segment)
        slot = first + _slot_of(hashed, load(index, segment + 1) - first)
        prefetch_line(slots + _SLOT_BYTES * slot)


@jit
def _find(args: FileLookup, key: int) -> int:
    """The row of a key, -1 if it has none."""
    index, hashed = args.index, hash_of(key)
    segment = FileHead.segments + _segment_of(hashed, index.segment_bits)
    first = load(index, segment)
    count = load(index, segment + 1) - first
    slots = args.slots + _SLOT_BYTES * first
    slot = _slot_of(hashed, count)
    for _ in range(count):
        at = as_record(FileSlot, slots + _SLOT_BYTES * slot)
        row = at.row
        if row == 0:
            return int64(-1)
        if at.key == key:
            if 0 < row <= index.key_count:
                return row - 1
            args.is_damaged = int64(1)
            return int64(-1)
        slot = slot + 1 if slot + 1 < count else int64(0)
    return int64(-1)


@jit
def _ask_for_keys(args: FileLookup, size: int, rows: Words) -> None:
    for k in range(size):
        row = rows[k]
        if row >= 0:
            prefetch_line(args.table_keys + 8 * row)


@jit
def _ask_for_rows(args: FileLookup, size: int, rows: Words) -> None:
    table, row_bytes = args.table, args.row_bytes
    lines = min((row_bytes + _LINE_BYTES - 1) // _LINE_BYTES, int64(_MAX_LINES))
    for k in range(size):
        row = rows[k]
        if row >= 0:
            for line in range(lines):
                prefetch_line(table + row * row_bytes + _LINE_BYTES * line)


@jit
def _copy(args: FileLookup, start: int, size: int, rows: Words) -> None:
    table, row_bytes = args.table, args.row_bytes
    out = args.out + start * row_bytes
    is_range = args.index.is_range != 0
    for k in range(size):
        row = rows[k]
        if row >= 0 and not is_range:
            key = args.keys[start + k]
            if args.table_keys[row] != key:
                args.is_damaged = int64(1)
                row = int64(-1)
        if row >= 0:
            c_memcpy(out + k * row_bytes, table + row * row_bytes, row_bytes)
        store_as(args.found, start + k, np.uint8(row >= 0), np.uint8)


@jit
def count(args: FileSpread) -> None:
    """Counts keys by segment.

    Args:
      args: the address of a `FileSpread`.
    """
    bits, sizes = args.segment_bits, args.sizes
    for k in range(args.count):
        segment = _segment_of(hash_of(args.keys[k]), bits)
        sizes[segment] = sizes[segment] + 1


@jit
def spread(args: FileSpread) -> None:
    """Makes slots of keys, those of a segment side by side.

    Args:
      args: the address of a `FileSpread`.
    """
    bits, ends = args.segment_bits, args.ends
    for k in range(args.count):
        key = args.keys[k]
        segment = _segment_of(hash_of(key), bits)
        end = ends[segment]
        slot = as_record(FileSlot, args.slots + _SLOT_BYTES * end)
        slot.key = key
        slot.row = args.first_row + k + 1
        ends[segment] = end + 1


@jit
def fill(args: FileFill) -> None:
    """Makes the hash table of a segment.

    Args:
      args: the address of a `FileFill`.
    """
    slots, count = args.slots, args.slot_count
    args.repeated = int64(-1)
    for k in range(args.count):
        source = as_record(FileSlot, args.given + _SLOT_BYTES * k)
        key = source.key
        slot = _slot_of(hash_of(key), count)
        while as_record(FileSlot, slots + _SLOT_BYTES * slot).row != 0:
            if as_record(FileSlot, slots + _SLOT_BYTES * slot).key == key:
                args.repeated = k
                return
            slot = slot + 1 if slot + 1 < count else int64(0)
        c_memcpy(slots + _SLOT_BYTES * slot, source, int64(_SLOT_BYTES))
