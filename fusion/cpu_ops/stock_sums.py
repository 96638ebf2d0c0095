"""Bags in the orders in which stock TensorFlow's dense sums add, with their bits.

AXIS is a sum over the middle axis of [B, L, D]. Eigen adds the L rows one by one, from zero. Where
the packet of elements that it computes at once lies in one row of the result, and L is 16 or more,
it has four sums, of the rows with the numbers 0, 1, 2, 3 modulo 4 below the last multiple of 4,
adds these up and then the rows behind. Packets lie one after the other in the whole result, so that
of a D that is no multiple of their size some elements are added one by one. If D is 1, packets are
of the L elements, see `_in_packets`. A sum of one row is that row.

SEQUENCE is that of UnsortedSegmentSum, which adds rows one by one to zeros.

All of this was found by comparison with TensorFlow 2.21, see tests/ops/test_stock_sums.py.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import AXIS, ColumnAttrs, ColumnInputs
from fusion.cpu_ops.combine import MEAN, SUM
from fusion.cpu_ops.elements import INVALID, Batch, integer_at
from fusion.cpu_ops.row_tiles import AHEAD, GatherArgs
from fusion.cpu_ops.vectors import TileOps, tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load, load_as, stack_words, store, store_as
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOAT64

#: Bytes of what TensorFlow's packages compute at once: AVX's vectors, or those of Arm.
PACKET_BYTES = 16 if platform.machine() in ("aarch64", "arm64") else 32

#: With fewer rows there are no four sums.
_FOUR_SUMS_FROM = 16


def tile_kernel(
    stored: str, lanes: int, count: int, weighted: bool, order: int
) -> Callable[[int], None]:
    """A function `(arguments)` that adds up a tile of rows of dtype `stored`, see `row_tiles`.

    Args:
      lanes, count: the tile.
      weighted: whether entries have weights.
      order: AXIS or SEQUENCE.
    """
    ops, dtype = tile_ops(stored, lanes, count), DTYPES[stored].compute_type
    item, zero, store_tile = DTYPES[stored].item_bytes, ops.zero, ops.store
    packet = PACKET_BYTES // item
    add_up = _tile_sum(ops, dtype, weighted, order)
    divisor_of = _divisor(dtype, order)
    by_element = _by_element(dtype, packet, weighted, divisor_of)
    is_axis = order == AXIS

    @jit
    def divided(args: int, b: int, n: int, tile: Any) -> Any:
        if load(args, GatherArgs.combiner) == SUM:
            return tile
        divisor = divisor_of(args, b, n)
        if divisor == 0 and load(args, GatherArgs.divide_no_nan) != 0:
            return zero()
        return tile / divisor

    def combine(args: int) -> None:
        offset = load(args, GatherArgs.first_element) * item
        last = load(args, GatherArgs.end_element) - load(args, GatherArgs.first_element) - lanes
        out, step = load(args, GatherArgs.out), load(args, GatherArgs.out_bytes)
        starts, dim = load(args, GatherArgs.bag_starts), load(args, GatherArgs.dim)
        for b in range(load(args, GatherArgs.bag_count)):
            first = load(starts, b)
            n = load(starts, b + 1) - first
            has_four = is_axis and n >= _FOUR_SUMS_FROM and dim >= packet
            if not is_axis or dim > 1:
                behind = n // 4 * 4 if has_four else int64(0)
                tile = add_up(args, first, n, behind, offset, last)
                store_tile(out + offset, last, divided(args, b, n, tile))
            if is_axis and (dim == 1 or (has_four and dim % packet != 0)):
                by_element(args, b, first, n, out)
            out += step

    return combine


def _tile_sum(ops: TileOps, dtype: type, weighted: bool, order: int) -> Any:
    """A jitted function (arguments, first entry, n, behind, offset, last) -> the sum of a bag.

    `behind` is the number of rows of which there are four sums.
    """
    zero, load_tile, prefetch = ops.zero, ops.load, ops.prefetch
    keeps_one = order == AXIS

    @jit
    def term(args: int, k: int, offset: int, last: int) -> Any:
        addresses = load(args, GatherArgs.row_addresses)
        prefetch(load(addresses, k + AHEAD) + offset)
        tile = load_tile(load(addresses, k) + offset, last)
        if weighted:
            return tile * load_as(load(args, GatherArgs.weights), k, dtype)
        return tile

    @jit
    def add_up(args: int, first: int, n: int, behind: int, offset: int, last: int) -> Any:
        if keeps_one and n == 1:  # which is no sum: -0.0 stays
            return term(args, first, offset, last)
        total = zero()
        if behind > 0:
            second, third, fourth = zero(), zero(), zero()
            for k in range(first, first + behind, 4):
                total += term(args, k, offset, last)
                second += term(args, k + 1, offset, last)
                third += term(args, k + 2, offset, last)
                fourth += term(args, k + 3, offset, last)
            total += second
            total += third
            total += fourth
        for k in range(first + behind, first + n):
            total += term(args, k, offset, last)
        return total

    return add_up


def _divisor(dtype: type, order: int) -> Any:
    """A jitted function (arguments, bag, n) -> what a mean of the bag is divided by."""
    is_axis = order == AXIS

    @jit
    def divisor(args: int, b: int, n: int) -> Any:
        if is_axis:
            return load_as(load(args, GatherArgs.divisors), b, dtype)
        return dtype(n) if load(args, GatherArgs.combiner) == MEAN else dtype(np.sqrt(dtype(n)))

    return divisor


def _by_element(dtype: type, packet: int, weighted: bool, divisor_of: Any) -> Any:
    """A jitted function (arguments, bag, first entry, n, out) that adds up some elements alone.

    That are those in no packet of the row alone, or the only one.
    """
    one_by_one = _one_by_one(dtype, weighted)
    in_packets = _in_packets(dtype, packet, _term(dtype, weighted))

    @jit
    def divided(args: int, b: int, n: int, total: Any) -> Any:
        if load(args, GatherArgs.combiner) == SUM:
            return total
        divisor = divisor_of(args, b, n)
        if divisor == 0 and load(args, GatherArgs.divide_no_nan) != 0:
            return dtype(0)
        return total / divisor

    @jit
    def by_element(args: int, b: int, first: int, n: int, out: int) -> None:
        dim = load(args, GatherArgs.dim)
        if dim == 1:
            store_as(out, 0, divided(args, b, n, in_packets(args, first, n)), dtype)
            return
        start = (load(args, GatherArgs.first_row) + b) * dim
        total = load(args, GatherArgs.all_rows) * dim
        for e in range(load(args, GatherArgs.first_element), load(args, GatherArgs.end_element)):
            place = (start + e) // packet * packet
            if place < start or place + packet > min(start + dim, total):
                store_as(out, e, divided(args, b, n, one_by_one(args, first, n, e)), dtype)

    return by_element


def _term(dtype: type, weighted: bool) -> Any:
    """A jitted function (arguments, entry) -> the first element of its row, times its weight."""

    @jit
    def term(args: int, k: int) -> Any:
        value = load_as(load(load(args, GatherArgs.row_addresses), k), 0, dtype)
        return value * load_as(load(args, GatherArgs.weights), k, dtype) if weighted else value

    return term


def _one_by_one(dtype: type, weighted: bool) -> Any:
    """A jitted function (arguments, first entry, n, element) -> the sum of one element."""

    @jit
    def add_up(args: int, first: int, n: int, element: int) -> Any:
        addresses, weights = load(args, GatherArgs.row_addresses), load(args, GatherArgs.weights)
        total = dtype(0)
        for k in range(first, first + n):
            value = load_as(load(addresses, k), element, dtype)
            total += value * load_as(weights, k, dtype) if weighted else value
        return total

    return add_up


def _fold(dtype: type) -> Any:
    """A jitted function (sums, step, count) that adds to each of the first `step` those behind it.

    That are those a multiple of `step` behind, of `count` in all.
    """

    @jit
    def fold(sums: int, step: int, count: int) -> None:
        for i in range(step):
            total = load_as(sums, i, dtype)
            for other in range(i + step, count, step):
                total += load_as(sums, other, dtype)
            store_as(sums, i, total, dtype)

    return fold


def _in_packets(dtype: type, packet: int, term: Any) -> Any:
    """A jitted function (of, first, n) -> the sum of `term(of, k)` for n numbers k from `first` on.

    In the order of a sum over the last axis, up to 1,024 packets: four sums of packets, one after
    the other; these are added up, then the packets behind; halves of what results are added until
    one is left, and to it the sum of the elements behind.
    """
    lanes = 4 * packet

    @jit
    def add_to(sums: int, count: int, of: int, first: int) -> None:
        for i in range(count):
            store_as(sums, i, load_as(sums, i, dtype) + term(of, first + i), dtype)

    fold = _fold(dtype)

    @jit
    def add_up(of: int, first: int, n: int) -> Any:
        if n == 1:
            return term(of, first)
        sums = stack_words(lanes)
        for i in range(lanes):
            store_as(sums, i, dtype(0), dtype)
        unrolled, whole = n // lanes * lanes, n // packet * packet
        for start in range(0, unrolled, lanes):
            add_to(sums, lanes, of, first + start)
        fold(sums, packet, lanes)
        for start in range(unrolled, whole, packet):
            add_to(sums, packet, of, first + start)
        half = packet // 2
        while half > 0:
            fold(sums, half, 2 * half)
            half //= 2
        behind = dtype(0)
        for k in range(first + whole, first + n):
            behind += term(of, k)
        return load_as(sums, 0, dtype) + behind

    return add_up


def _weight_sum(dtype: type, squared: bool) -> Any:
    """A jitted function (weights, first, n) -> the sum of weights, or of their squares."""

    @jit
    def term(weights: int, k: int) -> Any:
        weight = load_as(weights, k, dtype)
        return weight * weight if squared else weight

    return _in_packets(dtype, PACKET_BYTES // np.dtype(dtype).itemsize, term)


_sum32, _squares32 = _weight_sum(np.float32, False), _weight_sum(np.float32, True)
_sum64, _squares64 = _weight_sum(np.float64, False), _weight_sum(np.float64, True)


@jit
def _divisor_of_weights(weights: int, first: int, n: int, combiner: int, kind: int) -> float:
    """The sum of weights, or the root of that of their squares."""
    if combiner == MEAN:
        if kind == FLOAT64:
            return _sum64(weights, first, n)
        return np.float64(_sum32(weights, first, n))
    if kind == FLOAT64:
        return np.sqrt(_squares64(weights, first, n))
    return np.float64(np.sqrt(_squares32(weights, first, n)))


@jit
def _put(address: int, index: int, number: float, kind: int) -> None:
    """Writes a weight or a divisor, as the table's dtype."""
    if kind == FLOAT64:
        store_as(address, index, number, np.float64)
    else:
        store_as(address, index, np.float32(number), np.float32)


