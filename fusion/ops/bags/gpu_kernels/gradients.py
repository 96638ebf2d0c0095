"""The gradients of bags added up into those of the gathered rows that they were combined of.

As `scatter`, for one table: the entries of a row are sorted, and a few threads add up what they
give, in the order of `bags.cpu_kernels.combine_grad`. How bags are divided is computed before, once
for each bag.
"""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.kernels.bag_scales import put_scale
from fusion.gpu_ops.kernels.entry_sums import BagGradient, row_writer
from fusion.gpu_ops.kernels.tiles import quotient, remainder, shard_index
from fusion.gpu_ops.language.device import cuda, load
from fusion.gpu_ops.layout.call import WARP
from fusion.gpu_ops.layout.records import GatheredRows, GradBags, Gradient, GroupOrder, Scales
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES


def scale_bags(gradient: Gradient, bags: GradBags, scales: int) -> None:
    """Kernel, a thread for each bag: writes `Scales.scales`."""
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row >= bags.ordered.groups:
        return
    start, end = load(bags.ordered.starts, row), load(bags.ordered.starts, row + 1)
    if start == end:
        return
    order, dtype = bags.ordered.order, gradient.dtype
    put_scale(scales, row, order, start, end, bags.weights, dtype, gradient.combiner)


def scatter_bags_kernel(stored: str) -> Any:
    """The kernel that writes the gradients of gathered rows of dtype `stored`.

    `group` threads have one: see `row_writer`. Its arguments that are no records, in order:
        outs: int64 [shard_count], addresses of the gradients of each shard; not read if rows are
            shortened, whose gradients are working ones.
        lanes: elements that a thread computes at once, 1 or as many as 16 bytes hold of what is
            written.
        group: a power of 2, at most a warp.
    """
    compute, item = DTYPES[stored].compute, DTYPES[stored].item_bytes
    wide, single = (row_writer(stored, stored, lanes) for lanes in (16 // item, 1))
    is_same, compute_item = compute == stored, DTYPES[compute].item_bytes
    wide_computed = wide if is_same else row_writer(stored, compute, 16 // compute_item)
    single_computed = single if is_same else row_writer(stored, compute, 1)

    def scatter_bags(
        gradient: Gradient,
        bags: GradBags,
        rows: GatheredRows,
        by_row: GroupOrder,
        scaled: Scales,
        outs: int,
        lanes: int,
        group: int,
    ) -> None:
        thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        number, lane = quotient(thread, group), remainder(thread, int64(WARP))
        start, end, out = int64(0), int64(0), int64(0)
        dim, row_bytes = gradient.dim, gradient.dim * item
        if number < rows.number:
            start, end = load(by_row.starts, number), load(by_row.starts, number + 1)
            shard, index = shard_index(rows, number)
            out = load(outs, shard) + index * row_bytes
            if scaled.working != 0:
                out = scaled.working + number * dim * compute_item
        bag_gradient = BagGradient(
            by_row.order, bags.ordered.owners, bags.ordered.groups, scaled.scales, bags.weights,
            gradient.combiner, bags.masked, bags.flags, gradient.top, row_bytes,
        )  # fmt: skip
        if is_same or scaled.working == 0:
            if lanes > 1:
                wide(bag_gradient, start, end, out, dim, lane, group)
            else:
                single(bag_gradient, start, end, out, dim, lane, group)
        elif lanes > 1:
            wide_computed(bag_gradient, start, end, out, dim, lane, group)
        else:
            single_computed(bag_gradient, start, end, out, dim, lane, group)

    return scatter_bags
