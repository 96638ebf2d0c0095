"""How a `GradientCall` is written.

`call` is an array of the host's, int64, which is copied to the address `base` of the device.
"""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.layout.call import THREADS, GradientCall, group_of, lanes_of
from fusion.gpu_ops.layout.combine import place_in
from fusion.runtime.cuda.layout import ErrorRecord


def words_of_gradient(columns: int) -> int:
    """The words of a call of so many columns."""
    return GradientCall.SIZE + ErrorRecord.SIZE + 2 * (columns + 1) + 7 * columns


def open_gradient(call: Any, base: int, columns: int) -> None:
    """Writes where the parts of a call are.

    Trouble is told in the call itself, unless its word is changed.
    """
    for k in range(call.shape[0]):
        call[k] = 0
    call[GradientCall.column_count] = columns
    place = GradientCall.SIZE
    call[GradientCall.errors] = base + 8 * place
    place += ErrorRecord.SIZE
    for part in (GradientCall.key_offsets, GradientCall.tiles):
        call[part] = base + 8 * place
        place += columns + 1
    for part in (
        GradientCall.offsets,
        GradientCall.dims,
        GradientCall.combiners,
        GradientCall.weighted,
        GradientCall.lanes,
        GradientCall.groups,
        GradientCall.outs,
    ):
        call[part] = base + 8 * place
        place += columns


def put_grad_column(
    call: Any,
    base: int,
    column: int,
    unique: int,
    dim: int,
    offset: int,
    combiner: int,
    weighted: int,
    out: int,
) -> None:
    """Writes what a column is, in their order; see `call.GradColumn`."""
    bases = place_in(call, base, GradientCall.key_offsets) + column
    call[bases + 1] = call[bases] + unique
    call[place_in(call, base, GradientCall.offsets) + column] = offset
    call[place_in(call, base, GradientCall.dims) + column] = dim
    call[place_in(call, base, GradientCall.combiners) + column] = combiner
    call[place_in(call, base, GradientCall.weighted) + column] = weighted
    call[place_in(call, base, GradientCall.outs) + column] = out


def lay_out_gradient(call: Any, base: int, batch: int, item: int, width: int) -> int:
    """Writes what depends on the columns and on `TOP`, which are in the call; gives the blocks.

    Args:
        batch: rows of the result.
        width, item: elements of a row of its gradient, and the bytes of one.
    """
    call[GradientCall.batch_size], call[GradientCall.top_grad_bytes] = batch, width * item
    bases = place_in(call, base, GradientCall.key_offsets)
    dims = place_in(call, base, GradientCall.dims)
    offsets = place_in(call, base, GradientCall.offsets)
    outs = place_in(call, base, GradientCall.outs)
    lanes = place_in(call, base, GradientCall.lanes)
    groups = place_in(call, base, GradientCall.groups)
    tiles = place_in(call, base, GradientCall.tiles)
    for k in range(call[GradientCall.column_count]):
        dim = call[dims + k]
        at_once = lanes_of(item, dim, call[offsets + k], width)
        # Part of a tensor may begin anywhere.
        if (call[GradientCall.top_grad] | call[outs + k]) % (at_once * item) != 0:
            at_once = 1
        group = group_of(dim, at_once)
        rows, fit = call[bases + k + 1] - call[bases + k], THREADS // group
        call[lanes + k], call[groups + k] = at_once, group
        call[tiles + k + 1] = call[tiles + k] + ((rows + fit - 1) // fit if dim > 0 else 0)
    return call[tiles + call[GradientCall.column_count]]
