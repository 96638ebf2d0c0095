"""What the gradient of a bag is multiplied by for its rows or, with weights, divided by."""

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
    """A device function of `put_scale` -> what it writes."""
    factor, _ = grad_scaler(dtype, 1)

    @jit
    def scale(order: int, start: int, end: int, weights: int, kind: int, combiner: int) -> Any:
        if weights == 0 or combiner == SUM:
            return factor(combiner, end - start)
        total = dtype(0)
        for number in range(start, end):
            entry = number
            if order != 0:
                entry = int64(load_as(order, number, np.int32))
            weight = dtype(weight_at(weights, entry, kind))
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
    kind: int,
    combiner: int,
) -> None:
    """Writes it for a bag with entries.

    Args:
        scales: of the dtype in which gradients of the kind are computed, by bag.
        order: int32, the entries by their bags; 0: they are in this order.
        start, end: those of the bag.
        weights, kind: by entry, of a kind as the gradients; 0: there are none.
    """
    if kind == FLOAT64:
        scale = _scale64(order, start, end, weights, kind, combiner)
        store_as(scales, bag, scale, np.float64)
    else:
        store_as(scales, bag, _scale32(order, start, end, weights, kind, combiner), np.float32)
