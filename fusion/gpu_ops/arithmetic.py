"""What becomes of rows and sums: the CPU's arithmetic, operation by operation.

See `fusion.cpu_ops.combine` and `fusion.cpu_ops.norms`, whose bits these give.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops.device import added, divided, jit, multiplied, vector_loader

#: The combiners, by their place among the values of the ops' attr.
SUM, MEAN, SQRTN = range(3)
#: Above this many rows stock TensorFlow divides by the count instead of multiplying by 1/count.
_MULTIPLIED = 9
#: Sums of squares side by side, as of the CPU.
SUMS = 8


def compute_type(stored: str) -> type:
    """The type in which elements of dtype `stored` are computed."""
    return np.float64 if stored == "float64" else np.float32


def normalizer(dtype: type) -> Any:
    """A device function (sum, combiner, n) -> what n rows without weights give."""

    @jit
    def normalized(total: Any, combiner: int, n: int) -> Any:
        if n == 1 or combiner == SUM:
            return total
        divisor = dtype(n) if combiner == MEAN else dtype(math.sqrt(np.float64(n)))
        if n <= _MULTIPLIED:
            return multiplied(total, dtype(1) / divisor)
        return divided(total, divisor)

    return normalized


def weigher(dtype: type, lanes: int) -> tuple[Any, Any]:
    """Device functions for rows with weights.

    (weight, combiner) -> what it adds to the divisor; (sum, combiner, what was added, whether 0
    gives zeros) -> what the rows give.
    """
    zero = (dtype(0),) * lanes

    @jit
    def term(weight: Any, combiner: int) -> Any:
        return weight if combiner == MEAN else multiplied((weight,), weight)[0]

    @jit
    def weighted(total: Any, combiner: int, terms: Any, no_nan: bool) -> Any:
        if combiner == SUM:
            return total
        divisor = terms if combiner == MEAN else dtype(math.sqrt(terms))
        if divisor != 0:
            return divided(total, divisor)
        return zero if no_nan else multiplied(total, dtype(np.inf))

    return term, weighted


def grad_scaler(dtype: type, lanes: int) -> tuple[Any, Any]:
    """Device functions for the gradients of rows in a bag.

    (combiner, n) -> what the bag's gradient is multiplied by if its n > 0 rows have no weights;
    (the bag's gradient, combiner, divisor, weight) -> a row's gradient if they have.
    """
    zero = (dtype(0),) * lanes

    @jit
    def factor(combiner: int, n: int) -> Any:
        size = np.float64(n)
        if combiner == SUM:
            return dtype(1)
        return dtype(1.0 / size) if combiner == MEAN else dtype(1.0 / math.sqrt(size))

    @jit
    def weighted(values: Any, combiner: int, divisor: Any, weight: Any) -> Any:
        if combiner != SUM:
            values = divided(values, divisor) if divisor != 0 else zero
        return multiplied(values, weight)

    return factor, weighted


def norm_of(stored: str) -> Any:
    """A device function (address, dim) -> the norm of a row."""
    load_one, item, dtype = vector_loader(stored, 1), ITEM_BYTES[stored], compute_type(stored)
    zeros = (0.0,) * SUMS

    @jit
    def double_at(address: int, place: int) -> Any:
        return np.float64(load_one(address + place * item)[0])

    @jit
    def norm(address: int, dim: int) -> Any:
        sums, whole = zeros, dim - dim % SUMS
        for k in range(0, whole, SUMS):
            values = (
                double_at(address, k),
                double_at(address, k + 1),
                double_at(address, k + 2),
                double_at(address, k + 3),
                double_at(address, k + 4),
                double_at(address, k + 5),
                double_at(address, k + 6),
                double_at(address, k + 7),
            )
            sums = added(sums, multiplied(values, values))
        s0, s1, s2, s3, s4, s5, s6, s7 = sums
        total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
        for k in range(whole, dim):
            value = (double_at(address, k),)
            total = added((total,), multiplied(value, value))[0]
        return dtype(math.sqrt(dtype(total)))

    return norm


def row_reader(stored: str, lanes: int, is_clipped: bool) -> Any:
    """A device function (row, at, dim, limit) -> elements of a row, shortened to a norm if >= 0.

    Args:
        is_clipped: whether rows may have to be shortened.
    """
    load_vector = vector_loader(stored, lanes)
    if not is_clipped:

        @jit
        def plain(row: int, at: int, dim: int, limit: float) -> Any:
            return load_vector(row + at)

        return plain
    norm, dtype = norm_of(stored), compute_type(stored)

    @jit
    def clipped(row: int, at: int, dim: int, limit: float) -> Any:
        values = load_vector(row + at)
        if limit < 0:
            return values
        # The multiplication comes first and a zero row with limit 0 gives NaN, as in stock.
        size, bound = norm(row, dim), dtype(limit)
        return divided(multiplied(values, bound), bound if size <= bound else size)

    return clipped
