"""A call of the kernels of gradients, in words: see `call_words.GRAD_COUNT`.

`call` is an array of the host's, int64, which is copied to the address `base` of the device.
"""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.layout.call import (
    BASES,
    COMBINERS,
    DIMS,
    GRAD_BATCH,
    GRAD_COUNT,
    GRAD_GROUPS,
    GRAD_LANES,
    GRAD_OFFSETS,
    GRAD_OUTS,
    GRAD_TILES,
    GRAD_TROUBLE,
    GRAD_WORDS,
    THREADS,
    TOP,
    TOP_BYTES,
    TROUBLE_WORDS,
    WEIGHTED,
    group_of,
    lanes_of,
)
from fusion.gpu_ops.layout.combine import place_in


def words_of_gradient(columns: int) -> int:
    """The words of a call of so many columns."""
    return GRAD_WORDS + TROUBLE_WORDS + 2 * (columns + 1) + 7 * columns


def open_gradient(call: Any, base: int, columns: int) -> None:
    """Writes where the parts of a call are.

    Trouble is told in the call itself, unless its word is changed.
    """
    for k in range(call.shape[0]):
        call[k] = 0
    call[GRAD_COUNT] = columns
    place = GRAD_WORDS
    call[GRAD_TROUBLE] = base + 8 * place
    place += TROUBLE_WORDS
    for part in (BASES, GRAD_TILES):
        call[part] = base + 8 * place
        place += columns + 1
    for part in (GRAD_OFFSETS, DIMS, COMBINERS, WEIGHTED, GRAD_LANES, GRAD_GROUPS, GRAD_OUTS):
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
    bases = place_in(call, base, BASES) + column
    call[bases + 1] = call[bases] + unique
    call[place_in(call, base, GRAD_OFFSETS) + column] = offset
    call[place_in(call, base, DIMS) + column] = dim
    call[place_in(call, base, COMBINERS) + column] = combiner
    call[place_in(call, base, WEIGHTED) + column] = weighted
    call[place_in(call, base, GRAD_OUTS) + column] = out


def lay_out_gradient(call: Any, base: int, batch: int, item: int, width: int) -> int:
    """Writes what depends on the columns and on `TOP`, which are in the call; gives the blocks.

    Args:
        batch: rows of the result.
        width, item: elements of a row of its gradient, and the bytes of one.
    """
    call[GRAD_BATCH], call[TOP_BYTES] = batch, width * item
    bases, dims = place_in(call, base, BASES), place_in(call, base, DIMS)
    offsets, outs = place_in(call, base, GRAD_OFFSETS), place_in(call, base, GRAD_OUTS)
    lanes, groups = place_in(call, base, GRAD_LANES), place_in(call, base, GRAD_GROUPS)
    tiles = place_in(call, base, GRAD_TILES)
    for k in range(call[GRAD_COUNT]):
        dim = call[dims + k]
        at_once = lanes_of(item, dim, call[offsets + k], width)
        # Part of a tensor may begin anywhere.
        if (call[TOP] | call[outs + k]) % (at_once * item) != 0:
            at_once = 1
        group = group_of(dim, at_once)
        rows, fit = call[bases + k + 1] - call[bases + k], THREADS // group
        call[lanes + k], call[groups + k] = at_once, group
        call[tiles + k + 1] = call[tiles + k] + ((rows + fit - 1) // fit if dim > 0 else 0)
    return call[tiles + call[GRAD_COUNT]]
