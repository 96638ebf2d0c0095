"""The gradients of bags added up into those of the rows that they were combined of.

No two threads add to the same element: the entries are sorted by their distinct ids, stably, and a
few threads compute the row of one, as in `combine`, in the order of its entries. So the sums are
those of the CPU (`fusion.cpu_ops.scatter`), and the same each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops.arithmetic import SUM, compute_type, grad_scaler
from fusion.gpu_ops.bag_scales import put_scale
from fusion.gpu_ops.device import (
    added,
    cuda,
    jit,
    load,
    load_as,
    multiplied,
    store_as,
    vector_loader,
    vector_storer,
)
from fusion.gpu_ops.tiles import column_of, quotient, remainder
from fusion.gpu_ops.trouble import tell_at
from fusion.runtime.jit import int64


@jit
def _split(call: int, place: int, row: int) -> int:
    """Where the entries of a row of a column start."""
    at = place * (load(call, call_of.GRAD_BATCH) + 1) + row
    return int64(load_as(load(call, call_of.SPLITS), at, np.int32))


def own_entries(call: int) -> None:
    """Kernel, a thread for each row of each column: writes the key and the row of its entries.

    And what its gradient is scaled by (`bag_scales`). Keys are the number of all distinct ids
    before, and stay so for entries that belong to none.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    batch = load(call, call_of.GRAD_BATCH)
    if thread >= batch * load(call, call_of.GRAD_COUNT):
        return
    place, row = thread // batch, thread % batch
    start, end = _split(call, place, row), _split(call, place, row + 1)
    if start < 0 or end < start or end > load(call, call_of.ENTRY_COUNT):
        tell_at(load(call, call_of.GRAD_TROUBLE), call_of.BAD_SPLIT, place, row, end)
        return
    if start == end:
        return
    combiner, weights = load(load(call, call_of.COMBINERS), place), int64(0)
    if load(load(call, call_of.WEIGHTED), place) != 0:
        weights = load(call, call_of.ENTRY_WEIGHTS)
    if combiner != SUM:
        scales, kind = load(call, call_of.SCALES), load(call, call_of.GRAD_KIND)
        put_scale(scales, thread, int64(0), start, end, weights, kind, combiner)
    bases = load(call, call_of.BASES)
    base, unique = load(bases, place), load(bases, place + 1) - load(bases, place)
    for k in range(start, end):
        number = int64(load_as(load(call, call_of.PLACES), k, np.int32))
        if number < 0 or number >= unique:
            tell_at(load(call, call_of.GRAD_TROUBLE), call_of.BAD_ID, place, k, number)
        else:
            store_as(load(call, call_of.KEYS), k, np.int32(base + number), np.int32)
            store_as(load(call, call_of.OWNERS), k, np.int32(row), np.int32)


def _scaler(stored: str, lanes: int) -> Any:
    """A device function (call, place, entry, row, values) -> the entry's share of a gradient.

    The arithmetic is that of `fusion.cpu_ops.scatter`.
    """
    dtype, load_one = compute_type(stored), vector_loader(stored, 1)
    item, (_, weighted) = ITEM_BYTES[stored], grad_scaler(dtype, lanes)

    @jit
    def scaled(call: int, place: int, k: int, row: int, values: Any) -> Any:
        combiner, scale = load(load(call, call_of.COMBINERS), place), dtype(1)
        if combiner != SUM:
            bag = place * load(call, call_of.GRAD_BATCH) + row
            scale = load_as(load(call, call_of.SCALES), bag, dtype)
        if load(load(call, call_of.WEIGHTED), place) != 0:
            weight = load_one(load(call, call_of.ENTRY_WEIGHTS) + k * item)[0]
            return weighted(values, combiner, scale, weight)
        return values if combiner == SUM else multiplied(values, scale)

    return scaled


def _row(stored: str, lanes: int) -> Any:
    """A device function that writes a distinct id's row.

    (call, order, column's place, number, thread of it, its threads) -> None
    """
    load_vector, store_vector = vector_loader(stored, lanes), vector_storer(stored, lanes)
    scaled, zero = _scaler(stored, lanes), (compute_type(stored)(0),) * lanes
    item = ITEM_BYTES[stored]

    @jit
    def total(call: int, order: int, place: int, start: int, end: int, at: int) -> Any:
        top, found = load(call, call_of.TOP) + at, zero
        for number in range(start, end):
            k = int64(load_as(order, number, np.int32))
            row = int64(load_as(load(call, call_of.OWNERS), k, np.int32))
            values = load_vector(top + row * load(call, call_of.TOP_BYTES))
            values = scaled(call, place, k, row, values)
            # Not begun with 0: 0 + -0 would lose the sign.
            found = values if number == start else added(found, values)
        return found

    @jit
    def row(call: int, order: int, place: int, number: int, thread: int, group: int) -> None:
        dim = load(load(call, call_of.DIMS), place)
        key = load(load(call, call_of.BASES), place) + number
        starts = load(call, call_of.STARTS)
        offset = load(load(call, call_of.GRAD_OFFSETS), place)
        out = load(load(call, call_of.GRAD_OUTS), place) + number * dim * item
        first = thread * lanes
        while first < dim:
            at = (offset + first) * item
            values = total(call, order, place, load(starts, key), load(starts, key + 1), at)
            store_vector(out + first * item, values)
            first += group * lanes

    return row


def scatter_kernel(stored: str) -> Any:
    """The kernel `(call, order)` for gradients of dtype `stored`, of one block for each tile.

    `order` are the entries by their distinct ids, int32. A tile is as many distinct ids of a column
    as a block of `THREADS` has room for.
    """
    widest = 16 // ITEM_BYTES[stored]
    wide, single = _row(stored, widest), _row(stored, 1)

    def scatter(call: int, order: int) -> None:
        tile, thread = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        tiles, bases = load(call, call_of.GRAD_TILES), load(call, call_of.BASES)
        place = column_of(tiles, load(call, call_of.GRAD_COUNT), tile)
        group = load(load(call, call_of.GRAD_GROUPS), place)
        number = (tile - load(tiles, place)) * quotient(int64(call_of.THREADS), group)
        number += quotient(thread, group)
        if number >= load(bases, place + 1) - load(bases, place):
            return
        if load(load(call, call_of.GRAD_LANES), place) == widest:
            wide(call, order, place, number, remainder(thread, group), group)
        else:
            single(call, order, place, number, remainder(thread, group), group)

    return scatter
