"""Distinct ids, in order of first occurrence."""

from __future__ import annotations

from fusion.gpu_ops.layout.records import Firsts, Ids
from fusion.gpu_ops.steps.device import ALL_BITS, THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import prefix_sums


def find_firsts(device: Device, ids: Ids) -> Firsts:
    """Finds the first occurrence of each id."""
    bits, count, blocks = 1, ids.number, blocks_of(ids.number)
    while 1 << bits < 2 * count:
        bits += 1
    slots = device.filled(8 << bits, ALL_BITS)
    id_slots, firsts, total = (
        device.reserve(8 * count),
        device.reserve(4 * count),
        device.reserve(8),
    )
    device.launch("insert_ids", blocks, THREADS, ids, slots, bits, id_slots)
    device.launch("mark_firsts", blocks, THREADS, slots, id_slots, count, firsts)
    return Firsts(slots, id_slots, prefix_sums(device, firsts, count, total), total)


def number_ids(
    device: Device,
    ids: Ids,
    firsts: Firsts,
    distinct: int,
    keys: int,
    unique_idxs: int,
    counts: int,
) -> None:
    """Writes the distinct ids of `find_firsts`.

    Args:
        distinct: how many there are.
        keys: out, of the dtype of the ids.
        unique_idxs: out, int32 [number of ids], which of them each is.
        counts: out, int32 [distinct], how often each occurs.
    """
    device.fill(counts, 4 * distinct, 0)
    blocks = blocks_of(ids.number)
    device.launch("number_ids", blocks, THREADS, ids, firsts, keys, unique_idxs, counts)
