"""Gathered rows in the order of bags: FusedEmbeddingSparsePostLookUpV2."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.layout.records import Entries, GatheredRows, GroupOrder
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import order_by


class Bags(NamedTuple):
    """Entries in the order of their bags.

    Attributes:
        addresses: int64, of the row of each; -1 for those that do not count.
        starts: int64 [batch + 1], where the entries of each bag start.
        weights: of each; 0 without.
    """

    addresses: int
    starts: int
    weights: int


def by_row(device: Device, entries: Entries, errors: int) -> GroupOrder:
    """The entries by their rows, those of a row in their order.

    Args:
        entries: entries, of whose ids only the number counts.
        errors: an `ErrorRecord`, for rows outside the batch.
    """
    count, batch = entries.number, entries.batch
    owners = device.reserve(4 * count)
    device.launch(
        "rows_of_entries", blocks_of(count), THREADS, entries.indices, count, batch, owners, errors
    )
    return order_by(device, owners, count, batch)


def last_row(device: Device, indices: int, count: int, errors: int) -> int:
    """The address of the number of rows up to that of the last entry, int64 [1].

    Args:
        errors: an `ErrorRecord`, for a row that is less than the one before.
    """
    rows = device.filled(8, 0)
    device.launch("find_last_row", blocks_of(count), THREADS, indices, count, rows, errors)
    return rows


def bags(
    device: Device,
    entries: Entries,
    unique_idxs: int,
    rows: GatheredRows,
    masked: int,
    flags: int,
    counts: int,
    errors: int,
) -> Bags:
    """The entries of bags whose rows were gathered.

    Args:
        entries: entries, of whose ids only the number counts.
        unique_idxs: int32, which distinct id each entry has.
        masked, flags: bool by row, so many, whose entries do not count; 0: there are none.
        counts: out, int32 [batch], how many entries each bag has.
        errors: an `ErrorRecord`.
    """
    count, batch, blocks = entries.number, entries.batch, blocks_of(entries.number)
    ordered = by_row(device, entries, errors)
    addresses = device.reserve(8 * count)
    device.launch(
        "address_entries", blocks, THREADS,
        ordered, unique_idxs, rows, masked, flags, addresses, errors,
    )  # fmt: skip
    device.launch("count_entries", blocks_of(batch), THREADS, ordered.starts, batch, counts)
    weights = 0
    if entries.weights != 0:
        weights = device.reserve(entries.weight_bytes * count)
        device.launch(
            "order_weights", blocks, THREADS,
            ordered.order, count, entries.weights, entries.weight_bytes, weights,
        )  # fmt: skip
    return Bags(addresses, ordered.starts, weights)
