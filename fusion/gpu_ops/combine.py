"""Combining rows of tables into bags, all columns of a call in one launch.

A group of threads computes a bag, from one thread to a warp: each has its own elements of the
result, 16 bytes of them if they lie right, and goes through the entries of the bag in their order.
A long bag is shared by all groups of a warp: each adds up blocks of entries, and all of them add
these sums in the order of the blocks. So the sums are those of the CPU, in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_words import (
    COLUMN_WORDS,
    COPY,
    FORM,
    ID_COUNT,
    INDICES,
    ROW_BYTES,
    ROW_COUNT,
    ROW_IDS,
    ROW_STEP,
    ROWS,
    ROWS_KIND,
    SOURCE_WORDS,
    TABLE,
    TABLE_DIM,
)
from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops.arithmetic import compute_type
from fusion.gpu_ops.bags import any_bag, quick_bag, shared_bag
from fusion.gpu_ops.device import cuda, jit, load, store, vector_loader, vector_storer
from fusion.gpu_ops.elements import element_range, id_at, integer_at, is_dropped
from fusion.gpu_ops.tiles import column_of
from fusion.gpu_ops.trouble import tell
from fusion.runtime.jit import int64


def _elements(stored: str, lanes: int, is_plain: bool, is_shared: bool) -> Any:
    """A device function (call, place, column, source, bag, at, out, ...) -> `lanes` elements.

    `out` is where the bag's first element goes: memory that is there and has its size. For the
    others, which are the thread's, see `shared_bag`.
    """
    load_vector = vector_loader(stored, lanes)
    quick = shared_bag(stored, lanes) if is_shared else quick_bag(stored, lanes)
    slow, nan = any_bag(stored, lanes, is_plain), (compute_type(stored)(np.nan),) * lanes

    @jit
    def elements(
        call: int,
        place: int,
        column: int,
        source: int,
        bag: int,
        at: int,
        out: int,
        thread: int,
        group: int,
        shares: int,
    ) -> Any:
        form = load(column, FORM)
        if form == COPY:
            return load_vector(load(source, TABLE) + bag * load(source, ROW_BYTES) + at)
        by_row = form in (INDICES, ROW_IDS)
        if by_row and load(load(call, call_of.UNSORTED), place) != 0:
            count = load(source, ID_COUNT)
            return slow(call, place, column, source, int64(0), count, bag, at)
        start, end = element_range(column, source, bag, int64(1))
        if end < start:
            tell(call, call_of.BAD_SPLIT, place, bag, end)
            return nan
        if is_plain and end > start:
            total, is_sound = quick(column, source, start, end, at, out, thread, group, shares)
            if is_sound:
                return total
        return slow(call, place, column, source, start, end, int64(-1), at)

    return elements


def _bag(stored: str, lanes: int, is_plain: bool, is_shared: bool = False) -> Any:
    """A device function (call, place, bag, thread, group, shares) that writes a bag."""
    elements, item = _elements(stored, lanes, is_plain, is_shared), ITEM_BYTES[stored]
    store_vector = vector_storer(stored, lanes)

    @jit
    def bag(call: int, place: int, number: int, thread: int, group: int, shares: int) -> None:
        column = load(call, call_of.COLUMNS) + 8 * COLUMN_WORDS * place
        source = load(call, call_of.SOURCES) + 8 * SOURCE_WORDS * place
        offset = load(load(call, call_of.OFFSETS), place)
        out = load(call, call_of.OUT) + number * load(call, call_of.OUT_BYTES) + offset * item
        dim, step = load(source, TABLE_DIM), group * lanes
        if is_shared:
            # All threads of the warp go along, whether they have elements or not.
            for first in range(thread % group * lanes, (dim + step - 1) // step * step, step):
                at = int64(first) * item if first < dim else int64(0)
                part = elements(call, place, column, source, number, at, out, thread, group, shares)
                if first < dim and thread < group:
                    store_vector(out + at, part)
            return
        for first in range(thread * lanes, dim, step):
            at = int64(first) * item
            part = elements(call, place, column, source, number, at, out, thread, group, shares)
            store_vector(out + at, part)

    return bag


def combine_kernel(stored: str, is_plain: bool) -> Any:
    """The kernel `(call, tiles)` for tables of dtype `stored`, of one block for each tile.

    A tile is as many bags of a column as a block of `THREADS` has room for; `tiles` is the address
    of the first tile of each column and the number of all.

    Args:
        is_plain: whether it is for plain columns (`Column.is_plain`) or for the others.
    """
    widest = 16 // ITEM_BYTES[stored]
    half = max(widest // 2, 1) if is_plain else 1
    wide, narrow, single = (_bag(stored, lanes, is_plain) for lanes in (widest, half, 1))
    shared, shared_single = (_bag(stored, lanes, is_plain, True) for lanes in (widest, 1))

    def combine(call: int, tiles: int) -> None:
        tile, thread = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        place = column_of(tiles, load(call, call_of.COUNT), tile)
        group = load(load(call, call_of.GROUPS), place)
        shares = load(load(call, call_of.SHARES), place)
        team = group * shares
        number = (tile - load(tiles, place)) * (call_of.THREADS // team) + thread // team
        if number >= load(call, call_of.BATCH):
            return
        lanes = load(load(call, call_of.LANES), place)
        if is_plain and shares > 1:
            if lanes == widest:
                shared(call, place, number, thread % team, group, shares)
            else:
                shared_single(call, place, number, thread % team, group, shares)
        elif lanes == widest:
            wide(call, place, number, thread % team, group, shares)
        elif lanes == half:
            narrow(call, place, number, thread % team, group, shares)
        else:
            single(call, place, number, thread % team, group, shares)

    return combine


def check_rows_kernel() -> Any:
    """The kernel `(call)` that looks at the rows of entries, a thread for each.

    It tells of rows outside the batch and flags a column whose rows are not in order; where the
    rows of the batch are those up to the last entry's, that must be so, and it is told, too.
    """

    def check_rows(call: int) -> None:
        tile, tiles = int64(cuda.blockIdx.x), load(call, call_of.CHECK_TILES)
        place = column_of(tiles, load(call, call_of.COUNT), tile)
        k = (tile - load(tiles, place)) * call_of.THREADS + cuda.threadIdx.x
        column = load(call, call_of.COLUMNS) + 8 * COLUMN_WORDS * place
        source = load(call, call_of.SOURCES) + 8 * SOURCE_WORDS * place
        if k >= load(source, ID_COUNT):
            return
        rows, step, kind = load(source, ROWS), load(source, ROW_STEP), load(column, ROWS_KIND)
        row = integer_at(rows, k * step, kind)
        to_last = load(column, ROW_COUNT) != 0
        if k > 0 and integer_at(rows, (k - 1) * step, kind) > row:
            store(load(call, call_of.UNSORTED), place, 1)
            if to_last:
                tell(call, call_of.UNSORTED_ROW, place, k, row)
        is_last = k == load(source, ID_COUNT) - 1
        if to_last and is_last and row + 1 != load(call, call_of.BATCH):
            tell(call, call_of.BAD_ROW, place, k, row)
        is_outside = row < 0 or row >= load(call, call_of.BATCH)
        if is_outside and not is_dropped(column, source, id_at(column, source, k, int64(0)), k):
            tell(call, call_of.BAD_ROW, place, k, row)

    return check_rows
