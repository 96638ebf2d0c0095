"""What the entries of a distinct id or of a gathered row give for its gradient, added up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops.arithmetic import SUM, compute_type, grad_scaler
from fusion.gpu_ops.device import added, jit, load_as, multiplied, vector_loader
from fusion.gpu_ops.entries import is_masked
from fusion.runtime.jit import int64


class GradBags(NamedTuple):
    """The bags of a column, and the gradient of what they were combined into.

    Attributes:
        order: int32, the entries in the order in which they are added up; 0: they are in it.
        owners: int32, the bag of each entry; those from `batch` on are in none.
        batch: how many bags there are.
        scales: by bag, what `bag_scales.put_scale` writes; not read for sums.
        weights: by entry, of the gradient's dtype; 0: there are none.
        combiner: as of the op.
        masked, mask_bytes, flags: see `entries.is_masked`; bags whose entries get zeros.
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
    mask_bytes: int
    flags: int
    top: int
    row_bytes: int


class _Entry(NamedTuple):
    """An entry's number, and that of its bag; of the first one if it is in none."""

    number: int
    bag: int
    counts: bool


@jit
def _ordered(bags: GradBags, place: int) -> int:
    return int64(load_as(bags.order, place, np.int32))


@jit
def _entry(bags: GradBags, number: int) -> _Entry:
    bag = int64(load_as(bags.owners, number, np.int32))
    counts = bag < bags.batch
    return _Entry(number, bag if counts else int64(0), counts)


def _adder(stored: str, lanes: int) -> Any:
    """A device function (sum, whether it is empty, `GradBags`, `_Entry`, row, scale, weight).

    It gives the sum with what the entry gives, and whether that is empty.
    """
    dtype, zero = compute_type(stored), (compute_type(stored)(0),) * lanes
    _, weighted = grad_scaler(dtype, lanes)

    @jit
    def add(
        found: Any, is_empty: bool, bags: GradBags, entry: _Entry, row: Any, scale: Any, weight: Any
    ) -> Any:
        if not entry.counts:
            return found, is_empty
        if is_masked(bags.masked, bags.mask_bytes, bags.flags, entry.bag):
            row, scale = zero, dtype(1)
        if bags.weights != 0:
            row = weighted(row, bags.combiner, scale, weight)
        elif bags.combiner != SUM:
            row = multiplied(row, scale)
        # Not begun with 0: 0 + -0 would lose the sign.
        return (row if is_empty else added(found, row)), False

    return add


def _factors_loader(stored: str) -> Any:
    """A device function (`GradBags`, four entries) -> their scales and weights; ones without."""
    dtype, load_one = compute_type(stored), vector_loader(stored, 1)
    item, ones = ITEM_BYTES[stored], (compute_type(stored)(1),) * 4

    @jit
    def factors(bags: GradBags, e0: _Entry, e1: _Entry, e2: _Entry, e3: _Entry) -> Any:
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


def entry_summer(stored: str, lanes: int) -> Any:
    """A device function (`GradBags`, start, end, at) -> the sum of what entries give, in order.

    Zeros if there are none. `at` says where in a row, in bytes. Four rows are on their way at once,
    if so many are left.
    """
    load_vector, factors_of = vector_loader(stored, lanes), _factors_loader(stored)
    zero, add = (compute_type(stored)(0),) * lanes, _adder(stored, lanes)

    @jit
    def row_of(bags: GradBags, entry: _Entry, at: int) -> Any:
        return load_vector(bags.top + entry.bag * bags.row_bytes + at)

    @jit
    def sum_of(bags: GradBags, start: int, end: int, at: int) -> Any:
        found, is_empty, k = zero, True, start
        if bags.batch == 0:
            return found
        while bags.order != 0 and k + 4 <= end:
            n0, n1, n2, n3 = (
                _ordered(bags, k),
                _ordered(bags, k + 1),
                _ordered(bags, k + 2),
                _ordered(bags, k + 3),
            )
            e0, e1, e2, e3 = _entry(bags, n0), _entry(bags, n1), _entry(bags, n2), _entry(bags, n3)
            r0, r1 = row_of(bags, e0, at), row_of(bags, e1, at)
            r2, r3 = row_of(bags, e2, at), row_of(bags, e3, at)
            (s0, s1, s2, s3), (w0, w1, w2, w3) = factors_of(bags, e0, e1, e2, e3)
            found, is_empty = add(found, is_empty, bags, e0, r0, s0, w0)
            found, is_empty = add(found, is_empty, bags, e1, r1, s1, w1)
            found, is_empty = add(found, is_empty, bags, e2, r2, s2, w2)
            found, is_empty = add(found, is_empty, bags, e3, r3, s3, w3)
            k += 4
        while k < end:
            entry = _entry(bags, _ordered(bags, k) if bags.order != 0 else k)
            row = row_of(bags, entry, at)
            scales, weights = factors_of(bags, entry, entry, entry, entry)
            found, is_empty = add(found, is_empty, bags, entry, row, scales[0], weights[0])
            k += 1
        return found

    return sum_of
