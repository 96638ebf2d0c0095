"""Combining rows of tables into bags, all columns of a call in one launch.

A group of threads computes a bag, from one thread to a warp: each has its own elements of the
result, 16 bytes of them if they lie right, and goes through the entries of the bag in their order.
A long bag is shared by all groups of a warp, which take turns at entries: of plain columns each
adds up blocks, and all of them add these sums; of others each reads rows, and all of them add
these, in the order of the entries. So the sums are those of the CPU, in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import COPY, INDICES, ROW_IDS, ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.bags.any_bags import any_bag
from fusion.gpu_ops.kernels.bags.plain_bags import Bag, Team, quick_bag, shared_bag
from fusion.gpu_ops.kernels.elements import id_at, integer_at, is_dropped, lower_bound, split_range
from fusion.gpu_ops.kernels.errors import report_in_call
from fusion.gpu_ops.kernels.tiles import column_of, quotient, remainder
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    cuda,
    jit,
    vector_loader,
    vector_storer,
)
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import LAST_ROW


@jit
def _bag_of(call: CombineCall, index: int, number: int) -> Any:
    """Bag `number` of a column; what is no bag has its `end` before its `start`."""
    column = call.columns[index]
    source = call.inputs[index]
    row_bytes = call.out_bytes[index]
    out = call.outs[index] + number * row_bytes
    form, all_elements = column.id_format, source.id_count
    if form == COPY:
        return Bag(column, source, out, int64(0), int64(0), number)
    if form in (INDICES, ROW_IDS):
        if call.unsorted[index] != 0:
            return Bag(column, source, out, int64(0), all_elements, number)
        # Elements of rows outside the batch are in no bag.
        rows = source.entry_rows
        step = source.entry_row_stride
        dtype = column.rows_dtype
        start = lower_bound(rows, step, dtype, all_elements, number)
        end = lower_bound(rows, step, dtype, all_elements, number + 1)
        return Bag(column, source, out, start, end, int64(-1))
    start, end = split_range(column, source, number, int64(1))
    return Bag(column, source, out, start, end, int64(-1))


def _quick(stored: str, lanes: int, is_shared: bool) -> Any:
    """A device function (call, index, number, team) that writes a plain bag; says whether it could.

    That is up to the elements of the bag: all threads of the team that write say the same.
    """
    sum_of = shared_bag(stored, lanes) if is_shared else quick_bag(stored, lanes)
    store_vector, item = vector_storer(stored, lanes), DTYPES[stored].item_bytes

    @jit
    def quick(call: CombineCall, index: int, number: int, team: Team) -> bool:
        first = (remainder(team.thread, team.group) if is_shared else team.thread) * lanes
        while True:
            dim = call.inputs[index].table_dim
            # All threads of a warp go along, whether they have elements or not.
            if first >= dim and (
                not is_shared or first - remainder(first, team.group * lanes) >= dim
            ):
                return True
            # Found here, and not before, it takes fewer registers.
            bag = _bag_of(call, index, number)
            if bag.row >= 0 or bag.end <= bag.start:
                return False
            at = int64(first) * item if first < dim else int64(0)
            total, is_sound = sum_of(bag, team, at)
            if not is_sound:
                return False
            if not is_shared or (first < dim and team.thread < team.group):
                store_vector(bag.out + at, total)
            first += team.group * lanes

    return quick


def _slow(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function (call, bag, team, width) that writes any bag, or the copy of a row.

    Each thread has `width` elements side by side, as when it tried to be quick.
    """
    values_of, item = any_bag(stored, lanes, is_plain), DTYPES[stored].item_bytes
    load_vector, store_vector = vector_loader(stored, lanes), vector_storer(stored, lanes)

    @jit
    def copied(bag: Bag, at: int) -> Any:
        return load_vector(
            as_record(ColumnInputs, bag.source).table
            + bag.row * as_record(ColumnInputs, bag.source).row_bytes
            + at
        )

    @jit
    def slow(call: int, bag: Bag, team: Team, width: int) -> None:
        if is_plain:  # shared, it needed more registers than the kernel may have
            team = Team(team.thread, np.int32(team.group * team.shares), np.int32(1))
        dim, first = as_record(ColumnInputs, bag.source).table_dim, int64(0)
        while first < dim:
            own = first + remainder(team.thread, team.group) * width
            for k in range(own, own + width, lanes):
                # All threads of a warp that shares a bag go along, whether they have elements or
                # not.
                if k >= dim and team.shares == 1:
                    return
                at = int64(k) * item if k < dim else int64(0)
                if as_record(ColumnAttrs, bag.column).id_format == COPY:
                    values = copied(bag, at)
                else:
                    values = values_of(call, bag, team, at)
                if k < dim and team.thread < team.group:
                    store_vector(bag.out + at, values)
            first += team.group * width

    return slow


