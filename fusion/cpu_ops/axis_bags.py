"""Sums over the middle axis of [B, L, D], in stock TensorFlow's order and with its bits.

Eigen adds the L rows one by one, from zero. Where the packet of elements that it computes at once
lies in one row of the result, and L is 16 or more, it has four sums, of the rows with the numbers
0, 1, 2, 3 modulo 4 below the last multiple of 4, adds these up and then the rows behind. Packets
lie one after the other in the whole result, so that of a D that is no multiple of their size some
elements are added one by one. If D is 1, packets are of the L elements, see `_in_packets`. A sum of
one row is that row. All of this was found by comparison with TensorFlow 2.21, see
tests/ops/test_axis.py.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.combine import MEAN, SUM
from fusion.cpu_ops.elements import INVALID, Batch, integer_at
from fusion.cpu_ops.row_tiles import AHEAD, GatherArgs
from fusion.cpu_ops.vectors import tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load, load_as, stack_words, store, store_as
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOAT64

#: Bytes of what TensorFlow's packages compute at once: AVX's vectors, or those of Arm.
PACKET_BYTES = 16 if platform.machine() in ("aarch64", "arm64") else 32

#: With fewer rows there are no four sums.
_FOUR_SUMS_FROM = 16


def tile_kernel(stored: str, lanes: int, count: int, weighted: bool) -> Callable[[int], None]:
    """A function `(arguments)` that adds up a tile of rows of dtype `stored`, see `row_tiles`.

    Args:
      lanes, count: the tile.
      weighted: whether entries have weights.
    """
    ops, dtype = tile_ops(stored, lanes, count), DTYPES[stored].compute_type
    zero, load_tile, store_tile, prefetch = ops.zero, ops.load, ops.store, ops.prefetch
    item = DTYPES[stored].item_bytes
    packet = PACKET_BYTES // item
    one_by_one = _one_by_one(dtype, weighted)
    in_packets = _in_packets(dtype, packet, _term(dtype, weighted))

    @jit
    def term(args: int, k: int, offset: int, last: int) -> Any:
        addresses = load(args, GatherArgs.row_addresses)
        prefetch(load(addresses, k + AHEAD) + offset)
        tile = load_tile(load(addresses, k) + offset, last)
        if weighted:
            return tile * load_as(load(args, GatherArgs.weights), k, dtype)
        return tile

    @jit
    def bag(args: int, first: int, n: int, behind: int, offset: int, last: int) -> Any:
        if n == 1:  # which is no sum: -0.0 stays
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

    @jit
    def fix_edges(args: int, b: int, first: int, n: int, out: int) -> None:
        """Adds up one by one what is in no packet of the row alone."""
        dim = load(args, GatherArgs.dim)
        start = (load(args, GatherArgs.first_row) + b) * dim
        total = load(args, GatherArgs.all_rows) * dim
        for e in range(load(args, GatherArgs.first_element), load(args, GatherArgs.end_element)):
            place = (start + e) // packet * packet
            if place < start or place + packet > min(start + dim, total):
                sum_of = one_by_one(args, first, n, e)
                store_as(out, e, divided(args, b, sum_of), dtype)

    @jit
    def divided(args: int, b: int, total: Any) -> Any:
        if load(args, GatherArgs.combiner) == SUM:
            return total
        divisor = load_as(load(args, GatherArgs.divisors), b, dtype)
        if divisor == 0 and load(args, GatherArgs.divide_no_nan) != 0:
            return dtype(0)
        return total / divisor

    def combine(args: int) -> None:
        offset = load(args, GatherArgs.first_element) * item
        last = load(args, GatherArgs.end_element) - load(args, GatherArgs.first_element) - lanes
        out, step = load(args, GatherArgs.out), load(args, GatherArgs.out_bytes)
        starts, dim = load(args, GatherArgs.bag_starts), load(args, GatherArgs.dim)
        combiner = load(args, GatherArgs.combiner)
        if dim == 1:
            for b in range(load(args, GatherArgs.bag_count)):
                first = load(starts, b)
                total = in_packets(args, first, load(starts, b + 1) - first)
                store_as(out, 0, divided(args, b, total), dtype)
                out += step
            return
        for b in range(load(args, GatherArgs.bag_count)):
            first = load(starts, b)
            n = load(starts, b + 1) - first
            behind = n // 4 * 4 if n >= _FOUR_SUMS_FROM and dim >= packet else int64(0)
            tile = bag(args, first, n, behind, offset, last)
            if combiner != SUM:
                divisor = load_as(load(args, GatherArgs.divisors), b, dtype)
                if divisor == 0 and load(args, GatherArgs.divide_no_nan) != 0:
                    tile = zero()
                else:
                    tile = tile / divisor
            store_tile(out + offset, last, tile)
            if behind > 0 and dim % packet != 0:
                fix_edges(args, b, first, n, out)
            out += step

    return combine


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


def _in_packets(dtype: type, packet: int, term: Any) -> Any:
    """A jitted function (of, first, n) -> the sum of `term(of, k)` for n numbers k from `first` on.

    In the order of a sum over the last axis, up to 1,024 packets: four sums of packets, one after
    the other; these are added up, then the packets behind; halves of what results are added until
    one is left, and to it the sum of the elements behind.
    """
    lanes = 4 * packet

    @jit
    def add_up(of: int, first: int, n: int) -> Any:
        if n == 1:
            return term(of, first)
        sums = stack_words(lanes)
        for i in range(lanes):
            store_as(sums, i, dtype(0), dtype)
        unrolled, whole = n // lanes * lanes, n // packet * packet
        for start in range(0, unrolled, lanes):
            for i in range(lanes):
                store_as(sums, i, load_as(sums, i, dtype) + term(of, first + start + i), dtype)
        for i in range(packet):
            total = load_as(sums, i, dtype)
            for other in range(i + packet, lanes, packet):
                total += load_as(sums, other, dtype)
            store_as(sums, i, total, dtype)
        for start in range(unrolled, whole, packet):
            for i in range(packet):
                store_as(sums, i, load_as(sums, i, dtype) + term(of, first + start + i), dtype)
        half = packet // 2
        while half > 0:
            for i in range(half):
                total = load_as(sums, i, dtype) + load_as(sums, half + i, dtype)
                store_as(sums, i, total, dtype)
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
    """Lists all elements of rows: what is no entry as a row of zeros, or with the weight 0.

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
