"""Distinct ids in ascending order instead of that of first occurrence: a radix sort.

Ids are smaller than the rows of a table, so that a few passes over their low bytes put them in
order (Knuth, The Art of Computer Programming, vol. 3, 5.2.5).
"""

from __future__ import annotations

import numpy as np

from fusion.ops.columns.cpu_kernels.numbering import Numbering
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.native.pointers import as_words, stack_words

_BITS = 8
_DIGITS = 1 << _BITS


@jit
def sort_keys(numbering: Numbering, key_count: int, end: int, lists: tuple[int, int, int]) -> None:
    """Sorts the distinct ids of a column, and renumbers its entries.

    Args:
      key_count: how many ids there are.
      end: the index behind the last entry.
      lists: scratch, three of `key_count` words.
    """
    keys, numbers = as_words(numbering.keys), as_words(lists[0])
    other_keys, other_numbers = lists[1], lists[2]
    largest, descents = np.uint64(0), int64(0)
    for k in range(key_count):
        key = np.uint64(keys[k])
        descents += int64(key < largest)
        largest = max(largest, key)
        numbers[k] = k
    if descents == 0:
        return
    shift = int64(0)
    while shift < 64 and (largest >> np.uint64(shift)) != 0:
        _sort_by_digit((keys, numbers), (other_keys, other_numbers), key_count, shift)
        keys, other_keys = as_words(other_keys), keys
        numbers, other_numbers = as_words(other_numbers), numbers
        shift += _BITS
    if keys != numbering.keys:
        for k in range(key_count):
            store(numbering.keys, k, keys[k])
    ranks = as_words(other_numbers)
    for k in range(key_count):
        ranks[numbers[k]] = k
    for entry in range(numbering.first, end):
        rank = ranks[int64(load_as(numbering.unique_idxs, entry, np.int32))]
        store_as(numbering.unique_idxs, entry, np.int32(rank), np.int32)


@jit
def _sort_by_digit(
    source: tuple[int, int], target: tuple[int, int], count: int, shift: int
) -> None:
    """Copies ids and their numbers in the order of 8 bits of the ids, else in their own."""
    starts = stack_words(_DIGITS)
    for digit in range(_DIGITS):
        starts[digit] = 0
    for k in range(count):
        digit = _digit(load(source[0], k), shift)
        starts[digit] = starts[digit] + 1
    start = int64(0)
    for digit in range(_DIGITS):
        size = starts[digit]
        starts[digit] = start
        start += size
    for k in range(count):
        digit = _digit(load(source[0], k), shift)
        index = starts[digit]
        starts[digit] = index + 1
        store(target[0], index, load(source[0], k))
        store(target[1], index, load(source[1], k))


@jit
def _digit(key: int, shift: int) -> int:
    return int64((np.uint64(key) >> np.uint64(shift)) & np.uint64(_DIGITS - 1))
