"""The entries of a batch by their rows: row << shift | index of the entry, in ascending order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray

from fusion.cpu_ops.elements import integer_at
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, pointer, store_as
from fusion.runtime.native.pointers import as_words, stack_words

#: So few are sorted by insertion.
_FEW = 24

#: Bits of a digit, and the entries from which on the larger one is faster: it has more counters.
_SMALL_DIGIT, _LARGE_DIGIT, _MANY = 8, 11, 8192


@jit
def bits_of(number: int) -> int:
    """The bits that the numbers below a number have, 0 for those of 1."""
    bits = int64(0)
    while bits < 62 and (int64(1) << bits) < number:
        bits += 1
    return bits


class RowIds(NamedTuple):
    """An array of ids of rows, in compiled code.

    Attributes:
      address, dtype: of the first one, and their dtype code.
      number: how many they are.
      rows: ids must be below it.
      wraps: what is added to ids < 0.
      drops: whether those that are < 0 after that are left out; else they are bad.
    """

    address: int
    dtype: int
    number: int
    rows: int
    wraps: int
    drops: bool


@jit
def pack_entries(ids: RowIds, shift: int, entries: Words) -> int:
    """Writes the entries of ids in their order; returns their number, or -1 - index of a bad id.

    Args:
      entries: out, the address of int64 [number of ids].
    """
    entry_count = int64(0)
    for index in range(ids.number):
        row = integer_at(ids.address, index, ids.dtype)
        if row < 0:
            row += ids.wraps
        if row < 0 and ids.drops:
            continue
        if row < 0 or row >= ids.rows:
            return -1 - index
        entries[entry_count] = row << shift | index
        entry_count += 1
    return entry_count


@jit
def number_rows(ids: RowIds, shift: int, summands: Words, numbers: int, entries: Words) -> int:
    """Lists the distinct rows in the order of ids, and which of them each id has.

    For few rows this takes less time than to sort.

    Args:
      summands: out, the address of int64 [number of ids + 1]: number of the row << shift | index of
        the id, in the order of ids, then -1.
      numbers: workspace, the address of int32 [rows].
      entries: out, as `summands`: row << shift | its number; the last is a workspace.

    Returns:
      How many rows there are, or -1 - index of a bad id.
    """
    carray(pointer(numbers, np.int32), (ids.rows,))[:] = 0
    entry_count = pack_entries(ids, shift, summands)
    if entry_count < 0:
        return entry_count
    summands[entry_count] = -1
    mask, distinct = (int64(1) << shift) - 1, int64(0)
    for index in range(entry_count):
        word = summands[index]
        row = word >> shift
        # No branch, which nothing could foresee: the next item of the list is written anyway. One
        # more than the number is kept, as 0 is none.
        number = int64(load_as(numbers, row, np.int32))
        entries[distinct] = row << shift | distinct
        is_new = int64(number == 0)
        distinct += is_new
        number += is_new * distinct
        store_as(numbers, row, np.int32(number), np.int32)
        summands[index] = (number - 1) << shift | word & mask
    return distinct


@jit
def mark_rows(ids: RowIds, marks: int) -> int:
    """Marks the rows that ids have.

    Args:
      marks: out, the address of int32 [rows]: -1 for those, else 0.

    Returns:
      How many ids there are that are not left out, or -1 - index of a bad id.
    """
    carray(pointer(marks, np.int32), (ids.rows,))[:] = 0
    id_count = int64(0)
    for index in range(ids.number):
        row = integer_at(ids.address, index, ids.dtype)
        if row < 0:
            row += ids.wraps
        if row < 0 and ids.drops:
            continue
        if row < 0 or row >= ids.rows:
            return -1 - index
        store_as(marks, row, np.int32(-1), np.int32)
        id_count += 1
    return id_count


@jit
def unpack_rows(entries: int, count: int, shift: int, rows: int) -> None:
    """Writes the rows of entries."""
    words = carray(pointer(entries, np.int64), (count,))
    out = carray(pointer(rows, np.int64), (count,))
    for index in range(count):
        out[index] = words[index] >> shift


@jit
def _is_ascending(entries: Words, count: int) -> bool:
    wrong = int64(0)
    for index in range(1, count):
        wrong |= entries[index] - entries[index - 1]
    return wrong >= 0


@jit
def _insert_all(entries: Words, count: int) -> None:
    for index in range(1, count):
        entry, target = entries[index], index
        while target > 0 and entries[target - 1] > entry:
            entries[target] = entries[target - 1]
            target -= 1
        entries[target] = entry


@jit
def _by_digit(
    entries: Words, out: Words, count: int, shift: int, digit: int, counters: Words
) -> None:
    """Sorts entries by the bits [shift, shift + digit), stably."""
    size = int64(1) << digit
    for k in range(size):
        counters[k] = 0
    for index in range(count):
        key = entries[index] >> shift & (size - 1)
        counters[key] = counters[key] + 1
    start = int64(0)
    for k in range(size):
        more = counters[k]
        counters[k] = start
        start += more
    for index in range(count):
        entry = entries[index]
        key = entry >> shift & (size - 1)
        target = counters[key]
        out[target] = entry
        counters[key] = target + 1


@jit
def sort_entries(entries: int, buffer: int, count: int, shift: int, bits: int) -> int:
    """Sorts entries by their rows, those of a row in their order; returns where they are then.

    A radix sort by the rows' digits, the lowest first (Knuth, The Art of Computer Programming,
    vol. 3, 5.2.5): the indices are ascending already.

    Args:
      entries, buffer: addresses of int64 [count]; the result is in one of them.
      bits: of a row.
    """
    if _is_ascending(as_words(entries), count):
        return entries
    if count <= _FEW:
        _insert_all(as_words(entries), count)
        return entries
    digit = int64(_SMALL_DIGIT if count < _MANY else _LARGE_DIGIT)
    counters = stack_words(int64(1 << _LARGE_DIGIT))
    done = int64(0)
    while done < bits:
        _by_digit(as_words(entries), as_words(buffer), count, shift + done, digit, counters)
        entries, buffer = buffer, entries
        done += digit
    return entries


@jit
def list_rows(entries: Words, count: int, shift: int, rows: Words, starts: Words) -> int:
    """Lists the distinct rows of sorted entries, and where the entries of each start.

    Args:
      rows, starts: out, addresses of int64 [count] and [count + 1].

    Returns:
      Their number.
    """
    distinct, last = int64(0), int64(-1)
    for index in range(count):
        row = entries[index] >> shift
        if row != last:
            rows[distinct] = row
            starts[distinct] = index
            distinct += 1
            last = row
    starts[distinct] = count
    return distinct


@jit
def pack_rows(rows: Words, count: int, shift: int, entries: Words) -> None:
    """Writes entries of rows, one for each, whose indices are theirs in the list of rows."""
    for index in range(count):
        entries[index] = rows[index] << shift | index


@jit
def first_at(entries: Words, count: int, shift: int, row: int) -> int:
    """The index of the first sorted entry whose row is at least `row`: a binary search."""
    low, high, min_entry = int64(0), count, row << shift
    while low < high:
        middle = (low + high) // 2
        if entries[middle] < min_entry:
            low = middle + 1
        else:
            high = middle
    return low
