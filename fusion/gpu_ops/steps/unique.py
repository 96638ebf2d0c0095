"""Distinct ids, in order of first occurrence."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import ALL_BITS, THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import prefix_sums


class Found(NamedTuple):
    """Ids whose first places are known; addresses.

    Attributes:
        slots, found: the hash table, and the slot of each id.
        ranks: int64, the firsts before each id.
        total: int64 [1], the number of distinct ids.
    """

    slots: int
    found: int
    ranks: int
    total: int


def find_firsts(device: Device, ids: int, kind: int, count: int) -> Found:
    """Finds which of `count` ids are the first of their kind."""
    bits, blocks = 1, blocks_of(count)
    while 1 << bits < 2 * count:
        bits += 1
    slots = device.filled(8 << bits, ALL_BITS)
    found, firsts, total = device.room(8 * count), device.room(4 * count), device.room(8)
    device.launch("insert_ids", blocks, THREADS, ids, kind, count, slots, bits, found)
    device.launch("mark_firsts", blocks, THREADS, slots, found, count, firsts)
    return Found(slots, found, prefix_sums(device, firsts, count, total), total)


def number_ids(
    device: Device,
    ids: int,
    kind: int,
    count: int,
    firsts: Found,
    distinct: int,
    keys: int,
    places: int,
    counts: int,
) -> None:
    """Writes the distinct ids of `find_firsts`.

    Args:
        distinct: how many there are.
        keys: out, of the dtype of the ids.
        places: out, int32 [count], which of them each id is.
        counts: out, int32 [distinct], how often each occurs.
    """
    device.fill(counts, 4 * distinct, 0)
    device.launch(
        "number_ids", blocks_of(count), THREADS,
        ids, kind, count, firsts.slots, firsts.found, firsts.ranks, keys, places, counts,
    )  # fmt: skip
