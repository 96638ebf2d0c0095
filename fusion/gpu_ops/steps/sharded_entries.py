"""Rows gathered for each entry in the order of bags: FusedEmbeddingSparsePostLookUp."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.bags import Bags, Ordered, mark_bags
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import bits_of, order_from
from fusion.runtime.tensorflow.dtypes import INT32, INT64


class ShardedEntries(NamedTuple):
    """The entries of shards, numbered through.

    Attributes:
        number: of all entries, less than 2**31.
        shard_count: of the shards.
        firsts: int64 [shard_count + 1], the first number of each shard, and the number of all.
        shards: int64 [shard_count, 2], address of the rows and entries of each shard.
        row_bytes: of each row.
        indices: int64 [shard_count], addresses of int64 [, 2], row and rank of each entry.
        weights, weight_bytes: int64 [shard_count], addresses of the weights; 0 without.
    """

    number: int
    shard_count: int
    firsts: int
    shards: int
    row_bytes: int
    indices: int
    weights: int
    weight_bytes: int


class Joined(NamedTuple):
    """Entries whose rows are known; addresses.

    Attributes:
        owners: int32, the row of each.
        ranks: int64, what those of a row are ordered by; 0: they lie in their order.
        results: int64 [2], see `fusion.gpu_ops.kernels.sharded_entries.JoinResults`.
    """

    owners: int
    ranks: int
    results: int


def join(device: Device, sharded: ShardedEntries, batch: int, errors: int) -> Joined:
    """Finds the row of each entry.

    With one shard and a known batch the words that are found need not be read.

    Args:
        batch: rows; -1: up to the last, so that it is minus the second word that is found.
        errors: an `ErrorRecord`, for rows outside the batch or, without one, not in order;
            after such an error nothing may follow if the batch is -1.
    """
    owners, results, ranks = device.reserve(4 * sharded.number), device.filled(16, 0), 0
    if sharded.shard_count > 1:
        ranks = device.reserve(8 * sharded.number)
    device.launch(
        "join_parts", blocks_of(sharded.number), THREADS,
        sharded.firsts, sharded.indices, sharded.shard_count, sharded.number, batch, owners,
        ranks, results, errors,
    )  # fmt: skip
    return Joined(owners, ranks, results)


def order_shards(
    device: Device, sharded: ShardedEntries, joined: Joined, batch: int, bits: int
) -> Ordered:
    """The entries by their rows, those of a row by rank, equals in their order.

    Args:
        bits: minus the first word that `join` found; not read with one shard.
    """
    order = 0
    if joined.ranks != 0:
        order = order_from(device, 0, joined.ranks, INT64, sharded.number, bits)
    order = order_from(device, order, joined.owners, INT32, sharded.number, bits_of(batch))
    return mark_bags(device, joined.owners, order, sharded.number, batch)


def bags_of_shards(
    device: Device, sharded: ShardedEntries, ordered: Ordered, batch: int, masked: int, counts: int
) -> Bags:
    """The entries of bags, with the addresses of their rows.

    Args:
        masked: int32 [batch] by row, whose entries do not count if it is not 0; 0: there are none.
        counts: out, int32 [batch], how many entries each bag has.
    """
    count, addresses, weights = sharded.number, device.reserve(8 * sharded.number), 0
    device.launch(
        "address_parts", blocks_of(count), THREADS,
        ordered.order, count, sharded.shards, sharded.firsts, sharded.shard_count,
        sharded.row_bytes, ordered.owners, batch, masked, 4, batch, addresses,
    )  # fmt: skip
    device.launch("count_entries", blocks_of(batch), THREADS, ordered.starts, batch, counts)
    if sharded.weights != 0:
        weights = joined_weights(device, sharded, ordered.order)
    return Bags(addresses, ordered.starts, weights)


def joined_weights(device: Device, sharded: ShardedEntries, order: int) -> int:
    """The weights of the entries in an order; 0: as they are numbered."""
    weights = device.reserve(sharded.weight_bytes * sharded.number)
    device.launch(
        "join_weights", blocks_of(sharded.number), THREADS,
        order, sharded.number, sharded.weights, sharded.firsts, sharded.shard_count,
        sharded.weight_bytes, weights,
    )  # fmt: skip
    return weights
