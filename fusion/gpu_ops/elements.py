"""The elements of a column on the device: the CPU's rules, see `fusion.cpu_ops.elements`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops import columns, elements
from fusion.gpu_ops.device import instead, jit, load_as, on_device


def _counter(dtype: type) -> Any:
    """A device function as `elements.bucket32`, for values of a dtype."""

    @jit
    def bucket(value: Any, limits: int, count: int) -> Any:
        low, high = np.int64(0), np.int64(count)
        while low < high:
            middle = (low + high) // 2
            if value < dtype(load_as(limits, middle, np.float32)):
                high = middle
            else:  # NaN is above all of them
                low = middle + 1
        return low

    return bucket


instead(elements.bucket32, _counter(np.float32))
instead(elements.bucket64, _counter(np.float64))

integer_at = on_device(elements.integer_at)
id_at = on_device(elements.id_at)
is_ignored = on_device(elements.is_ignored)
is_dropped = on_device(elements.is_dropped)
weight_at = on_device(elements.weight_at)
element_range = on_device(columns.element_range)
