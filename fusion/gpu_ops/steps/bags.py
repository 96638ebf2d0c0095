"""Gathered rows in the order of bags: FusedEmbeddingSparsePostLookUpV2."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.prune import Entries
from fusion.gpu_ops.steps.sums import stable_order


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


class Gathered(NamedTuple):
    """Rows of distinct ids, gathered from shards.

    Attributes:
        shards, shard_count: int64 [shard_count, 2], address and rows of each shard.
        row_bytes: of each row.
        unique: the distinct ids.
        permutation: int32 [unique, 2], shard and index in it; not read with one shard.
    """

    shards: int
    shard_count: int
    row_bytes: int
    unique: int
    permutation: int


class Ordered(NamedTuple):
    """Entries by their bags; addresses.

    Attributes:
        owners: int32, the row of each entry; the number of rows for those that belong to none.
        order: int32, the entries by their rows.
        starts: int64 [batch + 1], where the entries of each bag start in that order.
    """

    owners: int
    order: int
    starts: int


def by_row(device: Device, entries: Entries, errors: int) -> Ordered:
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
    order = stable_order(device, owners, count, batch)
    return mark_bags(device, owners, order, count, batch)


def mark_bags(device: Device, owners: int, order: int, count: int, batch: int) -> Ordered:
    """`count` entries, of whose rows the order is known."""
    starts = device.reserve(8 * (batch + 1))
    device.launch("mark_starts", blocks_of(count + 1), THREADS, owners, order, count, batch, starts)
    return Ordered(owners, order, starts)


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
    rows: Gathered,
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
    owners, order, starts = by_row(device, entries, errors)
    addresses = device.reserve(8 * count)
    device.launch(
        "address_entries", blocks, THREADS,
        order, count, unique_idxs, rows.unique, rows.permutation, rows.shards, rows.shard_count,
        rows.row_bytes, owners, batch, masked, flags, addresses, errors,
    )  # fmt: skip
    device.launch("count_entries", blocks_of(batch), THREADS, starts, batch, counts)
    weights = 0
    if entries.weights != 0:
        weights = device.reserve(entries.weight_bytes * count)
        device.launch(
            "order_weights", blocks, THREADS,
            order, count, entries.weights, entries.weight_bytes, weights,
        )  # fmt: skip
    return Bags(addresses, starts, weights)