@jit
def _own_bag(call: CombineCall) -> Any:
    """Column, number and team of a thread's bag, and the elements that it computes at once."""
    tile, thread = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
    tiles, threads = as_words(call.tiles), int64(call_of.THREADS)
    index = column_of(tiles, call.column_count, tile)
    group = call.groups[index]
    shares = call.shares[index]
    size, lanes = group * shares, call.lanes[index]
    number = (tile - tiles[index]) * quotient(threads, size) + quotient(thread, size)
    team = Team(np.int32(remainder(thread, size)), np.int32(group), np.int32(shares))
    return index, number, team, lanes


def _writer(stored: str, is_plain: bool) -> Any:
    """A device function (call, index, number, team, lanes) that writes a bag."""
    widest = 16 // DTYPES[stored].item_bytes
    slow, slow_single = (_slow(stored, lanes, is_plain) for lanes in (widest, 1))

    @jit
    def write(call: CombineCall, index: int, number: int, team: Team, lanes: int) -> None:
        bag = _bag_of(call, index, number)
        if bag.end < bag.start:
            splits = as_record(ColumnInputs, bag.source).entry_rows
            dtype = as_record(ColumnAttrs, bag.column).rows_dtype
            # The first one has to be 0, each other one no less than the one before.
            at = number + (number > 0 or integer_at(splits, int64(0), dtype) == 0)
            report_in_call(call, call_of.BAD_SPLIT, index, at, integer_at(splits, at, dtype))
        if lanes == widest:
            slow(call, bag, team, int64(widest))
        else:
            slow_single(call, bag, team, lanes)

    return write


def _plain_writer(stored: str) -> Any:
    """As `_writer`, for plain columns: it tries to be quick."""
    widest = 16 // DTYPES[stored].item_bytes
    half = max(widest // 2, 1)
    wide, narrow, single = (_quick(stored, lanes, False) for lanes in (widest, half, 1))
    shared, shared_single = (_quick(stored, lanes, True) for lanes in (widest, 1))
    write_slowly = _writer(stored, True)

    @jit
    def write(call: int, index: int, number: int, team: Team, lanes: int) -> None:
        if team.shares > 1 and lanes == widest:
            is_done = shared(call, index, number, team)
        elif team.shares > 1:
            is_done = shared_single(call, index, number, team)
        elif lanes == widest:
            is_done = wide(call, index, number, team)
        elif lanes == half:
            is_done = narrow(call, index, number, team)
        else:
            is_done = single(call, index, number, team)
        if not is_done:
            write_slowly(call, index, number, team, lanes)

    return write


def combine_kernel(stored: str, is_plain: bool) -> Any:
    """The kernel `(call)` for tables of dtype `stored`, of one block for each tile.

    A tile is as many bags of a column as a block of `THREADS` has room for.

    Args:
        is_plain: whether it is for calls of which all columns are plain (`layout.is_plain`), or for
            any: then it needs more registers.
    """
    write_plain, write_other = _plain_writer(stored), _writer(stored, False)

    def combine(call_address: int) -> None:
        call = as_record(CombineCall, call_address)
        index, number, team, lanes = _own_bag(call)
        if number >= call.batch_size:
            return
        if is_plain or call.plain[index] != 0:
            write_plain(call, index, number, team, lanes)
        else:
            write_other(call, index, number, team, lanes)

    return combine


def check_rows_kernel() -> Any:
    """The kernel `(call)` that checks the rows of entries, a thread for each.

    It reports rows outside the batch and flags a column whose rows are not in order; where the
    rows of the batch are those up to the last entry's, that must be so, and is an error, too.
    """

    def check_rows(call_address: int) -> None:
        call = as_record(CombineCall, call_address)
        tile, tiles = int64(cuda.blockIdx.x), as_words(call.check_tiles)
        index = column_of(tiles, call.column_count, tile)
        k = (tile - tiles[index]) * call_of.THREADS + cuda.threadIdx.x
        column = call.columns[index]
        source = call.inputs[index]
        if k >= source.id_count:
            return
        rows = source.entry_rows
        step = source.entry_row_stride
        dtype = column.rows_dtype
        row = integer_at(rows, k * step, dtype)
        to_last = column.row_count == LAST_ROW
        if k > 0 and integer_at(rows, (k - 1) * step, dtype) > row:
            call.unsorted[index] = 1
            if to_last:
                report_in_call(call, call_of.UNSORTED_ROW, index, k, row)
        is_last = k == source.id_count - 1
        if to_last and is_last and row + 1 != call.batch_size:
            report_in_call(call, call_of.BAD_ROW, index, k, row)
        is_outside = row < 0 or row >= call.batch_size
        # Up to the last row, rows are looked at whether their entries count or not.
        counts = to_last or not is_dropped(column, source, id_at(column, source, k, int64(0)), k)
        if is_outside and counts:
            report_in_call(call, call_of.BAD_ROW, index, k, row)

    return check_rows
