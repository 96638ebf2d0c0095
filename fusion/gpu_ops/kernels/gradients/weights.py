"""The gradients of the weights of entries, as `fusion.cpu_ops.combine_grad.weight_grads` has them.

For each bag the part through its divisor is computed first: its weighted sum, and the product of
that with its gradient. Rows are read as they lie, and shortened if there are norms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.gpu_ops.kernels.elements import weight_at
from fusion.gpu_ops.kernels.entries import is_masked
from fusion.gpu_ops.kernels.max_norm import limit_of, row_address, store_float, worked_at
from fusion.gpu_ops.language.arithmetic import SQRTN, SUM
from fusion.gpu_ops.language.device import (
    added,
    as_words,
    cuda,
    divided,
    jit,
    load,
    load_as,
    multiplied,
    store_as,
)
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import FLOAT64


class _Rows(NamedTuple):
    """Gathered rows; see `total_bags`."""

    keys: int
    shards: int
    firsts: int
    shard_count: int
    row_bytes: int
    kind: int
    norms: int
    limit: int


@jit
def _number_of(keys: int, entry: int) -> int:
    """The number of an entry's row."""
    return int64(load_as(keys, entry, np.int32))


def _element(dtype: type) -> Any:
    """A device function (rows, number, its address, index) -> an element of a row, shortened."""

    @jit
    def element(rows: _Rows, number: int, row: int, d: int) -> Any:
        value = dtype(weight_at(row, d, rows.kind))
        if rows.norms == 0:
            return value
        norm = dtype(load_as(rows.norms, number, np.float64))
        limit = dtype(limit_of(rows.limit, rows.kind))
        return divided(multiplied((value,), limit), limit if norm <= limit else norm)[0]

    return element


def _scaled(dtype: type) -> Any:
    """A device function (top, index, kind, combiner, divisor) -> an element of what bags share."""

    @jit
    def scaled(top: int, index: int, kind: int, combiner: int, divisor: Any) -> Any:
        value = dtype(weight_at(top, index, kind))
        if combiner == SUM:
            return value
        return divided((value,), divisor)[0] if divisor != 0 else dtype(0)

    return scaled


def _total(dtype: type) -> Any:
    """A device function (order, start, end, weights, rows, d, divisor) -> what a bag gives."""
    element = _element(dtype)

    @jit
    def total(
        order: int, start: int, end: int, weights: int, rows: _Rows, d: int, divisor: Any
    ) -> Any:
        result = dtype(0)
        for index in range(start, end):
            entry = int64(load_as(order, index, np.int32))
            number = _number_of(rows.keys, entry)
            if number >= load(rows.firsts, rows.shard_count):
                continue
            row = row_address(
                as_words(rows.shards),
                as_words(rows.firsts),
                rows.shard_count,
                rows.row_bytes,
                number,
            )
            weight = dtype(weight_at(weights, entry, rows.kind))
            values = multiplied((element(rows, number, row, d),), weight)
            result = added((result,), values)[0]
        return divided((result,), divisor)[0] if divisor != 0 else dtype(0)

    return total


_scaled32, _scaled64 = _scaled(np.float32), _scaled(np.float64)
_total32, _total64 = _total(np.float32), _total(np.float64)
_element32, _element64 = _element(np.float32), _element(np.float64)


