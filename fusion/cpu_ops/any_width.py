"""Kernels for rows of any width, made of those for a few tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusion.cpu_ops.row_tiles import tiles
from fusion.runtime.native.jit import int64, jit

#: The lanes of the smallest tile that has more than one element.
_FEW = 4


def of_any_width(stored: str, tile_kernel: Callable[[int, int], Any]) -> Any:
    """A jitted function (arguments, first, end) that does the elements [first, end) of rows.

    Args:
      stored: the dtype of the rows.
      tile_kernel: (lanes, count) -> a jitted function (arguments, first element, offset of the last
        vector) for a tile.
    """
    widest = tiles(stored)[-1][0]
    shapes = sorted({(1, 1), (min(_FEW, widest), 1), (widest, 1), (widest, 4)})
    result = _nothing
    for lanes, count in shapes:
        result = _before(tile_kernel(lanes, count), lanes, count, result)
    return result


@jit
def _nothing(args: int, first: int, end: int) -> None:
    pass


def _before(kernel: Any, lanes: int, count: int, rest: Any) -> Any:
    """A function as that of `of_any_width`: as many tiles as there are, and then the rest."""
    size, last = lanes * count, lanes * (count - 1)

    @jit
    def by_tiles(args: int, first: int, end: int) -> None:
        while end - first >= size:
            kernel(args, first, int64(last))
            first += size
        rest(args, first, end)

    return by_tiles
