"""The gradients of bags added up into those of the gathered rows that they were combined of.

As `scatter`, for one table: the entries of a row are sorted, and a few threads add up what they
give, in the order of `fusion.cpu_ops.combine_grad`. How bags are divided is computed before, once
for each bag.
"""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.kernels.gradients.bag_scales import put_scale
from fusion.gpu_ops.kernels.gradients.entry_sums import BagGradient, row_writer
from fusion.gpu_ops.kernels.tiles import quotient, remainder, shard_index
from fusion.gpu_ops.language.device import as_words, cuda, load
from fusion.gpu_ops.layout.call import WARP
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES


def scale_bags(
    order: int, starts: int, batch: int, weights: int, kind: int, combiner: int, scales: int
) -> None:
    """Kernel, a thread for each bag: what its gradient is multiplied or, with weights, divided by.

    Args:
        order, starts, batch: the entries by their bags, see `steps.bags.Ordered`.
        weights, kind: by entry, of a kind as the gradients; 0: there are none.
        scales: out, [batch] of the dtype in which gradients of the kind are computed; those of bags
            without entries are not written.
    """
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row >= batch:
        return
    start, end = load(starts, row), load(starts, row + 1)
    if start == end:
        return
    put_scale(scales, row, order, start, end, weights, kind, combiner)


def scatter_bags_kernel(stored: str) -> Any:
    """The kernel that writes the gradients of gathered rows of dtype `stored`.

    `group` threads have one: see `row_writer`. Its arguments, in order:
        order, starts: int32 and int64 [rows + 1], the entries of each row.
        owners, batch: int32, the row of the batch of each entry, below `batch` if it counts.
        scales, weights, combiner: see `scale_bags`.
        masked, flags: so many flags by row of the batch, whose entries get zeros.
        top, dim: the gradient of the result, [batch, dim].
        rows, firsts, shard_count: gathered rows of all shards, see `shard_index`.
        outs: int64 [shard_count], addresses of the gradients of each shard.
        working: where they go instead, [rows, dim] of the dtype of `scales`; 0: nowhere else.
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
        order: int,
        starts: int,
        owners: int,
        batch: int,
        scales: int,
        weights: int,
        combiner: int,
        masked: int,
        flags: int,
        top: int,
        dim: int,
        rows: int,
        firsts: int,
        shard_count: int,
        outs: int,
        working: int,
        lanes: int,
        group: int,
    ) -> None:
        thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        number, lane = quotient(thread, group), remainder(thread, int64(WARP))
        start, end, out, row_bytes = int64(0), int64(0), int64(0), dim * item
        if number < rows:
            start, end = load(starts, number), load(starts, number + 1)
            shard, index = shard_index(as_words(firsts), shard_count, number)
            out = load(outs, shard) + index * row_bytes
            if working != 0:
                out = working + number * dim * compute_item
        bags = BagGradient(
            order, owners, batch, scales, weights, combiner, masked, flags, top, row_bytes
        )
        if is_same or working == 0:
            if lanes > 1:
                wide(bags, start, end, out, dim, lane, group)
            else:
                single(bags, start, end, out, dim, lane, group)
        elif lanes > 1:
            wide_computed(bags, start, end, out, dim, lane, group)
        else:
            single_computed(bags, start, end, out, dim, lane, group)

    return scatter_bags
