"""The gradient of a distinct id, or of a gathered row: the sum of what its entries contribute."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.gpu_ops.kernels.entries import is_masked
from fusion.gpu_ops.kernels.tiles import quotient, remainder
from fusion.gpu_ops.language.arithmetic import SUM, grad_scaler
from fusion.gpu_ops.language.device import (
    added,
    any_in_warp,
    from_lane,
    jit,
    load_as,
    multiplied,
    vector_loader,
    vector_storer,
)
from fusion.gpu_ops.layout.call import WARP
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES

#: All groups of a warp add up a row of more entries than that: they have more rows on their way.
LONG = 32


class BagGradient(NamedTuple):
    """The bags of a column, and the gradient of what they were combined into.

    Attributes:
        order: int32, the entries in the order in which they are added up.
        owners: int32, the bag of each entry; those from `batch` on are in none.
        batch: how many bags there are.
        scales: by bag, what `bag_scales.put_scale` writes; not read for sums.
        weights: by entry, of the gradient's dtype; 0: there are none.
        combiner: as of the op.
        masked, flags: see `entries.is_masked`; bags whose entries get zeros.
        top, row_bytes: the address of the gradient of the first bag, and the bytes from one to the
            next.
    """

    order: int
    owners: int
    batch: int
    scales: int
    weights: int
    combiner: int
    masked: int
    flags: int
    top: int
    row_bytes: int


class _Entry(NamedTuple):
    """An entry's number, and that of its bag; of the first one if it is in none."""

    number: int
    bag: int
    counts: bool


@jit
def _ordered(bags: BagGradient, index: int) -> int:
    return int64(load_as(bags.order, index, np.int32))


@jit
def _entry(bags: BagGradient, number: int) -> _Entry:
    bag = int64(load_as(bags.owners, number, np.int32))
    counts = bag < bags.batch
    return _Entry(number, bag if counts else int64(0), counts)


def _scaler(stored: str, lanes: int) -> Any:
    """A device function (`BagGradient`, `_Entry`, row, scale, weight) -> the term of the entry."""
    dtype = DTYPES[stored].compute_type
    zero = (dtype(0),) * lanes
    _, weighted = grad_scaler(dtype, lanes)

    @jit
    def scaled(bags: BagGradient, entry: _Entry, row: Any, scale: Any, weight: Any) -> Any:
        if is_masked(bags.masked, bags.flags, entry.bag):
            row, scale = zero, dtype(1)
        if bags.weights != 0:
            return weighted(row, bags.combiner, scale, weight)
        return row if bags.combiner == SUM else multiplied(row, scale)

    return scaled


def _factors_loader(stored: str) -> Any:
    """A device function (`BagGradient`, four entries) -> their scales and weights; ones without."""
    dtype, load_one = DTYPES[stored].compute_type, vector_loader(stored, 1)
    item, ones = DTYPES[stored].item_bytes, (DTYPES[stored].compute_type(1),) * 4

    @jit
    def factors(bags: BagGradient, e0: _Entry, e1: _Entry, e2: _Entry, e3: _Entry) -> Any:
        scales = weights = ones
        if bags.combiner != SUM:
            s0, s1 = load_as(bags.scales, e0.bag, dtype), load_as(bags.scales, e1.bag, dtype)
            s2, s3 = load_as(bags.scales, e2.bag, dtype), load_as(bags.scales, e3.bag, dtype)
            scales = s0, s1, s2, s3
        if bags.weights != 0:
            w0 = load_one(bags.weights + e0.number * item)[0]
            w1 = load_one(bags.weights + e1.number * item)[0]
            w2 = load_one(bags.weights + e2.number * item)[0]
            w3 = load_one(bags.weights + e3.number * item)[0]
            weights = w0, w1, w2, w3
        return scales, weights

    return factors


class _Four(NamedTuple):
    """The terms of four entries, and a bit for each that counts."""

    v0: Any
    v1: Any
    v2: Any
    v3: Any
    marks: int


def _four_reader(stored: str, lanes: int) -> Any:
    """A device function (`BagGradient`, index, end, at) -> `_Four`.

    That is of the entry at an index of the order and the next three, if they are before the end.
    """
    load_vector, factors_of = vector_loader(stored, lanes), _factors_loader(stored)
    scaled = _scaler(stored, lanes)

    @jit
    def row_of(bags: BagGradient, entry: _Entry, at: int) -> Any:
        return load_vector(bags.top + entry.bag * bags.row_bytes + at)

    @jit
    def four(bags: BagGradient, k: int, end: int, at: int) -> Any:
        last = end - 1
        n0, n1 = _ordered(bags, min(k, last)), _ordered(bags, min(k + 1, last))
        n2, n3 = _ordered(bags, min(k + 2, last)), _ordered(bags, min(k + 3, last))
        e0, e1, e2, e3 = _entry(bags, n0), _entry(bags, n1), _entry(bags, n2), _entry(bags, n3)
        r0, r1 = row_of(bags, e0, at), row_of(bags, e1, at)
        r2, r3 = row_of(bags, e2, at), row_of(bags, e3, at)
        (s0, s1, s2, s3), (w0, w1, w2, w3) = factors_of(bags, e0, e1, e2, e3)
        marks = int64(e0.counts and k < end) + 2 * int64(e1.counts and k + 1 < end)
        marks += 4 * int64(e2.counts and k + 2 < end) + 8 * int64(e3.counts and k + 3 < end)
        return _Four(
            scaled(bags, e0, r0, s0, w0),
            scaled(bags, e1, r1, s1, w1),
            scaled(bags, e2, r2, s2, w2),
            scaled(bags, e3, r3, s3, w3),
            marks,
        )

    return four


