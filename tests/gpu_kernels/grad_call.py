"""A call of the kernels of gradients of columns, as words; see `benchmarks.gpu.call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion.gpu_ops.layout import gradient
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import GradientCall
from fusion.gpu_ops.layout.gradient import ColumnGradient
from fusion.runtime.tensorflow.dtypes import DTYPES


@dataclass(frozen=True)
class GradCall:
    """The words of a call of the kernels of gradients; see `Call`."""

    words: np.ndarray[Any, np.dtype[np.int64]]
    tiles: int
    errors: int


def prepare_gradient(
    stored: str,
    batch: int,
    columns: Sequence[ColumnGradient],
    arrays: Mapping[int, int],
    address: Callable[[int], int],
) -> GradCall:
    """The call that adds up the gradients of columns.

    Args:
        stored: dtype of the gradients.
        batch: rows of the result.
        arrays: the words from `ENTRY_COUNT` to `ENTRY_WEIGHTS`, from `KEYS` to `STARTS`, and
            `SCALES`.
        address: (bytes) -> where so many bytes will be.
    """
    size = gradient.words_of_gradient(len(columns))
    content, base = np.zeros(size, np.int64), address(8 * size)
    gradient.open_gradient(content, base, len(columns))
    for index, column in enumerate(columns):
        gradient.put_grad_column(content, base, index, column)
    for word, value in arrays.items():
        content[word] = value
    content[GradientCall.dtype_code] = DTYPES[stored].code
    blocks = gradient.lay_out_gradient(content, base, batch, DTYPES[stored].item_bytes)
    errors = array_index(content, base, GradientCall.errors)
    return GradCall(content, int(blocks), int(errors))
