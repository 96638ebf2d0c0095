"""The order in which stock TensorFlow adds up, or takes the maximum of, the numbers of a bag.

All of this was found by comparison with TensorFlow 2.18, 2.21 and 2.22, see
tests/ops/test_stock_sums.py:
- Sums of half types are rounded after each addition, but for those of bfloat16 over an axis, which
  are float32. The elements of one packet of float16 are added as float32.
- A maximum over an axis is NaN where any number is. Of two equal numbers it is the later one, which
  matters for zeros of different signs; in packets of half types it is the earlier one, and until
  TensorFlow 2.20 among the elements of one packet of any type.
- UnsortedSegmentMax begins with the lowest finite number. It is NaN where any number is. Of two
  equal numbers it is the later one; in packets of float32 and float64 it is the earlier one. Up to
  TensorFlow 2.21 it is the later one everywhere, and of a NaN and another number, too.

Whether a maximum takes denormals for zeros differs between stock's ways, and is not followed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.column_layout import AXIS
from fusion.cpu_ops.vectors import TileOps, larger, larger_or_nan, rounder, tile_ops
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.tensorflow.dtypes import DTYPES

#: Bytes of what TensorFlow's packages compute at once: AVX's vectors, or those of Arm.
PACKET_BYTES = 16 if platform.machine() in ("aarch64", "arm64") else 32

#: The lowest finite numbers of half types.
_LOWEST = {"float16": -65504.0, "bfloat16": -float.fromhex("0x1.fep127")}


def packet_size(stored: str) -> int:
    """The elements of a packet; half types have as many as float32, which they are added as."""
    return PACKET_BYTES // DTYPES[stored].compute_bytes


class Fold(NamedTuple):
    """How numbers are joined. All but `start` are jitted functions of tiles.

    Attributes:
      start: what it begins with.
      join: (total, value) -> the total of packets.
      join_alone: the same of elements that are in no packet.
      join_across: the same of the elements of one packet.
      rounded: (tile) -> its elements as the dtype of the table holds them.
    """

    start: float
    join: Any
    join_alone: Any
    join_across: Any
    rounded: Any


def fold_of(stored: str, order: int, takes_max: bool, is_older: bool = False) -> Fold:
    """The `Fold` of the sum, or the maximum, of numbers of dtype `stored` in an order.

    Args:
      is_older: whether a maximum is that of TensorFlow before 2.21 over an axis, 2.22 in sequence.
    """
    rounded, is_half = rounder(stored), DTYPES[stored].is_widened
    if takes_max and order == AXIS:
        join = _earlier if is_half else larger_or_nan
        join_across = _earlier if is_older else larger_or_nan
        return Fold(-np.inf, join, larger_or_nan, join_across, rounded)
    if takes_max:
        lowest = _LOWEST[stored] if is_half else float(np.finfo(stored).min)
        if is_older:
            return Fold(lowest, larger, larger, larger, rounded)
        join = larger_or_nan if is_half else _earlier
        return Fold(lowest, join, larger_or_nan, join, rounded)
    if not is_half or (stored == "bfloat16" and order == AXIS):
        return Fold(0.0, _add, _add, _add, rounded)

    @jit
    def add(total: Any, value: Any) -> Any:
        return rounded(total + value)

    return Fold(0.0, add, add, _add, rounded)


@jit
def _add(total: Any, value: Any) -> Any:
    return total + value


@jit
def _earlier(total: Any, value: Any) -> Any:
    return larger_or_nan(value, total)


def _halving(ops: TileOps, item: int, join: Any) -> Any:
    """A jitted function (totals, step, count) that joins each of the first `step` with later ones.

    Those are the ones at a multiple of `step` after it, of `count` in all.
    """
    load_tile, store_tile = ops.load, ops.store

    @jit
    def halve(totals: int, step: int, count: int) -> None:
        for i in range(step):
            total = load_tile(totals + i * item, 0)
            for other in range(i + step, count, step):
                total = join(total, load_tile(totals + other * item, 0))
            store_tile(totals + i * item, 0, total)

    return halve


def fold_in_packets(stored: str, fold: Fold, term: Any) -> Any:
    """A jitted function (of, first, n) -> the total of `term(of, k)` for n numbers k from `first`.

    Terms and total are tiles of one element. In the order of a reduction of the last axis, up to
    1,024 packets: four totals of packets, one after the other; these are put together, then the
    packets that follow; halves of the result until one is left, and with it the total of the
    elements that follow.
    """
    ops, packet = tile_ops(DTYPES[stored].compute, 1, 1), packet_size(stored)
    item, lanes = DTYPES[stored].compute_bytes, 4 * packet
    start = DTYPES[stored].compute_type(fold.start)
    join, join_alone, load_tile, store_tile = fold.join, fold.join_alone, ops.load, ops.store
    zero = ops.zero
    join_packets = _halving(ops, item, fold.join)
    join_halves = _halving(ops, item, fold.join_across)

    @jit
    def join_terms(totals: int, count: int, of: int, first: int) -> None:
        for i in range(count):
            place = totals + i * item
            store_tile(place, 0, join(load_tile(place, 0), term(of, first + i)))

    @jit
    def join_whole(totals: int, of: int, first: int, n: int) -> Any:
        for i in range(lanes):
            store_tile(totals + i * item, 0, zero() + start)
        unrolled = n // lanes * lanes
        for k in range(0, unrolled, lanes):
            join_terms(totals, lanes, of, first + k)
        join_packets(totals, packet, lanes)
        for k in range(unrolled, n, packet):
            join_terms(totals, packet, of, first + k)
        half = packet // 2
        while half > 0:
            join_halves(totals, half, 2 * half)
            half //= 2
        # What was added across is rounded now, if additions are.
        return join_alone(zero() + start, load_tile(totals, 0))

    @jit
    def total_of(of: int, first: int, n: int) -> Any:
        if n == 1:
            return term(of, first)
        whole = n // packet * packet
        total, tail = join_whole(stack_words(lanes), of, first, whole), zero() + start
        for k in range(first + whole, first + n):
            tail = join_alone(tail, term(of, k))
        return join_alone(total, tail)

    return total_of


def weight_sum(stored: str, squared: bool) -> Callable[[int, int, int], float]:
    """A jitted function (weights, first, n) -> the sum of weights of dtype `stored` over an axis.

    Or that of their squares.
    """
    fold, item = fold_of(stored, AXIS, takes_max=False), DTYPES[stored].item_bytes
    compute, rounded = DTYPES[stored].compute, fold.rounded
    load_weight, store_sum = tile_ops(stored, 1, 1).load, tile_ops(compute, 1, 1).store
    dtype = DTYPES[stored].compute_type

    @jit
    def term(weights: int, k: int) -> Any:
        weight = load_weight(weights + k * item, 0)
        return rounded(weight * weight) if squared else weight

    add_up = fold_in_packets(stored, fold, term)

    @jit
    def total_of(weights: int, first: int, n: int) -> float:
        total = stack_words(1)
        store_sum(total, 0, rounded(add_up(weights, first, n)))
        return np.float64(load_as(total, 0, dtype))

    return total_of
