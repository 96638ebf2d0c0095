"""What becomes of rows and sums: the CPU's arithmetic, operation by operation.

See `fusion.cpu_ops.combine` and `fusion.cpu_ops.norms`, whose bits these give.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion.gpu_ops.language.device import added, divided, jit, multiplied, vector_loader
from fusion.runtime.tensorflow.dtypes import DTYPES

#: The combiners, by their index among the values of the ops' attr.
SUM, MEAN, SQRTN = range(3)
#: Above this many rows stock TensorFlow divides by the count instead of multiplying by 1/count.
_MULTIPLIED = 9
#: Sums of squares side by side, as of the CPU.
SUMS = 8


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


def _loader_of_sums(load_some: Any, lanes: int, item: int) -> Any:
    """A device function (address) -> the `SUMS` elements there, of one that gives `lanes`."""
    if lanes == SUMS:
        return load_some

    @jit
    def load_twice(address: int) -> Any:
        return load_some(address) + load_some(address + lanes * item)

    return _loader_of_sums(load_twice, 2 * lanes, item)


def norm_of(stored: str, lanes: int) -> Any:
    """A device function (address, dim) -> the norm of a row that is read by `lanes` elements."""
    load_one, item = vector_loader(stored, 1), DTYPES[stored].item_bytes
    dtype = DTYPES[stored].compute_type
    load_sums, zeros = _loader_of_sums(vector_loader(stored, lanes), lanes, item), (0.0,) * SUMS

    @jit
    def norm(address: int, dim: int) -> Any:
        sums, whole = zeros, dim - dim % SUMS
        for k in range(0, whole, SUMS):
            v0, v1, v2, v3, v4, v5, v6, v7 = load_sums(address + k * item)
            values = (
                np.float64(v0),
                np.float64(v1),
                np.float64(v2),
                np.float64(v3),
                np.float64(v4),
                np.float64(v5),
                np.float64(v6),
                np.float64(v7),
            )
            sums = added(sums, multiplied(values, values))
        s0, s1, s2, s3, s4, s5, s6, s7 = sums
        total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
        for k in range(whole, dim):
            value = (np.float64(load_one(address + k * item)[0]),)
            total = added((total,), multiplied(value, value))[0]
        return dtype(math.sqrt(dtype(total)))

    return norm


def clipper(stored: str, lanes: int) -> Any:
    """A device function (values, row, dim, limit) -> values of a row, shortened to a norm if >= 0.

    The row is read again for its norm.
    """
    norm, dtype = norm_of(stored, lanes), DTYPES[stored].compute_type

    @jit
    def clipped(values: Any, row: int, dim: int, limit: float) -> Any:
        if limit < 0:
            return values
        # The multiplication comes first and a zero row with limit 0 gives NaN, as in stock.
        size, bound = norm(row, dim), dtype(limit)
        return divided(multiplied(values, bound), bound if size <= bound else size)

    return clipped
