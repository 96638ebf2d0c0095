"""Bags in the orders in which stock TensorFlow's dense reductions go, with their bits.

AXIS is a reduction of the middle axis of [B, L, D]. Eigen adds the L rows one by one, from zero.
Where the packet of elements that it computes at once lies in one row of the result, and L is 16 or
more, it has four sums, of the rows with the numbers 0, 1, 2, 3 modulo 4 below the last multiple of
4, adds these up and then the other rows. Packets lie one after the other in the whole result, so
that of a D that is no multiple of their size some elements are added one by one. If D is 1, packets
are of the L elements, see `fold_in_packets`. A sum of one row is that row. The largest elements of
rows are found in the same order.

SEQUENCE is that of UnsortedSegmentSum and UnsortedSegmentMax, one row after the other.
Packets begin with each row of the result.

DENSE_SEGMENT is that of SegmentSum: AXIS for each bag by itself, so that its packets begin with
each row of the result; if D is 1, and in means, one row after the other.

All of this was found by comparison with TensorFlow 2.21 and 2.22, see tests/ops/test_stock_sums.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import AXIS, LESS, SEQUENCE, TIMES
from fusion.cpu_ops.combine import MAX, MEAN, SUM
from fusion.cpu_ops.dense.folds import Fold, fold_in_packets, fold_of, packet_size
from fusion.cpu_ops.row_loads import RowOps, row_ops
from fusion.cpu_ops.row_tiles import AHEAD, GatherArgs
from fusion.cpu_ops.vectors import tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.row_formats import PLAIN

#: With fewer rows there are no four sums.
_FOUR_SUMS_FROM = 16

#: Up to this power of 2 dtypes have all integers. Ones that are added up go no further.
_COUNTED_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def tile_kernel(
    stored: str,
    lanes: int,
    count: int,
    terms: int,
    order: int,
    takes_max: bool,
    row_format: str = PLAIN,
    is_older: bool = False,
) -> Callable[[GatherArgs], None]:
    """A function `(arguments)` that adds up a tile of rows of dtype `stored`, see `row_tiles`.

    Args:
      lanes, count: the tile.
      terms: PLAIN, TIMES or LESS.
      order: AXIS, SEQUENCE or DENSE_SEGMENT.
      takes_max: whether it finds the largest elements instead.
      row_format: how rows are stored, see `row_ops`.
      is_older: see `fold_of`.
    """
    rows = row_ops(stored, row_format, lanes, count)
    fold = fold_of(stored, order, takes_max, is_older)
    ops = tile_ops(stored, lanes, count)
    item, store_tile, packet = DTYPES[stored].item_bytes, ops.store, packet_size(stored)
    add_up = _tile_sum(ops.zero, rows, stored, fold, terms, order)
    divided = _divided(ops.zero, stored, fold, terms, order)
    by_element = _by_element(stored, row_format, fold, terms, order)
    is_axis, differs = order == AXIS, fold.join is not fold.join_alone
    in_packets = order != SEQUENCE

    def combine(args: GatherArgs) -> None:
        element = args.first_element
        last = args.end_element - element - lanes
        out, step = args.out, args.out_bytes
        starts, dim = args.bag_starts, args.dim
        for b in range(args.bag_count):
            first = starts[b]
            n = starts[b + 1] - first
            has_four = in_packets and n >= _FOUR_SUMS_FROM and dim >= packet
            has_four &= is_axis or args.combiner == SUM
            if not is_axis or dim > 1:
                unrolled = n // 4 * 4 if has_four else int64(0)
                tile = add_up(args, first, n, unrolled, element, last)
                store_tile(out + element * item, last, divided(args, b, n, tile))
            is_apart = (has_four or differs) and dim % packet != 0
            if is_apart or (is_axis and dim == 1):
                by_element(args, b, first, n, out)
            out += step

    return combine


def any_kernel(stored: str, *how: Any) -> Callable[[GatherArgs], None]:
    """A function as that of `tile_kernel` for any number of elements: slower, for rare shapes."""
    one = jit(tile_kernel(stored, 1, 1, *how))

    def combine(args: GatherArgs) -> None:
        for element in range(args.dim):
            args.first_element = element
            args.end_element = element + 1
            one(args)

    return combine


def _term(rows: RowOps, stored: str, fold: Fold, terms: int) -> Any:
    """A jitted function (arguments, entry, element, last) -> the term of an entry's row."""
    load_tile, rounded, dtype = rows.load, fold.rounded, DTYPES[stored].compute_type

    @jit
    def term(args: GatherArgs, k: int, element: int, last: int) -> Any:
        tile = load_tile(args.row_addresses[k], element, last)
        if terms == TIMES:
            return rounded(tile * load_as(args.weights, k, dtype))
        if terms == LESS:
            return rounded(tile - load_as(args.weights, k, dtype))
        return tile

    return term