@jit
def _plus(total: Any, is_empty: bool, values: Any, counts: bool) -> Any:
    """A sum plus the term of an entry, and whether it is empty."""
    if not counts:
        return total, is_empty
    # Not begun with 0: 0 + -0 would lose the sign.
    return (values if is_empty else added(total, values)), False


def _summers(stored: str, lanes: int) -> tuple[Any, Any]:
    """Device functions for the sum of the terms of entries, in their order; zeros for none.

    (`BagGradient`, start, end, at): one thread reads them, four at once; `at` says where in a row,
    in bytes. (`BagGradient`, start, end, at, lane, group): all groups of a warp take turns at
    reading four, and each adds up all of them.
    """
    zero, four = (DTYPES[stored].compute_type(0),) * lanes, _four_reader(stored, lanes)
    load_vector, factors_of = vector_loader(stored, lanes), _factors_loader(stored)
    scaled = _scaler(stored, lanes)

    @jit
    def sum_of(bags: BagGradient, start: int, end: int, at: int) -> Any:
        total, is_empty, k = zero, True, start
        if bags.batch == 0:
            return total
        while k + 4 <= end:
            mine = four(bags, k, end, at)
            total, is_empty = _plus(total, is_empty, mine.v0, mine.marks & 1 != 0)
            total, is_empty = _plus(total, is_empty, mine.v1, mine.marks & 2 != 0)
            total, is_empty = _plus(total, is_empty, mine.v2, mine.marks & 4 != 0)
            total, is_empty = _plus(total, is_empty, mine.v3, mine.marks & 8 != 0)
            k += 4
        while k < end:
            entry = _entry(bags, _ordered(bags, k))
            row = load_vector(bags.top + entry.bag * bags.row_bytes + at)
            scales, weights = factors_of(bags, entry, entry, entry, entry)
            row = scaled(bags, entry, row, scales[0], weights[0])
            total, is_empty = _plus(total, is_empty, row, entry.counts)
            k += 1
        return total

    @jit
    def shared(bags: BagGradient, start: int, end: int, at: int, lane: int, group: int) -> Any:
        total, is_empty, k = zero, True, start
        if bags.batch == 0:
            return total
        thread, share = remainder(lane, group), quotient(lane, group)
        step = 4 * quotient(int64(WARP), group)
        while k < end:
            mine = four(bags, k + 4 * share, end, at)
            for source_group in range(min(step, end - k + 3) >> 2):
                other = thread + source_group * group
                marks = from_lane((mine.marks,), other)[0]
                # One after the other, so that only one of another thread's rows takes registers.
                row = from_lane(mine.v0, other)
                total, is_empty = _plus(total, is_empty, row, marks & 1 != 0)
                row = from_lane(mine.v1, other)
                total, is_empty = _plus(total, is_empty, row, marks & 2 != 0)
                row = from_lane(mine.v2, other)
                total, is_empty = _plus(total, is_empty, row, marks & 4 != 0)
                row = from_lane(mine.v3, other)
                total, is_empty = _plus(total, is_empty, row, marks & 8 != 0)
            k += step
        return total

    return sum_of, shared


def row_writer(stored: str, written: str, lanes: int) -> Any:
    """A device function that writes what the entries of a row give, of dtype `written`.

    (`BagGradient`, start, end, out, dim, lane, group) -> None. All threads of a warp call it
    together; `group` of them, from one to all, have a row. `lane` is the thread's number in the
    warp; `out` is 0 if its group has no row, which has no entries then. A row with many entries is
    added up by all groups.
    """
    store_vector, (sum_of, shared) = vector_storer(written, lanes), _summers(stored, lanes)
    item, out_item = DTYPES[stored].item_bytes, DTYPES[written].item_bytes

    @jit
    def write(
        bags: BagGradient, start: int, end: int, out: int, dim: int, lane: int, group: int
    ) -> None:
        first = remainder(lane, group) * lanes
        is_long = group < WARP and end - start > LONG
        if out != 0 and not is_long:
            own = first
            while own < dim:
                store_vector(out + own * out_item, sum_of(bags, start, end, own * item))
                own += group * lanes
        if not any_in_warp(is_long):
            return
        at = first * item if first < dim else int64(0)
        for source_group in range(quotient(int64(WARP), group)):
            long_start, long_end = from_lane((start, end), source_group * group)
            if long_end - long_start > LONG:
                total = shared(bags, long_start, long_end, at, lane, group)
                if quotient(lane, group) == source_group and first < dim:
                    store_vector(out + first * out_item, total)

    return write
