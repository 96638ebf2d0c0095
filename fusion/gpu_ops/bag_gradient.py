"""The gradients of bags added up into those of the gathered rows that they were combined of.

As `scatter`, for one table: the entries of a row are sorted, and a few threads add up what they
get, in the order of `fusion.cpu_ops.combine_grad`. How bags are divided is computed before, once
for each bag.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops.column_words import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops.bag_scales import put_scale
from fusion.gpu_ops.device import cuda, jit, load, vector_storer
from fusion.gpu_ops.entry_sums import GradBags, entry_summer
from fusion.gpu_ops.parts import part_of
from fusion.gpu_ops.tiles import quotient, remainder
from fusion.runtime.jit import int64


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


def _row(stored: str, lanes: int, kept: str) -> Any:
    """A device function (`GradBags`, start, end, out, dim, thread of it, its threads) -> None.

    It writes what the entries from `start` to `end` give, as dtype `kept`.
    """
    store_vector, sum_of = vector_storer(kept, lanes), entry_summer(stored, lanes)
    item, out_item = ITEM_BYTES[stored], ITEM_BYTES[kept]

    @jit
    def write(
        bags: GradBags, start: int, end: int, out: int, dim: int, thread: int, group: int
    ) -> None:
        first = thread * lanes
        while first < dim:
            store_vector(out + first * out_item, sum_of(bags, start, end, first * item))
            first += group * lanes

    return write


def _writer(stored: str) -> Any:
    """A device function of one dtype: that of `_row`, with the lanes and whether sums are kept."""
    kept = "float64" if stored == "float64" else "float32"
    widest, widest_kept = 16 // ITEM_BYTES[stored], 16 // ITEM_BYTES[kept]
    wide, single = _row(stored, widest, stored), _row(stored, 1, stored)
    is_same = kept == stored
    wide_kept = wide if is_same else _row(stored, widest_kept, kept)
    single_kept = single if is_same else _row(stored, 1, kept)

    @jit
    def write(
        bags: GradBags,
        start: int,
        end: int,
        out: int,
        dim: int,
        thread: int,
        group: int,
        lanes: int,
        keeps: bool,
    ) -> None:
        if is_same or not keeps:
            if lanes > 1:
                wide(bags, start, end, out, dim, thread, group)
            else:
                single(bags, start, end, out, dim, thread, group)
        elif lanes > 1:
            wide_kept(bags, start, end, out, dim, thread, group)
        else:
            single_kept(bags, start, end, out, dim, thread, group)

    return write


_write16, _write_b16 = _writer("float16"), _writer("bfloat16")
_write32, _write64 = _writer("float32"), _writer("float64")


def scatter_bags(
    order: int,
    starts: int,
    owners: int,
    batch: int,
    scales: int,
    weights: int,
    masked: int,
    mask_bytes: int,
    flags: int,
    combiner: int,
    top: int,
    kind: int,
    dim: int,
    rows: int,
    firsts: int,
    shard_count: int,
    outs: int,
    working: int,
    lanes: int,
    group: int,
) -> None:
    """Kernel, `group` threads for each gathered row: writes its gradient.

    Args:
        order, starts: int32 and int64 [rows + 1], the entries of each row; 0: each row has the
            entry of its number.
        owners, batch: int32, the row of the batch of each entry, below `batch` if it counts.
        scales, weights, combiner: see `scale_bags`.
        masked, mask_bytes, flags: so many flags by row of the batch, whose entries get zeros.
        top, kind, dim: the gradient of the result, [batch, dim] of a kind.
        rows, firsts, shard_count: gathered rows of all shards, see `parts.part_of`.
        outs: int64 [shard_count], addresses of the gradients of each shard.
        working: where they go instead, [rows, dim] of the dtype of `scales`; 0: nowhere else.
        lanes: elements that a thread computes at once, 1 or as many as 16 bytes hold of what is
            written.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    number, thread = quotient(thread, group), remainder(thread, group)
    if number >= rows:
        return
    start, end = number, number + 1
    if starts != 0:
        start, end = load(starts, number), load(starts, number + 1)
    item = int64(2)
    if kind == FLOAT64:
        item = int64(8)
    elif kind == FLOAT32:
        item = int64(4)
    row_bytes, keeps = dim * item, working != 0
    if keeps:
        out = working + number * dim * max(item, int64(4))
    else:
        shard, place = part_of(firsts, shard_count, number)
        out = load(outs, shard) + place * row_bytes
    bags = GradBags(
        order, owners, batch, scales, weights, combiner, masked, mask_bytes, flags, top, row_bytes
    )
    if kind == FLOAT32:
        _write32(bags, start, end, out, dim, thread, group, lanes, keeps)
    elif kind == FLOAT64:
        _write64(bags, start, end, out, dim, thread, group, lanes, keeps)
    elif kind == FLOAT16:
        _write16(bags, start, end, out, dim, thread, group, lanes, keeps)
    elif kind == BFLOAT16:
        _write_b16(bags, start, end, out, dim, thread, group, lanes, keeps)