def _tile_sum(zero: Any, rows: RowOps, stored: str, fold: Fold, terms: int, order: int) -> Any:
    """A jitted function (arguments, first entry, n, unrolled, element, last) -> the sum of a bag.

    `unrolled` is the number of rows that go into four separate sums.
    """
    prefetch, row_term = rows.prefetch, _term(rows, stored, fold, terms)
    start, join = DTYPES[stored].compute_type(fold.start), fold.join
    keeps_one = order != SEQUENCE

    @jit
    def term(args: GatherArgs, k: int, element: int, last: int) -> Any:
        prefetch(args.row_addresses[k + AHEAD], element)
        return row_term(args, k, element, last)

    @jit
    def add_up(args: GatherArgs, first: int, n: int, unrolled: int, element: int, last: int) -> Any:
        if keeps_one and n == 1:  # which is no sum: -0.0 stays
            return term(args, first, element, last)
        total = zero() + start
        if unrolled > 0:
            second, third, fourth = total, total, total
            for k in range(first, first + unrolled, 4):
                total = join(total, term(args, k, element, last))
                second = join(second, term(args, k + 1, element, last))
                third = join(third, term(args, k + 2, element, last))
                fourth = join(fourth, term(args, k + 3, element, last))
            total = join(join(join(total, second), third), fourth)
        for k in range(first + unrolled, first + n):
            total = join(total, term(args, k, element, last))
        return total

    return add_up


def _divided(zero: Any, stored: str, fold: Fold, terms: int, order: int) -> Any:
    """A jitted function (arguments, bag, n, tile) -> the tile of sums, divided if need be."""
    rounded, dtype = fold.rounded, DTYPES[stored].compute_type
    is_axis, max_count = order == AXIS, 1 << _COUNTED_BITS[stored]

    @jit
    def weights_of(args: GatherArgs, b: int, n: int) -> Any:
        total, first = dtype(0), args.bag_starts[b]
        for k in range(first, first + n):
            weight = load_as(args.weights, k, dtype)
            total += weight if args.combiner == MEAN else weight * weight
        return total

    @jit
    def divisor_of(args: GatherArgs, b: int, n: int) -> Any:
        if is_axis:
            return load_as(args.divisors, b, dtype)
        number = dtype(min(n, int64(max_count)))
        if terms == TIMES:
            number = weights_of(args, b, n)
        return number if args.combiner == MEAN else dtype(np.sqrt(number))

    @jit
    def divided(args: GatherArgs, b: int, n: int, tile: Any) -> Any:
        if args.combiner in (SUM, MAX):
            return tile
        divisor = divisor_of(args, b, n)
        if divisor == 0 and args.divide_no_nan != 0:
            return zero()
        if args.is_rounded_once != 0:
            return tile / divisor
        return rounded(tile) / rounded(zero() + divisor)

    return divided


def _by_element(stored: str, row_format: str, fold: Fold, terms: int, order: int) -> Any:
    """A jitted function (arguments, bag, first entry, n, out) that adds up some elements alone.

    That are those in no packet of the row alone, or the only one.
    """
    ops, packet = tile_ops(stored, 1, 1), packet_size(stored)
    dtype, item = DTYPES[stored].compute_type, DTYPES[stored].item_bytes
    zero, store_tile, start, join = ops.zero, ops.store, dtype(fold.start), fold.join_alone
    term = _term(row_ops(stored, row_format, 1, 1), stored, fold, terms)
    divided = _divided(zero, stored, fold, terms, order)

    @jit
    def first_of(args: GatherArgs, k: int) -> Any:
        return term(args, k, int64(0), int64(0))

    in_packets = fold_in_packets(stored, fold, first_of)
    is_axis, is_sequence = order == AXIS, order == SEQUENCE

    @jit
    def one_by_one(args: GatherArgs, first: int, n: int, element: int) -> Any:
        if n == 1 and not is_sequence:
            return term(args, first, element, int64(0))
        total = zero() + start
        for k in range(first, first + n):
            total = join(total, term(args, k, element, int64(0)))
        return total

    @jit
    def by_element(args: GatherArgs, b: int, first: int, n: int, out: int) -> None:
        dim = args.dim
        if dim == 1 and not is_sequence:
            store_tile(out, int64(0), divided(args, b, n, in_packets(args, first, n)))
            return
        start, total = int64(0), dim
        if is_axis:
            start = (args.first_row + b) * dim
            total = args.all_rows * dim
        for e in range(args.first_element, args.end_element):
            place = (start + e) // packet * packet
            if place < start or place + packet > min(start + dim, total):
                tile = divided(args, b, n, one_by_one(args, first, n, e))
                store_tile(out + e * item, int64(0), tile)

    return by_element
