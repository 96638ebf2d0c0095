"""The gradients of bags added up into those of the rows that they were combined of.

No two threads add to the same element: the entries are sorted by their distinct ids, stably, and a
few threads compute the row of one, as in `combine`, in the order of its entries. So the sums are
those of the CPU (`fusion.cpu_ops.scatter`), and the same each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.kernels.gradients.bag_scales import put_scale
from fusion.gpu_ops.kernels.gradients.entry_sums import BagGradient, row_writer
from fusion.gpu_ops.kernels.tiles import column_of, quotient, remainder
from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.language.device import cuda, jit, load, load_as, store_as
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import GradientCall
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES


@jit
def _split(call: int, index: int, row: int) -> int:
    """Where the entries of a row of a column start."""
    at = index * (load(call, GradientCall.batch_size) + 1) + row
    return int64(load_as(load(call, GradientCall.row_splits), at, np.int32))


def own_entries(call: int) -> None:
    """Kernel, a thread for each row of each column: writes the key and the row of its entries.

    And what its gradient is scaled by (`bag_scales`). Keys are the number of all distinct ids
    before, and stay so for entries that belong to none.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch = load(call, GradientCall.batch_size)
    if thread >= batch * load(call, GradientCall.column_count):
        return
    index, row = thread // batch, thread % batch
    start, end = _split(call, index, row), _split(call, index, row + 1)
    if start < 0 or end < start or end > load(call, GradientCall.entry_count):
        report_error(load(call, GradientCall.errors), call_of.BAD_SPLIT, index, row, end)
        return
    if start == end:
        return
    combiner, weights = load(load(call, GradientCall.combiners), index), int64(0)
    if load(load(call, GradientCall.weighted), index) != 0:
        weights = load(call, GradientCall.entry_weights)
    if combiner != SUM:
        scales, kind = load(call, GradientCall.scales), load(call, GradientCall.dtype_code)
        put_scale(scales, thread, int64(0), start, end, weights, kind, combiner)
    bases = load(call, GradientCall.key_offsets)
    base, unique = load(bases, index), load(bases, index + 1) - load(bases, index)
    for k in range(start, end):
        number = int64(load_as(load(call, GradientCall.unique_idxs), k, np.int32))
        if number < 0 or number >= unique:
            report_error(load(call, GradientCall.errors), call_of.BAD_ID, index, k, number)
        else:
            store_as(load(call, GradientCall.keys), k, np.int32(base + number), np.int32)
            store_as(load(call, GradientCall.owners), k, np.int32(row), np.int32)


def _row(stored: str, lanes: int) -> Any:
    """A device function that writes a distinct id's row.

    (call, order, column's index, number, lane, group) -> None; see `row_writer`.
    """
    write = row_writer(stored, stored, lanes)
    item, scale_bytes = DTYPES[stored].item_bytes, DTYPES[stored].compute_bytes

    @jit
    def bags_of(call: int, order: int, index: int) -> BagGradient:
        batch, weights, no_mask = load(call, GradientCall.batch_size), int64(0), int64(0)
        if load(load(call, GradientCall.weighted), index) != 0:
            weights = load(call, GradientCall.entry_weights)
        return BagGradient(
            order,
            load(call, GradientCall.owners),
            batch,
            load(call, GradientCall.scales) + index * batch * scale_bytes,
            weights,
            load(load(call, GradientCall.combiners), index),
            no_mask,
            no_mask,
            load(load(call, GradientCall.top_grads), index),
            load(load(call, GradientCall.top_grad_bytes), index),
        )

    @jit
    def row(call: int, order: int, index: int, number: int, lane: int, group: int) -> None:
        dim = load(load(call, GradientCall.dims), index)
        bases = load(call, GradientCall.key_offsets)
        key, start, end, out = load(bases, index) + number, int64(0), int64(0), int64(0)
        if key < load(bases, index + 1):
            starts = load(call, GradientCall.starts)
            start, end = load(starts, key), load(starts, key + 1)
            out = load(load(call, GradientCall.outs), index) + number * dim * item
        write(bags_of(call, order, index), start, end, out, dim, lane, group)

    return row


def scatter_kernel(stored: str) -> Any:
    """The kernel `(call, order)` for gradients of dtype `stored`, of one block for each tile.

    `order` are the entries by their distinct ids, int32. A tile is as many distinct ids of a column
    as a block of `THREADS` has room for.
    """
    widest = 16 // DTYPES[stored].item_bytes
    wide, single = _row(stored, widest), _row(stored, 1)

    def scatter(call: int, order: int) -> None:
        tile, thread = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        tiles, lane = load(call, GradientCall.tiles), remainder(thread, int64(call_of.WARP))
        index = column_of(tiles, load(call, GradientCall.column_count), tile)
        group = load(load(call, GradientCall.groups), index)
        number = (tile - load(tiles, index)) * quotient(int64(call_of.THREADS), group)
        number += quotient(thread, group)
        if load(load(call, GradientCall.lanes), index) == widest:
            wide(call, order, index, number, lane, group)
        else:
            single(call, order, index, number, lane, group)

    return scatter
