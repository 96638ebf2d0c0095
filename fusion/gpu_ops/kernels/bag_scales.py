"""The scales of bags: a row's gradient is its bag's times the scale or, with weights, over it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import weight_at
from fusion.gpu_ops.language.arithmetic import MEAN, SUM, grad_scaler
from fusion.gpu_ops.language.device import added, jit, load_as, multiplied, store_as
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import FLOAT64


def _scaler(dtype: type) -> Any:
    """A device function that computes the scale that `put_scale` writes."""
    factor, _ = grad_scaler(dtype, 1)

    @jit
    def scale(
        order: int, start: int, end: int, weights: int, dtype_code: int, combiner: int
    ) -> Any:
        if weights == 0 or combiner == SUM:
            return factor(combiner, end - start)
        total = dtype(0)
        for number in range(start, end):
            entry = number
            if order != 0:
                entry = int64(load_as(order, number, np.int32))
            weight = dtype(weight_at(weights, entry, dtype_code))
            term = weight if combiner == MEAN else multiplied((weight,), weight)[0]
            total = added((total,), (term,))[0]
        return total if combiner == MEAN else dtype(math.sqrt(total))

    return scale


_scale32, _scale64 = _scaler(np.float32), _scaler(np.float64)


@jit
def put_scale(
    scales: int,
    bag: int,
    order: int,
    start: int,
    end: int,
    weights: int,
    dtype_code: int,
    combiner: int,
) -> None:
    """Writes the scale of a bag with entries.

    Args:
        scales: of the compute dtype of the gradients, by bag.
        order: int32, the entries by their bags; 0: they are in this order.
        start, end: those of the bag.
        weights, dtype_code: by entry, of the gradients' dtype; 0: there are none.
    """
    if dtype_code == FLOAT64:
        scale = _scale64(order, start, end, weights, dtype_code, combiner)
        store_as(scales, bag, scale, np.float64)
    else:
        store_as(
            scales, bag, _scale32(order, start, end, weights, dtype_code, combiner), np.float32
        )
