"""The elements of a column on the device: the CPU's rules, see `fusion.cpu_ops.elements`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops import columns, elements
from fusion.gpu_ops.language.device import instead, jit, load_as, on_device, store_as
from fusion.runtime.layout import Words
from fusion.runtime.tensorflow.dtypes import INT64


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
split_range = on_device(columns.split_range)
rows_until = on_device(elements.rows_until)
lower_bound = on_device(columns.lower_bound)


@jit
def store_integer(target: Words, index: int, number: int, dtype: int) -> None:
    """Writes an integer as int32 or int64."""
    if dtype == INT64:
        target[index] = number
    else:
        store_as(target, index, np.int32(number), np.int32)


@jit
def store_bits(target: Words, index: int, word: int, item: int) -> None:
    """Sets an element of 2, 4 or 8 bytes to the lowest bits of a word; of 0 bytes: does nothing."""
    if item == 8:
        target[index] = word
    elif item == 4:
        store_as(target, index, np.int32(word), np.int32)
    elif item == 2:
        store_as(target, index, np.uint16(word), np.uint16)


@jit
def copy_element(source: Words, k: int, target: Words, index: int, item: int) -> None:
    """Copies an element of 2, 4 or 8 bytes."""
    if item == 8:
        target[index] = source[k]
    elif item == 4:
        store_as(target, index, load_as(source, k, np.int32), np.int32)
    else:
        store_as(target, index, load_as(source, k, np.uint16), np.uint16)
