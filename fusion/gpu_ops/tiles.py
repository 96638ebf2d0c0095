"""Tiles: what the blocks of a launch compute, each a part of one column."""

from __future__ import annotations

from fusion.gpu_ops.device import jit, load
from fusion.runtime.jit import int64


@jit
def column_of(tiles: int, count: int, tile: int) -> int:
    """The column of a tile.

    Args:
        tiles: address of the first tile of each of `count` columns, int64.
    """
    place, end = int64(0), count
    while end - place > 1:
        middle = (place + end) // 2
        if load(tiles, middle) <= tile:
            place = middle
        else:
            end = middle
    return place
