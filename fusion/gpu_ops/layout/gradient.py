"""How a `GradientCall` is written.

`call` is an array of the host's, int64, which is copied to the address `base` of the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fusion.gpu_ops.layout.arrays import array_index, open_arrays, words_of
from fusion.gpu_ops.layout.call import THREADS, GradientCall, group_of, lanes_of
from fusion.runtime.cuda.layout import ErrorRecord

_ARRAYS = (
    (GradientCall.errors, ErrorRecord.SIZE, 0),
    (GradientCall.key_offsets, 1, 1),
    (GradientCall.tiles, 1, 1),
    (GradientCall.top_grads, 0, 1),
    (GradientCall.top_grad_bytes, 0, 1),
    (GradientCall.dims, 0, 1),
    (GradientCall.combiners, 0, 1),
    (GradientCall.weighted, 0, 1),
    (GradientCall.lanes, 0, 1),
    (GradientCall.groups, 0, 1),
    (GradientCall.outs, 0, 1),
)


def words_of_gradient(columns: int) -> int:
    """The words of a call of so many columns."""
    return words_of(columns, GradientCall.SIZE, _ARRAYS)


def open_gradient(call: Any, base: int, columns: int) -> None:
    """Writes where the arrays of a call are.

    Kernels report errors in the call itself, unless its field is changed.
    """
    open_arrays(call, base, columns, GradientCall.SIZE, _ARRAYS)
    call[GradientCall.column_count] = columns


class ColumnGradient(NamedTuple):
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
    weighted: int


def put_grad_column(call: Any, base: int, index: int, column: ColumnGradient) -> None:
    """Writes what a column is, in their order; see `GradientCall`."""
    bases = array_index(call, base, GradientCall.key_offsets) + index
    call[bases + 1] = call[bases] + column.unique
    call[array_index(call, base, GradientCall.top_grads) + index] = column.top_grad
    call[array_index(call, base, GradientCall.top_grad_bytes) + index] = column.top_grad_bytes
    call[array_index(call, base, GradientCall.dims) + index] = column.dim
    call[array_index(call, base, GradientCall.combiners) + index] = column.combiner
    call[array_index(call, base, GradientCall.weighted) + index] = column.weighted
    call[array_index(call, base, GradientCall.outs) + index] = column.out


def lay_out_gradient(call: Any, base: int, batch: int, item: int) -> int:
    """Writes what depends on the columns, which are in the call; gives the blocks.

    Args:
        batch, item: rows of the result, and the bytes of an element of its gradient.
    """
    call[GradientCall.batch_size] = batch
    bases = array_index(call, base, GradientCall.key_offsets)
    dims = array_index(call, base, GradientCall.dims)
    tops = array_index(call, base, GradientCall.top_grads)
    top_bytes = array_index(call, base, GradientCall.top_grad_bytes)
    outs = array_index(call, base, GradientCall.outs)
    lanes = array_index(call, base, GradientCall.lanes)
    groups = array_index(call, base, GradientCall.groups)
    tiles = array_index(call, base, GradientCall.tiles)
    for k in range(call[GradientCall.column_count]):
        dim = call[dims + k]
        at_once = lanes_of(item, dim, call[tops + k] | call[top_bytes + k] | call[outs + k])
        group = group_of(dim, at_once)
        rows, fit = call[bases + k + 1] - call[bases + k], THREADS // group
        call[lanes + k], call[groups + k] = at_once, group
        call[tiles + k + 1] = call[tiles + k] + ((rows + fit - 1) // fit if dim > 0 else 0)
    return call[tiles + call[GradientCall.column_count]]