def total_bags(
    order: int,
    starts: int,
    batch: int,
    keys: int,
    shards: int,
    firsts: int,
    shard_count: int,
    row_bytes: int,
    kind: int,
    dim: int,
    norms: int,
    limit: int,
    weights: int,
    scales: int,
    totals: int,
) -> None:
    """Kernel, a thread for each element of the result: the weighted sum, divided.

    Args:
        order, starts, batch: the entries by their bags, see `steps.bags.Ordered`.
        keys: int32, the number of each entry's row, that of all rows for none.
        shards, firsts, shard_count, row_bytes, kind, dim: gathered rows, see `max_norm`.
        norms, limit: as `max_norm.measure_rows` leaves them; norms are 0 without a limit.
        weights, scales: by entry, and the divisors of bags, see `gradients.bags.scale_bags`.
        totals: out, [batch, dim] of the dtype of `scales`; nothing for bags without entries.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread >= batch * dim:
        return
    bag, d = thread // dim, thread % dim
    start, end = load(starts, bag), load(starts, bag + 1)
    if start == end:
        return
    rows = _Rows(keys, shards, firsts, shard_count, row_bytes, kind, norms, limit)
    if kind == FLOAT64:
        divisor = load_as(scales, bag, np.float64)
        store_as(totals, thread, _total64(order, start, end, weights, rows, d, divisor), np.float64)
    else:
        divisor32 = load_as(scales, bag, np.float32)
        store_as(
            totals, thread, _total32(order, start, end, weights, rows, d, divisor32), np.float32
        )


@jit
def _scaled_at(top: int, index: int, kind: int, combiner: int, scales: int, bag: int) -> float:
    """An element, as a double, of what the rows of a bag share of its gradient."""
    if kind == FLOAT64:
        divisor = load_as(scales, bag, np.float64)
        return np.float64(_scaled64(top, index, kind, combiner, divisor))
    return np.float64(_scaled32(top, index, kind, combiner, load_as(scales, bag, np.float32)))


def through_bags(
    starts: int,
    batch: int,
    top: int,
    kind: int,
    dim: int,
    combiner: int,
    scales: int,
    totals: int,
    throughs: int,
) -> None:
    """Kernel, a thread for each bag: the gradient of its weights through the divisor.

    Args:
        starts, batch, kind, dim, scales, totals: as of `total_bags`.
        top: the gradient of the result, [batch, dim].
        throughs: out, float64 [batch]; nothing for bags without entries.
    """
    bag = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if bag >= batch or load(starts, bag) == load(starts, bag + 1):
        return
    dot = 0.0
    for d in range(dim):
        index = bag * dim + d
        value = _scaled_at(top, index, kind, combiner, scales, bag)
        dot = added((dot,), multiplied((value,), worked_at(totals, index, kind)))[0]
    through = -dot
    # The root of 0 has gradient 0, as in stock TensorFlow.
    if combiner == SQRTN and through != 0:
        through = divided((through,), worked_at(scales, bag, kind))[0]
    store_as(throughs, bag, through, np.float64)


@jit
def _element_at(rows: _Rows, number: int, row: int, d: int) -> float:
    if rows.kind == FLOAT64:
        return np.float64(_element64(rows, number, row, d))
    return np.float64(_element32(rows, number, row, d))


def weight_grads(
    count: int,
    owners: int,
    batch: int,
    masked: int,
    flags: int,
    keys: int,
    shards: int,
    firsts: int,
    shard_count: int,
    row_bytes: int,
    kind: int,
    dim: int,
    norms: int,
    limit: int,
    top: int,
    weights: int,
    combiner: int,
    scales: int,
    throughs: int,
    grads: int,
) -> None:
    """Kernel, a thread for each entry: the gradient of its weight.

    Args:
        owners, masked, flags: as of `gradients.bags.scatter_bags_kernel`.
        throughs: as `through_bags` leaves them; not read for sums.
        grads: out, [count] of the kind.

    The others are as of `total_bags`.
    """
    entry = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if entry >= count:
        return
    bag, number = int64(load_as(owners, entry, np.int32)), _number_of(keys, entry)
    grad = 0.0
    counts = bag < batch and number < load(firsts, shard_count)
    if counts and not is_masked(masked, flags, bag):
        rows = _Rows(keys, shards, firsts, shard_count, row_bytes, kind, norms, limit)
        row = row_address(as_words(shards), as_words(firsts), shard_count, row_bytes, number)
        for d in range(dim):
            value = _scaled_at(top, bag * dim + d, kind, combiner, scales, bag)
            other = _element_at(rows, number, row, int64(d))
            grad = added((grad,), multiplied((value,), other))[0]
        through, factor = 0.0, 1.0
        if combiner != SUM:
            through = load_as(throughs, bag, np.float64)
        if combiner == SQRTN:
            factor = weight_at(weights, entry, kind)
        grad = added((grad,), multiplied((through,), factor))[0]
    store_float(grads, entry, grad, kind)
