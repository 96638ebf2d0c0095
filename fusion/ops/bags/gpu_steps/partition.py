"""Ids split over the shards of a table: PartitionWithPermutation."""

from __future__ import annotations

from fusion.gpu_ops.layout.records import GroupOrder, Ids, Shards
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import order_by


def split(device: Device, ids: Ids, shards: Shards, errors: int) -> GroupOrder:
    """The ids by their shards; `starts` then say how many each gets.

    Args:
        errors: an `ErrorRecord`, for ids outside the table.
    """
    owners = device.reserve(4 * ids.number)
    device.launch("key_ids", blocks_of(ids.number), THREADS, ids, shards, owners, errors)
    return order_by(device, owners, ids.number, shards.number)


def put_ids(
    device: Device, ids: Ids, shards: Shards, split: GroupOrder, outs: int, permutation: int
) -> None:
    """Writes each id, as an id inside its shard.

    Args:
        outs: int64 [number of shards], addresses of what each shard gets, of the ids' dtype.
        permutation: out, int32 [number of ids, 2], shard and index in it.
    """
    blocks = blocks_of(ids.number)
    device.launch("place_ids", blocks, THREADS, ids, shards, split, outs, permutation)
