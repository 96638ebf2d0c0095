"""The launches of PruneInvalidAndFillEmptyRows."""

from __future__ import annotations

from fusion.gpu_ops.layout.records import Entries, Ids, Marks, PrunedEntries
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import numbers, prefix_sums


def mark(device: Device, entries: Entries, min_id: int, by_weight: int, errors: int) -> Marks:
    """Marks the entries that are kept.

    Args:
        min_id: the smallest id that is kept.
        by_weight: whether entries with weights <= 0 or NaN are dropped.
        errors: an `ErrorRecord`, for rows outside the batch.
    """
    count, batch = entries.number, entries.batch
    mask, empty = device.reserve(4 * count), numbers(device, batch, 1)
    totals = device.reserve(16)
    blocks = blocks_of(count)
    device.launch("mark_entries", blocks, THREADS, entries, min_id, by_weight, mask, empty, errors)
    offsets = prefix_sums(device, mask, count, totals)
    return Marks(mask, offsets, empty, prefix_sums(device, empty, batch, totals + 8), totals)


def put(device: Device, entries: Entries, marked: Marks, out: PrunedEntries) -> None:
    """Copies the entries that are kept."""
    device.launch("put_entries", blocks_of(entries.number), THREADS, entries, marked, out)


def fill(
    device: Device,
    entries: Entries,
    marked: Marks,
    first: int,
    filler: int,
    weight: int,
    out: PrunedEntries,
) -> None:
    """Writes an entry for each row that keeps none.

    Args:
        first: the number of entries that are kept, after which these come.
        filler, weight: their id, and the bits of their weight.
    """
    blocks = blocks_of(entries.batch)
    device.launch("fill_rows", blocks, THREADS, entries, marked, first, filler, weight, out)


def put_flags(device: Device, numbers_at: int, number: int, flags: int) -> None:
    """Writes for each int32 whether it is not 0, as bool."""
    device.launch("put_row_flags", blocks_of(number), THREADS, numbers_at, number, 0, flags, 0)


def put_in_buckets(device: Device, ids: Ids, buckets: int, default: int) -> None:
    """Makes ids outside [0, buckets) a default one."""
    device.launch("put_in_buckets", blocks_of(ids.number), THREADS, ids, buckets, default)


def fill_elements(device: Device, target: int, number: int, bits: int, item: int) -> None:
    """Sets elements of 2, 4 or 8 bytes to the same bits."""
    device.launch("fill_elements", blocks_of(number), THREADS, target, number, bits, item)
