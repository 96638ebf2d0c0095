"""Entries that are dropped, and rows that are filled: PruneInvalidAndFillEmptyRows."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of, id_bytes
from fusion.gpu_ops.steps.sums import numbers, prefix_sums


class Entries(NamedTuple):
    """The entries of a batch of sparse ids.

    Attributes:
        ids, kind, number: their ids, of a kind of integers.
        indices: int64 [count, 2].
        batch: rows of the batch.
        weights, weight_kind, weight_bytes: their weights; 0 without.
    """

    ids: int
    kind: int
    number: int
    indices: int
    batch: int
    weights: int
    weight_kind: int
    weight_bytes: int


class Marked(NamedTuple):
    """Which entries are kept, and which rows keep none; addresses.

    Attributes:
        mask: int32, 1 for each entry that is kept.
        offsets: int64, the entries kept before each.
        empty: int32, 1 for each row that keeps none.
        fillers: int64, the rows that keep none before each.
        totals: int64 [2], the entries kept and the rows that keep none.
    """

    mask: int
    offsets: int
    empty: int
    fillers: int
    totals: int


def mark(device: Device, entries: Entries, least: int, by_weight: int, errors: int) -> Marked:
    """Finds the entries that are kept.

    Args:
        least: the least id that is kept.
        by_weight: whether entries with weights <= 0 or NaN are dropped.
        errors: an `ErrorRecord`, for rows outside the batch.
    """
    count, batch = entries.number, entries.batch
    mask, empty = device.reserve(4 * count), numbers(device, batch, 1)
    totals = device.reserve(16)
    device.launch(
        "mark_entries", blocks_of(count), THREADS,
        entries.ids, entries.kind, count, entries.indices, entries.weights if by_weight != 0 else 0,
        entries.weight_kind, least, batch, mask, empty, errors,
    )  # fmt: skip
    offsets = prefix_sums(device, mask, count, totals)
    return Marked(mask, offsets, empty, prefix_sums(device, empty, batch, totals + 8), totals)


def put(
    device: Device, entries: Entries, marked: Marked, ids: int, indices: int, weights: int
) -> None:
    """Copies the entries that are kept.

    Args:
        ids, indices, weights: out.
    """
    device.launch(
        "put_entries", blocks_of(entries.number), THREADS,
        entries.number, marked.mask, marked.offsets, entries.ids, id_bytes(entries.kind),
        entries.indices, entries.weights, entries.weight_bytes, ids, indices, weights,
    )  # fmt: skip


def fill(
    device: Device,
    entries: Entries,
    marked: Marked,
    first: int,
    filler: int,
    weight: int,
    ids: int,
    indices: int,
    weights: int,
) -> None:
    """Writes an entry for each row that keeps none.

    Args:
        first: the entries that are kept, behind which these come.
        filler, weight: their id, and the bits of their weight.
        ids, indices, weights: out.
    """
    device.launch(
        "fill_rows", blocks_of(entries.batch), THREADS,
        entries.batch, marked.empty, marked.fillers, first, filler, entries.kind, weight,
        entries.weight_bytes, ids, indices, weights,
    )  # fmt: skip


def put_flags(device: Device, numbers_at: int, number: int, flags: int) -> None:
    """Writes whether int32 numbers are not 0, as bool."""
    device.launch("put_row_flags", blocks_of(number), THREADS, numbers_at, number, 0, flags, 0)


def put_in_buckets(
    device: Device, ids: int, kind: int, number: int, buckets: int, default: int
) -> None:
    """Makes ids outside [0, buckets) a default one."""
    device.launch("put_in_buckets", blocks_of(number), THREADS, ids, kind, number, buckets, default)


def fill_elements(device: Device, target: int, number: int, bits: int, item: int) -> None:
    """Sets elements of 2, 4 or 8 bytes to the same bits."""
    device.launch("fill_elements", blocks_of(number), THREADS, target, number, bits, item)
