"""Tiles: what the blocks of a launch compute, each a part of one column, and their threads."""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.language.device import as_words, bit_count, jit
from fusion.gpu_ops.layout.records import GatheredRows
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64


@jit
def column_of(tiles: Words, count: int, tile: int) -> int:
    """The column of a tile.

    Args:
        tiles: address of the first tile of each of `count` columns, int64.
    """
    index, end = int64(0), count
    while end - index > 1:
        middle = (index + end) // 2
        if tiles[middle] <= tile:
            index = middle
        else:
            end = middle
    return index


@jit
def shard_index(rows: GatheredRows, number: int) -> Any:
    """The shard of a gathered row, and its index there."""
    firsts = as_words(rows.firsts)
    shard = column_of(firsts, rows.shard_count, number)
    return shard, number - firsts[shard]


@jit
def quotient(number: int, power: int) -> int:
    """`number // power`, of a power of 2: GPUs have no instruction that divides integers."""
    return number >> int64(bit_count(power - 1))


@jit
def remainder(number: int, power: int) -> int:
    """`number % power`, of a power of 2."""
    return number & (power - 1)
