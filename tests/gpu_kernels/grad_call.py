"""A call of the kernels of gradients of columns, as words; see `benchmarks.gpu.call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion.gpu_ops.layout import gradient
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import GradientCall
from fusion.runtime.tensorflow.dtypes import DTYPES


@dataclass(frozen=True)
class GradColumn:
    """A column of a gradient.

    Attributes:
        unique, dim: the shape of its gradient.
        out: where that goes.
        top_grad, top_grad_bytes: the address of the gradient of the first row of its result, and
            the bytes from one to the next.
        combiner, weighted: as of the op.
    """

    unique: int
    dim: int
    out: int
    top_grad: int
    top_grad_bytes: int
    combiner: int
    weighted: bool


@dataclass(frozen=True)
class GradCall:
    """The words of a call of the kernels of gradients; see `Call`."""

    words: np.ndarray[Any, np.dtype[np.int64]]
    tiles: int
    errors: int


def prepare_gradient(
    stored: str,
    batch: int,
    columns: Sequence[GradColumn],
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
    for index, c in enumerate(columns):
        top = c.top_grad, c.top_grad_bytes
        given = c.unique, c.dim, *top, c.combiner, int(c.weighted), c.out
        gradient.put_grad_column(content, base, index, *given)
    for word, value in arrays.items():
        content[word] = value
    content[GradientCall.dtype_code] = DTYPES[stored].code
    blocks = gradient.lay_out_gradient(content, base, batch, DTYPES[stored].item_bytes)
    errors = array_index(content, base, GradientCall.errors)
    return GradCall(content, int(blocks), int(errors))
