"""The gradients of bags added up into those of the rows that they were combined of.

No two threads add to the same element: the entries are sorted by their distinct ids, stably, and a
few threads compute the row of one, as in `combine`, in the order of its entries. So the sums are
those of the CPU (`fusion.cpu_ops.scatter`), and the same each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.bag_scales import put_scale
from fusion.gpu_ops.kernels.entry_sums import BagGradient, row_writer
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.kernels.tiles import column_of, quotient, remainder
from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.language.device import as_record, as_words, cuda, jit, load_as, store_as
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import GradientCall
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES


@jit
def _split(call: GradientCall, index: int, row: int) -> int:
    """Where the entries of a row of a column start."""
    at = index * (call.batch_size + 1) + row
    return int64(load_as(call.row_splits, at, np.int32))


def own_entries(call_address: int) -> None:
    """Kernel, a thread for each row of each column: writes the key and the row of its entries.

    And what its gradient is scaled by (`bag_scales`). Keys are the number of all distinct ids
    before, and stay so for entries that belong to none.
    """
    call = as_record(GradientCall, call_address)
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch = call.batch_size
    if thread >= batch * call.column_count:
        return
    index, row = thread // batch, thread % batch
    start, end = _split(call, index, row), _split(call, index, row + 1)
    if start < 0 or end < start or end > call.entry_count:
        report_error(call.errors, call_of.BAD_SPLIT, index, row, end)
        return
    if start == end:
        return
    combiner, weights = call.combiners[index], int64(0)
    if call.weighted[index] != 0:
        weights = call.entry_weights
    if combiner != SUM:
        scales, dtype = call.scales, call.dtype_code
        put_scale(scales, thread, int64(0), start, end, weights, dtype, combiner)
    bases = call.key_offsets
    base, unique = bases[index], bases[index + 1] - bases[index]
    for k in range(start, end):
        number = int64(load_as(call.unique_idxs, k, np.int32))
        if number < 0 or number >= unique:
            report_error(call.errors, call_of.BAD_ID, index, k, number)
        else:
            store_as(call.keys, k, np.int32(base + number), np.int32)
            store_as(call.owners, k, np.int32(row), np.int32)


def _row(stored: str, lanes: int) -> Any:
    """A device function that writes a distinct id's row.

    (call, order, column's index, number, lane, group) -> None; see `row_writer`.
    """
    write = row_writer(stored, stored, lanes)
    item, scale_bytes = DTYPES[stored].item_bytes, DTYPES[stored].compute_bytes

    @jit
    def bags_of(call: GradientCall, order: int, index: int) -> BagGradient:
        batch, weights, no_mask = call.batch_size, int64(0), int64(0)
        if call.weighted[index] != 0:
            weights = call.entry_weights
        return BagGradient(
            order,
            call.owners,
            batch,
            call.scales + index * batch * scale_bytes,
            weights,
            call.combiners[index],
            no_mask,
            no_mask,
            call.top_grads[index],
            call.top_grad_bytes[index],
        )

    @jit
    def row(call: GradientCall, order: int, index: int, number: int, lane: int, group: int) -> None:
        dim = call.dims[index]
        bases = call.key_offsets
        key, start, end, out = bases[index] + number, int64(0), int64(0), int64(0)
        if key < bases[index + 1]:
            starts = call.starts
            start, end = starts[key], starts[key + 1]
            out = call.outs[index] + number * dim * item
        write(bags_of(call, order, index), start, end, out, dim, lane, group)

    return row


def scatter_kernel(stored: str) -> Any:
    """The kernel `(call, order)` for gradients of dtype `stored`, of one block for each tile.

    `order` are the entries by their distinct ids, int32. A tile is as many distinct ids of a column
    as a block of `THREADS` has room for.
    """
    widest = 16 // DTYPES[stored].item_bytes
    wide, single = _row(stored, widest), _row(stored, 1)

    def scatter(call_address: int, order: int) -> None:
        call = as_record(GradientCall, call_address)
        tile, thread = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        tiles, lane = as_words(call.tiles), remainder(thread, int64(call_of.WARP))
        index = column_of(tiles, call.column_count, tile)
        group = call.groups[index]
        number = (tile - tiles[index]) * quotient(int64(call_of.THREADS), group)
        number += quotient(thread, group)
        if call.lanes[index] == widest:
            wide(call, order, index, number, lane, group)
        else:
            single(call, order, index, number, lane, group)

    return scatter
