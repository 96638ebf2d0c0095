"""The gradients of bags added up into those of the rows that they were combined of.

Each distinct id has a row of its own, and what is added to it comes in the order of the entries, so
that results do not depend on threads and, unweighted, have the bits of stock TensorFlow. Compiled
code for a piece of a row (see `vectors`) handles many dimensions, as in `gather`. Half types are
summed in float32 rows and narrowed in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.combine import MEAN, SUM
from fusion.cpu_ops.half import HALVES
from fusion.cpu_ops.pieces import ITEM_BYTES, pieces
from fusion.cpu_ops.vectors import piece_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as

#: What a kernel is told, by word: the number of bags; the gradient of the first, and the bytes from
#: one to the next; where each bag's entries start, int32 [bags + 1]; the row of each entry, int32;
#: where the sums of the rows go, and the bytes of a row of them; the first row that is wanted, and
#: the one behind the last; the combiner; weights of the entries, of the compute dtype; the first
#: element of the piece, and the one behind its last; where rows of half types go in the end.
(
    BAGS,
    TOP,
    TOP_BYTES,
    STARTS,
    PLACES,
    SUMS,
    SUM_BYTES,
    LOW,
    HIGH,
    COMBINER,
    WEIGHTS,
    FIRST,
    END,
    ROWS,
) = range(14)
ARGUMENT_WORDS = 14


def sum_bytes(stored: str) -> int:
    """Bytes of an element of the sums."""
    return ITEM_BYTES["float32" if stored in HALVES else stored]


def piece_kernel(stored: str, lanes: int, count: int, weighted: bool) -> Callable[[int], None]:
    """A function `(arguments)` that adds a piece of rows of dtype `stored`.

    Args:
      lanes, count: the piece, see `pieces`.
      weighted: whether entries have weights.
    """
    kernel = _kernel(stored, lanes, count, weighted)

    def scatter(args: int) -> None:
        first, end = load(args, FIRST), load(args, END)
        kernel(args, first, end - first - lanes)

    return scatter


def any_kernel(stored: str, weighted: bool) -> Callable[[int], None]:
    """A function as that of `piece_kernel` for any number of elements: slower, for rare shapes."""
    lanes = pieces(stored)[-1][0]
    vector, scalar = _kernel(stored, lanes, 1, weighted), _kernel(stored, 1, 1, weighted)

    def scatter(args: int) -> None:
        first, end = load(args, FIRST), load(args, END)
        while end - first >= lanes:
            vector(args, first, int64(0))
            first += lanes
        while first < end:
            scalar(args, first, int64(0))
            first += 1

    return scatter


def _kernel(stored: str, lanes: int, count: int, weighted: bool) -> Any:
    """A jitted function (arguments, first element, offset of the last vector)."""
    summed = "float32" if stored in HALVES else stored
    top, sums = piece_ops(stored, lanes, count), piece_ops(summed, lanes, count)
    load_top, load_sum, store_sum = top.load, sums.load, sums.store
    zero = sums.zero
    dtype = np.float64 if stored == "float64" else np.float32
    item, sum_item = ITEM_BYTES[stored], ITEM_BYTES[summed]
    scale = _weighted_scale(sums, dtype) if weighted else _scale(dtype)
    finish = _finish(top, sums, is_half=stored in HALVES)

    @jit
    def kernel(args: int, element: int, last: int) -> None:
        top_grad, step = load(args, TOP) + element * item, load(args, TOP_BYTES)
        starts, places, weights = load(args, STARTS), load(args, PLACES), load(args, WEIGHTS)
        rows, row_bytes = load(args, SUMS) + element * sum_item, load(args, SUM_BYTES)
        low, high = load(args, LOW), load(args, HIGH)
        # Distinct ids are numbered as they occur: one that is not below `fresh` is new. Sums are
        # not begun with 0, since 0 + -0 would lose the sign.
        fresh = low
        end = int64(load_as(starts, int64(0), np.int32))
        for bag in range(load(args, BAGS)):
            first, end = end, int64(load_as(starts, bag + 1, np.int32))
            if first == end:
                continue
            piece = scale(args, load_top(top_grad + bag * step, last), first, end)
            for k in range(first, end):
                place = int64(load_as(places, k, np.int32))
                if place < low or place >= high:
                    continue
                term = piece * load_as(weights, k, dtype) if weighted else piece
                row = rows + place * row_bytes
                if place >= fresh:
                    while fresh < place:
                        store_sum(rows + fresh * row_bytes, last, zero())
                        fresh += 1
                    fresh += 1
                    store_sum(row, last, term)
                else:
                    store_sum(row, last, load_sum(row, last) + term)
        while fresh < high:
            store_sum(rows + fresh * row_bytes, last, zero())
            fresh += 1
        finish(args, element, last)

    return kernel


def _scale(dtype: type) -> Any:
    """A jitted function (arguments, piece, first, end) that divides a bag's gradient.

    It rounds as stock TensorFlow does: the inverse is computed in double precision.
    """

    @jit
    def scale(args: int, piece: Any, first: int, end: int) -> Any:
        combiner, n = load(args, COMBINER), np.float64(end - first)
        if combiner == SUM or end - first == 1:
            return piece
        return piece * (dtype(1.0 / n) if combiner == MEAN else dtype(1.0 / np.sqrt(n)))

    return scale


def _weighted_scale(ops: Any, dtype: type) -> Any:
    """A jitted function as that of `_scale`, for entries with weights."""
    zero = ops.zero

    @jit
    def scale(args: int, piece: Any, first: int, end: int) -> Any:
        combiner, weights, total = load(args, COMBINER), load(args, WEIGHTS), dtype(0)
        if combiner == SUM:
            return piece
        for k in range(first, end):
            weight = load_as(weights, k, dtype)
            total += weight if combiner == MEAN else weight * weight
        divisor = total if combiner == MEAN else np.sqrt(total)
        # As in stock's DivNoNan.
        return piece / divisor if divisor != 0 else zero()

    return scale


def _finish(top: Any, sums: Any, is_half: bool) -> Any:
    """A jitted function (arguments, element, last) that rounds sums to rows of a half type."""
    store_row, load_sum = top.store, sums.load
    if not is_half:

        @jit
        def nothing(args: int, element: int, last: int) -> None:
            pass

        return nothing

    @jit
    def narrow(args: int, element: int, last: int) -> None:
        rows, totals = load(args, ROWS) + element * 2, load(args, SUMS) + element * 4
        step = load(args, SUM_BYTES)
        for index in range(load(args, LOW), load(args, HIGH)):
            store_row(rows + index * (step // 2), last, load_sum(totals + index * step, last))

    return narrow
