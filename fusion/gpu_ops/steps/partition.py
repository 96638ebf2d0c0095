"""Ids split over the shards of a table: PartitionWithPermutation."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import stable_order


class Shards(NamedTuple):
    """The shards of a table.

    Attributes:
        rows, ends: int64 [number], the rows of each, none negative, and the cumulative ones.
        number: how many they are.
        strategy: `DIV`, `MOD` or `MOD_EV` of `fusion.cpu_ops.partition`.
    """

    rows: int
    ends: int
    number: int
    strategy: int


class Split(NamedTuple):
    """Where ids go; addresses.

    Attributes:
        keys: int32, the shard of each id; the number of shards for those that have none.
        order: int32, the ids by their shards, those of a shard in their order.
        starts: int64 [number of shards + 1], where the ids of each shard start in that order.
    """

    keys: int
    order: int
    starts: int


def split(device: Device, ids: int, kind: int, count: int, shards: Shards, errors: int) -> Split:
    """Finds the shard of each id; `starts` then say how many each gets.

    Args:
        errors: an `ErrorRecord`, for ids outside the table.
    """
    keys = device.reserve(4 * count)
    device.launch(
        "key_ids", blocks_of(count), THREADS,
        ids, kind, count, shards.rows, shards.ends, shards.number, shards.strategy, keys, errors,
    )  # fmt: skip
    order = stable_order(device, keys, count, shards.number)
    starts = device.reserve(8 * (shards.number + 1))
    device.launch(
        "mark_starts", blocks_of(count + 1), THREADS, keys, order, count, shards.number, starts
    )
    return Split(keys, order, starts)


def put_ids(
    device: Device,
    ids: int,
    kind: int,
    count: int,
    shards: Shards,
    split: Split,
    outs: int,
    permutation: int,
) -> None:
    """Writes each id, as an id inside its shard.

    Args:
        outs: int64 [number of shards], addresses of what each shard gets, of the ids' dtype.
        permutation: out, int32 [count, 2], shard and index in it.
    """
    device.launch(
        "place_ids", blocks_of(count), THREADS,
        ids, kind, count, shards.rows, shards.ends, shards.number, shards.strategy,
        split.keys, split.order, split.starts, outs, permutation,
    )  # fmt: skip
