"""Entries dropped, filled in and split over shards: FusedEmbeddingSparsePreLookUp."""

from __future__ import annotations

from typing import NamedTuple

from fusion.cpu_ops.partition import MOD_EV
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.partition import Shards, Split, by_shard
from fusion.gpu_ops.steps.prune import Entries
from fusion.gpu_ops.steps.sums import bits_of, order_from
from fusion.runtime.tensorflow.dtypes import INT32


class Rules(NamedTuple):
    """What becomes of entries.

    Attributes:
        least: the least id that is kept.
        by_weight: whether entries with weights <= 0 or NaN are dropped.
        fills: whether rows that keep none get an entry.
        filler, weight: its id, and the bits of its weight, which all entries get if there are none.
        by_row: whether the entries of a shard are ordered by row, or as they come, fillers last.
    """

    least: int
    by_weight: int
    fills: int
    filler: int
    weight: int
    by_row: int


def _strategy(shards: Shards) -> int:
    """A single shard takes any id as it is."""
    return MOD_EV if shards.number == 1 else shards.strategy


def split_entries(
    device: Device, entries: Entries, rules: Rules, shards: Shards, flags: int, errors: int
) -> Split:
    """Finds the shard of each entry; `starts` then say how many each gets.

    Args:
        entries: their number and, if rows are filled, the rows are together less than 2**31.
        flags: out, int32 [rows + entries], see the op.
        errors: an `ErrorRecord`, for rows outside the batch and of ids outside the table.
    """
    count, batch, mask = entries.number, entries.batch, flags + 4 * entries.batch
    fillers = batch if rules.fills != 0 else 0
    device.launch("fill_numbers", blocks_of(batch), THREADS, flags, batch, 1)
    device.launch(
        "mark_entries", blocks_of(count), THREADS,
        entries.ids, entries.kind, count, entries.indices,
        entries.weights if rules.by_weight != 0 else 0, entries.weight_kind, rules.least, batch,
        mask, flags, errors,
    )  # fmt: skip
    total = count + fillers
    keys = device.reserve(4 * total)
    device.launch(
        "key_candidates", blocks_of(total), THREADS,
        entries.ids, entries.kind, count, mask, fillers, flags, rules.filler,
        shards.rows, shards.ends, shards.number, _strategy(shards), keys, errors,
    )  # fmt: skip
    order = 0
    if rules.by_row != 0:
        rows = device.reserve(4 * total)
        device.launch(
            "candidate_rows",
            blocks_of(total),
            THREADS,
            entries.indices,
            count,
            fillers,
            batch,
            rows,
        )
        order = order_from(device, 0, rows, INT32, total, bits_of(batch))
    order = order_from(device, order, keys, INT32, total, bits_of(shards.number))
    return by_shard(device, keys, order, total, shards)


def put_split_entries(
    device: Device,
    entries: Entries,
    rules: Rules,
    shards: Shards,
    split: Split,
    total: int,
    outs: int,
) -> None:
    """Writes each entry, with its id inside its shard.

    Args:
        entries: with the bytes of a weight also where there are none.
        total: all that shards get, the last of `found.starts`.
        outs: int64 [number of shards, 3], addresses of the ids, indices and weights of each.
    """
    device.launch(
        "place_candidates", blocks_of(total), THREADS,
        total, split.keys, split.order, split.starts, entries.ids, entries.kind, entries.number,
        entries.indices, entries.weights, entries.weight_bytes, rules.filler, rules.weight,
        shards.rows, shards.ends, shards.number, _strategy(shards), outs,
    )  # fmt: skip
