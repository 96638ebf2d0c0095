"""Stable sorting by small keys: to shards, or digit by digit to anything.

A tile has one element for each thread of a block, or more if the block has less than `TILE`
threads. The elements of each key are counted in each
tile; prefix sums of the counts, those of a key in all tiles side by side, say where each tile's go;
inside a tile they keep their order.
"""

from __future__ import annotations

import numpy as np

from fusion.gpu_ops.kernels.elements import integer_at
from fusion.gpu_ops.language.device import atomic_add, cuda, jit, load, load_as, store_as
from fusion.runtime.native.jit import int64

#: Elements of a tile.
TILE = 128
#: Sorted by so many bits at once, keys have so many values.
DIGIT_BITS = 8
MAX_KEYS = 1 << DIGIT_BITS


@jit
def _element(order: int, index: int) -> int:
    """The element at an index of an order, see `count_keys`."""
    return int64(load_as(order, index, np.int32)) if order != 0 else index


def count_keys(
    keys: int, dtype: int, order: int, count: int, shift: int, tiles: int, counts: int
) -> None:
    """Kernel, a thread for each element: counts elements by key.

    Args:
        keys, dtype: integers, their dtype code; `DIGIT_BITS` of each from `shift` on are the key.
        order: int32 [count], the element that is at each index, or 0: as they lie.
        counts: int32 [MAX_KEYS, tiles], zeros before.
    """
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= count:
        return
    element = _element(order, index)
    key = (integer_at(keys, element, dtype) >> shift) & (MAX_KEYS - 1)
    atomic_add(counts, key * tiles + index // TILE, np.int32(1), np.int32)


def place_keys(
    keys: int,
    dtype: int,
    order: int,
    count: int,
    shift: int,
    tiles: int,
    starts: int,
    sorted_order: int,
) -> None:
    """Kernel, a block for each tile: writes the elements in the order of their keys.

    Args:
        starts: int64 [MAX_KEYS, tiles], the prefix sums of counts.
        sorted_order: out, int32 [count], the element that comes to each index.
    """
    mine = cuda.shared.array(TILE, np.int32)
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    tile = int64(cuda.blockIdx.x)
    first = tile * TILE
    for place in range(thread, min(TILE, count - first), threads):
        element = _element(order, first + place)
        mine[place] = (integer_at(keys, element, dtype) >> shift) & (MAX_KEYS - 1)
    cuda.syncthreads()
    for place in range(thread, min(TILE, count - first), threads):
        key, rank = int64(mine[place]), int64(0)
        for other in range(place):
            if mine[other] == key:
                rank += 1
        element = _element(order, first + place)
        store_as(sorted_order, load(starts, key * tiles + tile) + rank, np.int32(element), np.int32)
