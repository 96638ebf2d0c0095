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
        permutation: int32 [unique, 2], shard and place; not read with one shard.
    """

    shards: int
    shard_count: int
    row_bytes: int
    unique: int
    permutation: int


def check_order(device: Device, indices: int, number: int, trouble: int) -> None:
    """Tells of rows of int64 indices [number, 2] that are out of order."""
    device.launch("check_order", blocks_of(number), THREADS, indices, number, trouble)


def bags(
    device: Device,
    given: Entries,
    places: int,
    rows: Gathered,
    masked: int,
    masked_number: int,
    counts: int,
    trouble: int,
) -> Bags:
    """The entries of bags whose rows were gathered.

    Args:
        given: entries, of whose ids only the number counts.
        places: int32, which distinct id each entry has.
        masked: bool [masked_number], by row, whose entries do not count.
        counts: out, int32 [batch], how many entries each bag has.
        trouble: words as of a call.
    """
    count, batch, blocks = given.number, given.batch, blocks_of(given.number)
    owners, starts = device.room(4 * count), device.room(8 * (batch + 1))
    device.launch("rows_of_entries", blocks, THREADS, given.indices, count, batch, owners, trouble)
    order = stable_order(device, owners, count, batch)
    device.launch("mark_starts", blocks_of(count + 1), THREADS, owners, order, count, batch, starts)
    addresses = device.room(8 * count)
    device.launch(
        "address_entries", blocks, THREADS,
        order, count, places, rows.unique, rows.permutation, rows.shards, rows.shard_count,
        rows.row_bytes, owners, masked, masked_number, addresses, trouble,
    )  # fmt: skip
    device.launch("count_entries", blocks_of(batch), THREADS, starts, batch, counts)
    weights = 0
    if given.weights != 0:
        weights = device.room(given.weight_bytes * count)
        device.launch(
            "order_weights", blocks, THREADS,
            order, count, given.weights, given.weight_bytes, weights,
        )  # fmt: skip
    return Bags(addresses, starts, weights)
