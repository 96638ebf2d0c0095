"""Gradients of gathered rows and of weights: FusedEmbeddingSparsePostLookUpV2Grad."""

from __future__ import annotations

from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.layout.call import group_of
from fusion.gpu_ops.layout.records import GatheredRows, GradBags, Gradient, GroupOrder, Scales
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of, launch_for
from fusion.gpu_ops.steps.sums import bits_of, mark_starts, order_from
from fusion.runtime.tensorflow.dtypes import FLOAT32, FLOAT64, INT32


def rows_of_ids(
    device: Device, ordered: GroupOrder, unique_idxs: int, rows: GatheredRows, errors: int
) -> int:
    """Int32 by entry, the number of its row, see `GradBags`.

    Args:
        ordered: the entries in the order of bags.
        unique_idxs: int32, which distinct id each has.
        errors: an `ErrorRecord`, for entries without a row, and of rows that two ids have.
    """
    if rows.shard_count > 1:
        seen = device.filled(4 * rows.number, 0)
        device.launch("check_pairs", blocks_of(rows.number), THREADS, rows, seen, errors)
    keys, blocks = device.reserve(4 * ordered.number), blocks_of(ordered.number)
    device.launch("number_rows", blocks, THREADS, ordered, unique_idxs, rows, keys, errors)
    return keys


def _item_bytes(dtype: int) -> int:
    if dtype == FLOAT64:
        return 8
    return 4 if dtype == FLOAT32 else 2


def _worked_bytes(dtype: int) -> int:
    """The bytes of an element of the compute dtype of `dtype`."""
    return 8 if dtype == FLOAT64 else 4


def add_up(
    device: Device, gradient: Gradient, bags: GradBags, rows: GatheredRows, outs: int
) -> Scales:
    """Writes the gradients of the rows.

    Args:
        outs: int64 [shard_count], addresses of those of each shard, multiples of 16.
    """
    worked, number, batch = _worked_bytes(gradient.dtype), rows.number, bags.ordered.groups
    scales = device.reserve(worked * batch)
    device.launch("scale_bags", blocks_of(batch), THREADS, gradient, bags, scales)
    order, entries = bags.ordered.order, bags.ordered.number
    order = order_from(device, order, bags.keys, INT32, entries, bits_of(number))
    by_row = mark_starts(device, bags.keys, order, entries, number)
    working = norms = alongs = 0
    if gradient.clips != 0:
        working = device.reserve(worked * number * gradient.dim)
        norms, alongs = device.reserve(8 * number), device.reserve(8 * number)
    scaled = Scales(scales, working, norms, alongs)
    lanes = 16 // (worked if gradient.clips != 0 else _item_bytes(gradient.dtype))
    if gradient.dim % lanes != 0 or gradient.top % 16 != 0:
        lanes = 1
    group = group_of(gradient.dim, lanes)
    launch_for(
        device, "scatter_bags", gradient.dtype, blocks_of(number * group), THREADS,
        gradient, bags, rows, by_row, scaled, outs, lanes, group,
    )  # fmt: skip
    if gradient.clips != 0:
        device.launch("measure_rows", blocks_of(number), THREADS, gradient, rows, scaled)
        blocks = blocks_of(number * gradient.dim)
        device.launch("unclip_rows", blocks, THREADS, gradient, rows, scaled, outs)
    return scaled


def add_up_weights(
    device: Device,
    gradient: Gradient,
    bags: GradBags,
    rows: GatheredRows,
    scaled: Scales,
    grads: int,
) -> None:
    """Writes the gradients of the weights.

    Args:
        scaled: as `add_up` leaves it.
        grads: out, by entry, of the gradient's dtype.
    """
    throughs, batch = 0, bags.ordered.groups
    if gradient.combiner != SUM:
        totals = device.reserve(_worked_bytes(gradient.dtype) * batch * gradient.dim)
        throughs, blocks = device.reserve(8 * batch), blocks_of(batch * gradient.dim)
        device.launch("total_bags", blocks, THREADS, gradient, bags, rows, scaled, totals)
        blocks = blocks_of(batch)
        device.launch("through_bags", blocks, THREADS, gradient, bags, scaled, totals, throughs)
    blocks = blocks_of(bags.ordered.number)
    device.launch("weight_grads", blocks, THREADS, gradient, bags, rows, scaled, throughs, grads)
