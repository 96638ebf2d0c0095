"""Gradients of the weights of entries, as `bags.cpu_kernels.combine_grad.weight_grads` has them.

For each bag the part through its divisor is computed first: its weighted sum, and the product of
that with its gradient. Rows are read as they lie, and shortened if there are norms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import weight_at
from fusion.gpu_ops.kernels.entries import is_masked
from fusion.gpu_ops.language.arithmetic import SQRTN, SUM
from fusion.gpu_ops.language.device import (
    added,
    cuda,
    divided,
    jit,
    load,
    load_as,
    multiplied,
    store_as,
)
from fusion.gpu_ops.layout.records import GatheredRows, GradBags, Gradient, Scales
from fusion.ops.bags.gpu_kernels.max_norm import limit_of, row_address, store_float, worked_at
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import FLOAT64


@jit
def _number_of(bags: GradBags, entry: int) -> int:
    """The index of an entry's row."""
    return int64(load_as(bags.keys, entry, np.int32))


def _element(dtype: type) -> Any:
    """A device function (gradient, norms, number, its address, index) -> an element of a row."""

    @jit
    def element(gradient: Gradient, norms: int, number: int, row: int, d: int) -> Any:
        value = dtype(weight_at(row, d, gradient.dtype))
        if norms == 0:
            return value
        norm, limit = dtype(load_as(norms, number, np.float64)), dtype(limit_of(gradient))
        return divided(multiplied((value,), limit), limit if norm <= limit else norm)[0]

    return element


def _share(dtype: type) -> Any:
    """A device function (gradient, index, divisor) -> an element of a bag's divided gradient."""

    @jit
    def share(gradient: Gradient, index: int, divisor: Any) -> Any:
        value = dtype(weight_at(gradient.top, index, gradient.dtype))
        if gradient.combiner == SUM:
            return value
        return divided((value,), divisor)[0] if divisor != 0 else dtype(0)

    return share


def _total(dtype: type) -> Any:
    """A device function (gradient, bags, rows, scaled, bag, d) -> a bag's weighted sum."""
    element = _element(dtype)

    @jit
    def total(
        gradient: Gradient, bags: GradBags, rows: GatheredRows, scaled: Scales, bag: int, d: int
    ) -> Any:
        result, starts = dtype(0), bags.ordered.starts
        divisor = load_as(scaled.scales, bag, dtype)
        for index in range(load(starts, bag), load(starts, bag + 1)):
            entry = int64(load_as(bags.ordered.order, index, np.int32))
            number = _number_of(bags, entry)
            if number >= load(rows.firsts, rows.shard_count):
                continue
            row, weight = row_address(rows, number), weight_at(bags.weights, entry, gradient.dtype)
            own = element(gradient, scaled.norms, number, row, d)
            result = added((result,), multiplied((own,), dtype(weight)))[0]
        return divided((result,), divisor)[0] if divisor != 0 else dtype(0)

    return total


_share32, _share64 = _share(np.float32), _share(np.float64)
_total32, _total64 = _total(np.float32), _total(np.float64)
_element32, _element64 = _element(np.float32), _element(np.float64)


def total_bags(
    gradient: Gradient, bags: GradBags, rows: GatheredRows, scaled: Scales, totals: int
) -> None:
    """Kernel, a thread for each element of the result: the weighted sum, divided.

    Args:
        totals: out, as `Scales.scales`, but [dim] of each bag.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread >= bags.ordered.groups * gradient.dim:
        return
    bag, d = thread // gradient.dim, thread % gradient.dim
    if load(bags.ordered.starts, bag) == load(bags.ordered.starts, bag + 1):
        return
    if gradient.dtype == FLOAT64:
        store_as(totals, thread, _total64(gradient, bags, rows, scaled, bag, d), np.float64)
    else:
        store_as(totals, thread, _total32(gradient, bags, rows, scaled, bag, d), np.float32)


@jit
def _share_at(gradient: Gradient, scaled: Scales, bag: int, d: int) -> float:
    """An element, as a double, of a bag's gradient divided for its rows."""
    index = bag * gradient.dim + d
    if gradient.dtype == FLOAT64:
        return np.float64(_share64(gradient, index, load_as(scaled.scales, bag, np.float64)))
    return np.float64(_share32(gradient, index, load_as(scaled.scales, bag, np.float32)))


def through_bags(
    gradient: Gradient, bags: GradBags, scaled: Scales, totals: int, throughs: int
) -> None:
    """Kernel, a thread for each bag: the gradient of its weights through the divisor.

    Args:
        totals: as `total_bags` leaves them.
        throughs: out, float64 by bag; nothing for bags without entries.
    """
    bag = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    starts, dtype_code = bags.ordered.starts, gradient.dtype
    if bag >= bags.ordered.groups or load(starts, bag) == load(starts, bag + 1):
        return
    dot = 0.0
    for d in range(gradient.dim):
        value, total = _share_at(gradient, scaled, bag, d), bag * gradient.dim + d
        dot = added((dot,), multiplied((value,), worked_at(totals, total, dtype_code)))[0]
    through = -dot
    # The root of 0 has gradient 0, as in stock TensorFlow.
    if gradient.combiner == SQRTN and through != 0:
        through = divided((through,), worked_at(scaled.scales, bag, dtype_code))[0]
    store_as(throughs, bag, through, np.float64)


@jit
def _element_at(gradient: Gradient, norms: int, number: int, row: int, d: int) -> float:
    if gradient.dtype == FLOAT64:
        return np.float64(_element64(gradient, norms, number, row, d))
    return np.float64(_element32(gradient, norms, number, row, d))


def weight_grads(
    gradient: Gradient,
    bags: GradBags,
    rows: GatheredRows,
    scaled: Scales,
    throughs: int,
    grads: int,
) -> None:
    """Kernel, a thread for each entry: the gradient of its weight.

    Args:
        throughs: as `through_bags` leaves them; not read for sums.
        grads: out, by entry, of the gradient's dtype.
    """
    entry = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if entry >= bags.ordered.number:
        return
    bag, number = int64(load_as(bags.ordered.owners, entry, np.int32)), _number_of(bags, entry)
    grad = 0.0
    counts = bag < bags.ordered.groups and number < load(rows.firsts, rows.shard_count)
    if counts and not is_masked(bags.masked, bags.flags, bag):
        row = row_address(rows, number)
        for d in range(gradient.dim):
            value = _share_at(gradient, scaled, bag, int64(d))
            other = _element_at(gradient, scaled.norms, number, row, int64(d))
            grad = added((grad,), multiplied((value,), other))[0]
        through, factor = 0.0, 1.0
        if gradient.combiner != SUM:
            through = load_as(throughs, bag, np.float64)
        if gradient.combiner == SQRTN:
            factor = weight_at(bags.weights, entry, gradient.dtype)
        grad = added((grad,), multiplied((through,), factor))[0]
    store_float(grads, entry, grad, gradient.dtype)
