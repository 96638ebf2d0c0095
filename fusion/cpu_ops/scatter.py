"""The gradients of bags added up into those of the rows that they were combined of.

Each distinct id has a row of its own, and what is added to it comes in the order of the entries, so
that results do not depend on threads and, unweighted, have the bits of stock TensorFlow. Compiled
code for a tile of a row (see `vectors`) handles many dimensions, as in `gather`. Half types are
summed in float32 rows and narrowed in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.any_width import of_any_width
from fusion.cpu_ops.combine import MEAN, SUM
from fusion.cpu_ops.vectors import tile_ops
from fusion.runtime.layout import Address, Int64, Layout, Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.native.pointers import as_words
from fusion.runtime.tensorflow.dtypes import DTYPES


class ScatterArgs(Layout):
    """The arguments of a kernel that adds up gradients of rows."""

    bag_count: Int64
    top_grad: Address  # of the first bag
    top_grad_bytes: Int64  # from the gradient of a bag to that of the next
    bag_starts: Address  # where each bag's entries start, int32 [bags + 1]
    row_indices: Address  # of the entries, int32
    sums: Address  # of the rows
    sum_bytes: Int64  # of a row of them
    first_row: Int64  # of those that are wanted
    end_row: Int64
    combiner: Int64
    weights: Address  # of the entries, of the compute dtype
    first_element: Int64  # of the tile
    end_element: Int64
    rows: Address  # where rows of half types go in the end
    # Of kernels for any width alone:
    sum_addresses: Words  # of the sums of each row, int64, where they are apart; or 0
    masks: Address  # of bags that give zeros, a byte each that is not 0; or 0


def tile_kernel(
    stored: str, lanes: int, count: int, weighted: bool
) -> Callable[[ScatterArgs], None]:
    """A function `(arguments)` that adds a tile of rows of dtype `stored`.

    Args:
      lanes, count: the tile, see `tiles`.
      weighted: whether entries have weights.
    """
    kernel = _kernel(stored, lanes, count, weighted, False)

    def scatter(args: ScatterArgs) -> None:
        first, end = args.first_element, args.end_element
        kernel(args, first, end - first - lanes)

    return scatter


def any_kernel(stored: str, weighted: bool) -> Callable[[ScatterArgs], None]:
    """A function as that of `tile_kernel` for any number of elements, see `of_any_width`."""

    def kernel_of(lanes: int, count: int) -> Any:
        return _kernel(stored, lanes, count, weighted, True)

    by_tiles = of_any_width(stored, kernel_of)

    def scatter(args: ScatterArgs) -> None:
        by_tiles(args, args.first_element, args.end_element)

    return scatter


def _kernel(stored: str, lanes: int, count: int, weighted: bool, may_be_apart: bool) -> Any:
    """A jitted function (arguments, first element, offset of the last vector).

    Args:
      may_be_apart: whether it looks at `sum_addresses` and `masks`, which takes time.
    """
    summed = DTYPES[stored].compute
    top, sums = tile_ops(stored, lanes, count), tile_ops(summed, lanes, count)
    load_top, load_sum, store_sum = top.load, sums.load, sums.store
    zero = sums.zero
    dtype = DTYPES[stored].compute_type
    item, sum_item = DTYPES[stored].item_bytes, DTYPES[stored].compute_bytes
    scale = _weighted_scale(sums, dtype) if weighted else _scale(dtype)
    finish = _finish(stored, top, sums)

    @jit
    def sum_at(apart: Words, rows: int, row_bytes: int, row: int, element: int) -> int:
        if apart != 0:
            return apart[row] + element * sum_item
        return rows + row * row_bytes

    @jit
    def kernel(args: ScatterArgs, element: int, last: int) -> None:
        top_grad = args.top_grad + element * item
        step = args.top_grad_bytes
        starts = args.bag_starts
        row_indices = args.row_indices
        weights = args.weights
        rows = args.sums + element * sum_item
        row_bytes = args.sum_bytes
        apart = as_words(args.sum_addresses if may_be_apart else int64(0))
        masks = args.masks if may_be_apart else int64(0)
        low, high = args.first_row, args.end_row
        # Distinct ids are numbered as they occur: one that is not below `fresh` is new. Sums are
        # not begun with 0, since 0 + -0 would lose the sign.
        fresh = low
        end = int64(load_as(starts, int64(0), np.int32))
        for bag in range(args.bag_count):
            first, end = end, int64(load_as(starts, bag + 1, np.int32))
            if first == end:
                continue
            if masks != 0 and load_as(masks, bag, np.uint8) != 0:
                tile = zero()
            else:
                tile = scale(args, load_top(top_grad + bag * step, last), first, end)
            for k in range(first, end):
                row_index = int64(load_as(row_indices, k, np.int32))
                if row_index < low or row_index >= high:
                    continue
                term = tile * load_as(weights, k, dtype) if weighted else tile
                row = sum_at(apart, rows, row_bytes, row_index, element)
                if row_index >= fresh:
                    while fresh < row_index:
                        unused = sum_at(apart, rows, row_bytes, fresh, element)
                        store_sum(unused, last, zero())
                        fresh += 1
                    fresh += 1
                    store_sum(row, last, term)
                else:
                    store_sum(row, last, load_sum(row, last) + term)
        while fresh < high:
            unused = sum_at(apart, rows, row_bytes, fresh, element)
            store_sum(unused, last, zero())
            fresh += 1
        finish(args, element, last)

    return kernel


def _scale(dtype: type) -> Any:
    """A jitted function (arguments, tile, first, end) that divides a bag's gradient.

    It rounds as stock TensorFlow does: the inverse is computed in double precision.
    """

    @jit
    def scale(args: ScatterArgs, tile: Any, first: int, end: int) -> Any:
        combiner, n = args.combiner, np.float64(end - first)
        if combiner == SUM:
            return tile
        return tile * (dtype(1.0 / n) if combiner == MEAN else dtype(1.0 / np.sqrt(n)))

    return scale


def _weighted_scale(ops: Any, dtype: type) -> Any:
    """A jitted function as that of `_scale`, for entries with weights."""
    zero = ops.zero

    @jit
    def scale(args: ScatterArgs, tile: Any, first: int, end: int) -> Any:
        combiner = args.combiner
        weights = args.weights
        total = dtype(0)
        if combiner == SUM:
            return tile
        for k in range(first, end):
            weight = load_as(weights, k, dtype)
            total += weight if combiner == MEAN else weight * weight
        divisor = total if combiner == MEAN else np.sqrt(total)
        # As in stock's DivNoNan.
        return tile / divisor if divisor != 0 else zero()

    return scale


def _finish(stored: str, top: Any, sums: Any) -> Any:
    """A jitted function (arguments, element, last) that rounds sums to rows of dtype `stored`."""
    store_row, load_sum = top.store, sums.load
    item, sum_item = DTYPES[stored].item_bytes, DTYPES[stored].compute_bytes
    narrowing = sum_item // item
    if not DTYPES[stored].is_widened:

        @jit
        def nothing(args: int, element: int, last: int) -> None:
            pass

        return nothing

    @jit
    def narrow(args: ScatterArgs, element: int, last: int) -> None:
        rows = args.rows + element * item
        totals = args.sums + element * sum_item
        step = args.sum_bytes
        for index in range(args.first_row, args.end_row):
            row = rows + index * (step // narrowing)
            store_row(row, last, load_sum(totals + index * step, last))

    return narrow
