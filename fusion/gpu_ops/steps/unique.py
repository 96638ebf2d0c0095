"""Distinct ids, in order of first occurrence."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import ALL_BITS, THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import prefix_sums


class Found(NamedTuple):
    """Ids whose first positions are known; addresses.

    Attributes:
        slots, id_slots: the hash table, and the slot of each id.
        ranks: int64, the firsts before each id.
        total: int64 [1], the number of distinct ids.
    """

    slots: int
    id_slots: int
    ranks: int
    total: int


def find_firsts(device: Device, ids: int, kind: int, count: int) -> Found:
    """Finds which of `count` ids are the first of their kind."""
    bits, blocks = 1, blocks_of(count)
    while 1 << bits < 2 * count:
        bits += 1
    slots = device.filled(8 << bits, ALL_BITS)
    id_slots, firsts, total = (
        device.reserve(8 * count),
        device.reserve(4 * count),
        device.reserve(8),
    )
    device.launch("insert_ids", blocks, THREADS, ids, kind, count, slots, bits, id_slots)
    device.launch("mark_firsts", blocks, THREADS, slots, id_slots, count, firsts)
    return Found(slots, id_slots, prefix_sums(device, firsts, count, total), total)


def number_ids(
    device: Device,
    ids: int,
    kind: int,
    count: int,
    firsts: Found,
    distinct: int,
    keys: int,
    unique_idxs: int,
    counts: int,
) -> None:
    """Writes the distinct ids of `find_firsts`.

    Args:
        distinct: how many there are.
        keys: out, of the dtype of the ids.
        unique_idxs: out, int32 [count], which of them each id is.
        counts: out, int32 [distinct], how often each occurs.
    """
    device.fill(counts, 4 * distinct, 0)
    device.launch(
        "number_ids", blocks_of(count), THREADS,
        ids, kind, count, firsts.slots, firsts.id_slots, firsts.ranks, keys, unique_idxs, counts,
    )  # fmt: skip
