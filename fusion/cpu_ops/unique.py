"""Distinct ids in order of first occurrence, by open addressing."""

from __future__ import annotations

import numpy as np

from fusion.runtime.native.jit import Array, jit

#: 2**64 divided by the golden ratio (Knuth, The Art of Computer Programming, vol. 3, 6.4).
SPREAD = np.uint64(0x9E3779B97F4A7C15)


@jit
def table_bits(count: int) -> int:
    """log2 of the number of slots for `count` ids: at most half of the slots are ever used."""
    bits = 1
    while (1 << bits) < 2 * count:
        bits += 1
    return bits


@jit
def find_unique(
    ids: Array, slots: Array, bits: int, keys: Array, unique_idxs: Array, counts: Array
) -> int:
    """Numbers the distinct ids.

    Args:
      ids: [m].
      slots: scratch, int32 [2**bits], zero; a slot holds the number of its key plus one, so that
        no id is reserved to mean "empty".
      keys: out, [m] of which the first u are filled: the distinct ids by first occurrence.
      unique_idxs: out, int32 [m]: `keys[unique_idxs[i]] == ids[i]`.
      counts: out, int32 [m] of which the first u are filled: occurrences of each key.

    Returns:
      u, the number of distinct ids.
    """
    mask = slots.shape[0] - 1
    shift = np.uint64(64 - bits)
    key_count = 0
    for k in range(ids.shape[0]):
        key = ids[k]
        slot = np.int64((np.uint64(key) * SPREAD) >> shift)
        while slots[slot] != 0 and keys[slots[slot] - 1] != key:
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            keys[key_count] = key
            counts[key_count] = 0
            key_count += 1
            slots[slot] = key_count
        index = slots[slot] - 1
        unique_idxs[k] = index
        counts[index] += 1
    return key_count
