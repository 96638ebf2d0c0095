"""Gradients of gathered rows and of weights: FusedEmbeddingSparsePostLookUpV2Grad."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.layout.call import group_of
from fusion.gpu_ops.steps.bags import Gathered, Ordered
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of, launch_for
from fusion.gpu_ops.steps.sums import bits_of, order_from
from fusion.runtime.tensorflow.dtypes import FLOAT32, FLOAT64, INT32


class Gradient(NamedTuple):
    """A gradient of combined rows.

    Attributes:
        top: the gradient of the result, [batch, dim].
        kind, dim: its elements, which all others are like.
        combiner: as of the op.
        clips, limit: whether rows are shortened, and the bits of the double that is the limit.
    """

    top: int
    kind: int
    dim: int
    combiner: int
    clips: int
    limit: int


class GradBags(NamedTuple):
    """The entries of bags.

    Attributes:
        number, batch: how many they are, and the bags.
        owners, order, starts: as of `steps.bags.Ordered`.
        weights: by entry, of the gradient's kind; 0 without.
        masked, flags: so many bool flags by row of the batch, whose entries get zeros; 0: there
            are none.
    """

    number: int
    batch: int
    owners: int
    order: int
    starts: int
    weights: int
    masked: int
    flags: int


class GradRows(NamedTuple):
    """Gathered rows, numbered through shard by shard.

    Attributes:
        number, shard_count: how many they are, and the shards.
        firsts: int64 [shard_count + 1], the first number of each shard, and the number of all.
        shards: int64 [shard_count, 2], address and rows of each shard.
        row_bytes: of each row.
        keys: int32, the number of each entry's row, that of all rows for none.
    """

    number: int
    shard_count: int
    firsts: int
    shards: int
    row_bytes: int
    keys: int


class Scaled(NamedTuple):
    """What `add_up` leaves for the gradient of weights; addresses.

    Attributes:
        scales: what each bag is divided by.
        norms: float64 by row; 0 if rows are not shortened.
    """

    scales: int
    norms: int


def rows_of_ids(
    device: Device,
    number: int,
    unique_idxs: int,
    rows: Gathered,
    firsts: int,
    ordered: Ordered,
    batch: int,
    errors: int,
) -> GradRows:
    """The rows of distinct ids, as many as those; other arguments are as of `steps.bags.bags`.

    Args:
        number: of the entries.
        firsts: see `GradRows`.
        errors: an `ErrorRecord`, for entries without a row, and of rows that two ids have.
    """
    if rows.shard_count > 1:
        seen = device.filled(4 * rows.unique, 0)
        device.launch(
            "check_pairs", blocks_of(rows.unique), THREADS,
            rows.permutation, rows.unique, rows.shards, firsts, rows.shard_count, seen, errors,
        )  # fmt: skip
    keys = device.reserve(4 * number)
    device.launch(
        "number_rows", blocks_of(number), THREADS,
        number, unique_idxs, rows.unique, rows.permutation, rows.shards, firsts, rows.shard_count,
        ordered.owners, batch, keys, errors,
    )  # fmt: skip
    return GradRows(rows.unique, rows.shard_count, firsts, rows.shards, rows.row_bytes, keys)


def _item_bytes(kind: int) -> int:
    if kind == FLOAT64:
        return 8
    return 4 if kind == FLOAT32 else 2


def _worked_bytes(kind: int) -> int:
    """The bytes of an element of the dtype in which a kind is computed."""
    return 8 if kind == FLOAT64 else 4


def add_up(device: Device, gradient: Gradient, bags: GradBags, rows: GradRows, outs: int) -> Scaled:
    """Writes the gradients of the rows.

    Args:
        outs: int64 [shard_count], addresses of those of each shard, multiples of 16.
    """
    worked, working = _worked_bytes(gradient.kind), 0
    scales = device.reserve(worked * bags.batch)
    device.launch(
        "scale_bags", blocks_of(bags.batch), THREADS,
        bags.order, bags.starts, bags.batch, bags.weights, gradient.kind, gradient.combiner, scales,
    )  # fmt: skip
    order = order_from(device, bags.order, rows.keys, INT32, bags.number, bits_of(rows.number))
    starts = device.reserve(8 * (rows.number + 1))
    device.launch(
        "mark_starts", blocks_of(bags.number + 1), THREADS,
        rows.keys, order, bags.number, rows.number, starts,
    )  # fmt: skip
    if gradient.clips != 0:
        working = device.reserve(worked * rows.number * gradient.dim)
    lanes = 16 // (worked if gradient.clips != 0 else _item_bytes(gradient.kind))
    if gradient.dim % lanes != 0 or gradient.top % 16 != 0:
        lanes = 1
    group = group_of(gradient.dim, lanes)
    launch_for(
        device, "scatter_bags", gradient.kind, blocks_of(rows.number * group), THREADS,
        order, starts, bags.owners, bags.batch, scales, bags.weights, gradient.combiner,
        bags.masked, bags.flags, gradient.top, gradient.dim, rows.number, rows.firsts,
        rows.shard_count, outs, working, lanes, group,
    )  # fmt: skip
    norms = 0
    if gradient.clips != 0:
        norms = _unclip(device, gradient, rows, working, outs)
    return Scaled(scales, norms)


def _unclip(device: Device, gradient: Gradient, rows: GradRows, working: int, outs: int) -> int:
    """Writes the gradients of rows from those of shortened ones; gives the norms of the rows."""
    norms, alongs = device.reserve(8 * rows.number), device.reserve(8 * rows.number)
    device.launch(
        "measure_rows", blocks_of(rows.number), THREADS,
        rows.number, rows.shards, rows.firsts, rows.shard_count, rows.row_bytes, gradient.kind,
        gradient.dim, gradient.limit, working, norms, alongs,
    )  # fmt: skip
    device.launch(
        "unclip_rows", blocks_of(rows.number * gradient.dim), THREADS,
        rows.number, rows.shards, rows.firsts, rows.shard_count, rows.row_bytes, gradient.kind,
        gradient.dim, gradient.limit, working, norms, alongs, outs,
    )  # fmt: skip
    return norms


def add_up_weights(
    device: Device, gradient: Gradient, bags: GradBags, rows: GradRows, scaled: Scaled, grads: int
) -> None:
    """Writes the gradients of the weights, which there are.

    Args:
        scaled: as `add_up` leaves it.
        grads: out, by entry, of the gradient's kind.
    """
    throughs = 0
    if gradient.combiner != SUM:
        totals = device.reserve(_worked_bytes(gradient.kind) * bags.batch * gradient.dim)
        throughs = device.reserve(8 * bags.batch)
        device.launch(
            "total_bags", blocks_of(bags.batch * gradient.dim), THREADS,
            bags.order, bags.starts, bags.batch, rows.keys, rows.shards, rows.firsts,
            rows.shard_count, rows.row_bytes, gradient.kind, gradient.dim, scaled.norms,
            gradient.limit, bags.weights, scaled.scales, totals,
        )  # fmt: skip
        device.launch(
            "through_bags", blocks_of(bags.batch), THREADS,
            bags.starts, bags.batch, gradient.top, gradient.kind, gradient.dim, gradient.combiner,
            scaled.scales, totals, throughs,
        )  # fmt: skip
    device.launch(
        "weight_grads", blocks_of(bags.number), THREADS,
        bags.number, bags.owners, bags.batch, bags.masked, bags.flags, rows.keys,
        rows.shards, rows.firsts, rows.shard_count, rows.row_bytes, gradient.kind, gradient.dim,
        scaled.norms, gradient.limit, gradient.top, bags.weights, gradient.combiner,
        scaled.scales, throughs, grads,
    )  # fmt: skip
