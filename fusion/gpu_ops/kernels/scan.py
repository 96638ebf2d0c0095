"""Prefix sums of counts: where each of many things goes if some of them are left out.

A tile is what one block adds up. Three kernels make prefix sums of any length: the sums of the
tiles, the prefix sums of those, and the prefix sums inside each tile on top.
"""

from __future__ import annotations

import numpy as np

from fusion.gpu_ops.language.device import cuda, jit, load, load_as, store, store_as
from fusion.runtime.native.jit import Array, int64

#: Threads of a block; fewer will do, whose number divides this.
THREADS = 128
#: Elements of a tile.
TILE = 4 * THREADS


@jit
def _sums_before(partial: Array, thread: int, threads: int, number: int) -> int:
    """The sum of the numbers of all threads before; all numbers' is left in the last of `partial`.

    Args:
        partial: int64 [THREADS], in shared memory, the first `threads` of it.
    """
    partial[thread] = number
    cuda.syncthreads()
    step = int64(1)
    while step < threads:
        before = partial[thread - step] if thread >= step else int64(0)
        cuda.syncthreads()
        partial[thread] += before
        cuda.syncthreads()
        step *= 2
    return partial[thread] - number


@jit
def _own_sum(counts: int, start: int, stop: int) -> int:
    """The sum of int32 counts, from one up to another."""
    total = int64(0)
    for k in range(start, stop):
        total += int64(load_as(counts, k, np.int32))
    return total


def sum_tiles(counts: int, count: int, sums: int) -> None:
    """Kernel, a block for each tile: the sums of tiles, int64, of `count` int32 at `counts`."""
    partial = cuda.shared.array(THREADS, np.int64)
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    tile, each = int64(cuda.blockIdx.x), TILE // threads
    first = tile * TILE + thread * each
    total = _own_sum(counts, first, min(first + each, count))
    _sums_before(partial, thread, threads, total)
    if thread == threads - 1:
        store(sums, tile, partial[thread])


def scan_sums(sums: int, tiles: int, total_place: int) -> None:
    """Kernel, one block: makes the sums of tiles those of all tiles before.

    Args:
        total_place: where their total goes, int64.
    """
    partial = cuda.shared.array(THREADS, np.int64)
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    each = (tiles + threads - 1) // threads
    first, total = thread * each, int64(0)
    for k in range(first, min(first + each, tiles)):
        total += load(sums, k)
    running = _sums_before(partial, thread, threads, total)
    for k in range(first, min(first + each, tiles)):
        own = load(sums, k)
        store(sums, k, running)
        running += own
    if thread == threads - 1:
        store(total_place, int64(0), partial[thread])


def scan_tiles(counts: int, count: int, sums: int, offsets: int) -> None:
    """Kernel, a block for each tile: the sum of all counts before each, int64, as `offsets`.

    `sums` are as `scan_sums` leaves them.
    """
    partial = cuda.shared.array(THREADS, np.int64)
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    tile, each = int64(cuda.blockIdx.x), TILE // threads
    first = tile * TILE + thread * each
    own = _own_sum(counts, first, min(first + each, count))
    running = _sums_before(partial, thread, threads, own) + load(sums, tile)
    for k in range(first, min(first + each, count)):
        store(offsets, k, running)
        running += int64(load_as(counts, k, np.int32))


def fill_numbers(target: int, count: int, number: int) -> None:
    """Kernel, a thread for each element: sets int32 elements to a number."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k < count:
        store_as(target, k, np.int32(number), np.int32)


def tiles_of(count: int) -> int:
    """The tiles of so many elements, at least one."""
    return max((count + TILE - 1) // TILE, 1)
