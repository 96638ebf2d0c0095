"""L2 norms of rows.

The squares are added up in eight sums side by side, as doubles: these do not wait for each other,
fit a vector, and round less often than one sum would.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.half import widener
from fusion.cpu_ops.vectors import SUMS, no_squares, square_adder, sum_of
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.tensorflow.dtypes import DTYPES


def _norm(add_squares: Any, value_at: Any) -> Any:
    """A jitted function (address, dim, dtype) -> the norm; inf where its square is too large."""

    @jit
    def norm(address: int, dim: int, dtype: type) -> Any:
        whole, sums = dim - dim % SUMS, no_squares()
        for first in range(0, whole, SUMS):
            sums = add_squares(sums, address, first, dtype)
        total = sum_of(sums)
        for index in range(whole, dim):
            value = np.float64(value_at(address, index, dtype))
            total += value * value
        return np.sqrt(dtype(total))

    return norm


#: (address, dim, dtype) -> the norm of a row of float32 or float64.
row_norm = _norm(square_adder(), load_as)


def norm_of(stored: str) -> Any:
    """A jitted function (address, dim, dtype) -> the norm of a row stored as one of all dtypes."""
    if not DTYPES[stored].is_widened:
        return row_norm
    widen, bits = widener(stored), DTYPES[stored].stored_type

    @jit
    def value_at(address: int, index: int, dtype: type) -> float:
        return widen(load_as(address, index, bits))

    return _norm(square_adder(stored), value_at)