@jit
def _weight(weights: int, index: int, kind: int) -> float:
    if kind == FLOAT64:
        return load_as(weights, index, np.float64)
    return np.float64(load_as(weights, index, np.float32))


@jit
def _rounded(number: float, kind: int) -> float:
    return number if kind == FLOAT64 else np.float64(np.float32(number))


@jit
def list_all(batch: Batch, divisors: int) -> int:
    """Lists all elements of rows of order AXIS: what is no entry as zeros, or with the weight 0.

    Args:
      batch: what to list.
      divisors: out, what each row is divided by, of the table's dtype.

    Returns:
      The number of elements, or INVALID: an id is out of bounds.
    """
    column, source = batch.column, batch.source
    ids, kind = load(source, ColumnInputs.ids), load(column, ColumnAttrs.ids_dtype)
    width, table_kind = (
        load(source, ColumnInputs.id_columns),
        load(source, ColumnInputs.table_dtype),
    )
    table, table_rows = load(source, ColumnInputs.table), load(source, ColumnInputs.table_rows)
    row_bytes, zeros = load(source, ColumnInputs.row_bytes), load(source, ColumnInputs.zeros)
    wrapped = table_rows if load(column, ColumnAttrs.wrap_negative) != 0 else int64(0)
    may_ignore = load(column, ColumnAttrs.use_ignored_id) != 0
    ignored, combiner = load(column, ColumnAttrs.ignored_id), load(column, ColumnAttrs.combiner)
    has_lengths = load(column, ColumnAttrs.has_lengths) != 0
    lengths, lengths_kind = (
        load(source, ColumnInputs.entry_rows),
        load(column, ColumnAttrs.rows_dtype),
    )
    is_product = load(column, ColumnAttrs.mask_product) != 0
    weights = load(source, ColumnInputs.weights)
    has_weights = load(column, ColumnAttrs.use_sparse_weights) != 0
    weight_step = load(source, ColumnInputs.weight_step)
    epsilon = _rounded(as_float(load(column, ColumnAttrs.divisor_epsilon)), table_kind)
    if load(column, ColumnAttrs.epsilon_input) != 0:
        epsilon = _weight(weights, 0, table_kind)
    inside, count = int64(-1), int64(0)
    for row in range(batch.count):
        store(batch.starts, row, count)
        left = width
        if has_lengths:
            left = integer_at(lengths, batch.first + row, lengths_kind)
        first, entries = (batch.first + row) * width, int64(0)
        for k in range(width):
            number = integer_at(ids, first + k, kind)
            counts = k < left and not (may_ignore and number == ignored)
            number += wrapped if number < 0 else int64(0)
            # The first is negative unless the id is, the second unless it is too large.
            inside &= ~number & (number - table_rows)
            address = table + number * row_bytes
            entries += int64(counts)
            if has_weights:
                weight = _weight(weights, (batch.first + row) * weight_step + k, table_kind)
                _put(batch.weights, count, weight, table_kind)
            elif is_product:
                _put(batch.weights, count, np.float64(1 if counts else 0), table_kind)
            elif not counts:
                address = zeros
            store(batch.addresses, count, address)
            count += 1
        if combiner == SUM:
            continue
        total = np.float64(left if has_lengths else entries)
        if has_weights:
            own = (batch.first + row) * weight_step
            total = np.float64(_divisor_of_weights(weights, own, width, combiner, table_kind))
        elif combiner != MEAN:
            total = np.float64(np.sqrt(total))
        _put(divisors, row, _rounded(total, table_kind) + epsilon, table_kind)
    store(batch.starts, batch.count, count)
    return count if inside < 0 or count == 0 else int64(INVALID)
