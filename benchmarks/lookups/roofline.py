"""What this machine's memory can do, measured on the spot: the yardstick of the benchmarks.

Two kernels: reading memory in a row, and adding up rows of a table at random places, with the
accumulator in vector registers, as in fusion's kernels, and rows fetched ahead. They know nothing
of TensorFlow: no bounds test, no empty bag, every bag of the same length.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, types

from fusion.cpu_ops.vectors import emit_prefetch, tile_ops
from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.memory import load as word

Array = npt.NDArray[Any]


class Fetch(NamedTuple):
    """How rows are fetched before their use.

    Attributes:
        ahead: so many rows before; 0 for not at all.
        level: of the caches into which they are fetched.
    """

    ahead: int
    level: int


FETCHES = (Fetch(0, 1), *itertools.starmap(Fetch, itertools.product((4, 8, 16, 32, 64), (1, 2))))
"""All that is tried."""

_LANES, _LINE_BYTES = 16, 64
_MIN_ROWS = 2**20


def threads() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def streaming(count: int, megabytes: int = 1024, repeats: int = 5) -> float:
    """The best rate, in GB/s, at which so many threads read memory in a row."""
    data = np.ones(megabytes * 2**17, np.int64)
    parts = np.array_split(data, count)
    return data.nbytes / _best([functools.partial(_stream, part) for part in parts], repeats) / 1e9


@njit(nogil=True)
def _stream(data: Array) -> Any:
    """The sum of whole numbers, which the compiler turns into vector loads and adds."""
    total = 0
    for place in range(data.size):
        total += data[place]
    return total


def _best(work: Sequence[Callable[[], object]], repeats: int) -> float:
    """The least seconds in which all are done, each on a thread of its own."""
    return min(_together(work) for _ in range(repeats + 1))


def _together(work: Sequence[Callable[[], object]]) -> float:
    if len(work) == 1:
        start = time.perf_counter()
        work[0]()
        return time.perf_counter() - start
    barrier = threading.Barrier(len(work))
    spans: list[tuple[float, float]] = []

    def run(one: Callable[[], object]) -> None:
        barrier.wait()
        start = time.perf_counter()
        one()
        spans.append((start, time.perf_counter()))

    running = [threading.Thread(target=run, args=[one]) for one in work]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


def row_sums(
    table: Array, ids: Array, length: int, count: int
) -> Callable[[Fetch], tuple[float, Array]]:
    """What times the sums of bags of rows on so many threads, by how rows are fetched.

    Args:
        table: float32 [rows, dim].
        ids: int64 [batch * length], all valid.
        length: ids per bag.
        count: threads.

    Returns:
        A function of a `Fetch`, giving the seconds and float32 [batch, dim].
    """
    batch, dim = len(ids) // length, table.shape[1]
    kernels = {level: _row_sum_kernel(dim, level) for level in (1, 2)}
    # Starting the threads must not count.
    repeats = max(3, _MIN_ROWS // max(1, len(ids)))
    padded = np.concatenate([ids, np.zeros(max(FETCHES).ahead, np.int64)])
    output = np.empty((batch, dim), np.float32)
    edges = [batch * place // count for place in range(count + 1)]

    def run(fetch: Fetch) -> tuple[float, Array]:
        kernel = kernels[fetch.level]

        def part(first: int, last: int) -> None:
            kernel(table, padded, output, length, first, last, fetch.ahead, repeats)

        work = [functools.partial(part, first, last) for first, last in itertools.pairwise(edges)]
        return _together(work) / repeats, output

    return run


def best_fetch(run: Callable[[Fetch], tuple[float, Array]], tries: int = 3) -> Fetch:
    """The one of `FETCHES` with which the sums are fastest."""
    return min(FETCHES, key=lambda fetch: min(run(fetch)[0] for _ in range(tries + 1)))


@functools.cache
def _row_sum_kernel(dim: int, level: int) -> Callable[..., None]:
    """Compiled for a dimension and a cache's level: adds up bags [first, last), `repeats` times."""
    lanes = min(_LANES, 1 << (dim.bit_length() - 1))
    tile = tile_ops("float32", lanes, -(-dim // lanes))
    zero, load, store, end = tile.zero, tile.load, tile.store, dim - lanes
    row_bytes, fetch = 4 * dim, _fetcher(4 * dim, level)

    @njit(nogil=True)
    def kernel(
        table: Array,
        ids: Array,
        output: Array,
        length: int,
        first: int,
        last: int,
        ahead: int,
        repeats: int,
    ) -> None:
        base, own, out = table.ctypes.data, ids.ctypes.data, output.ctypes.data
        for _ in range(repeats):
            for bag in range(first, last):
                total = zero()
                if ahead > 0:
                    for place in range(bag * length, (bag + 1) * length):
                        fetch(base + row_bytes * word(own, place + ahead))
                        total = total + load(base + row_bytes * word(own, place), end)
                else:
                    for place in range(bag * length, (bag + 1) * length):
                        total = total + load(base + row_bytes * word(own, place), end)
                store(out + row_bytes * bag, end, total)

    return kernel


def _fetcher(size: int, level: int) -> Any:
    """An intrinsic (address) -> None that fetches so many bytes into a level of the caches."""

    @instruction(types.void(types.int64))
    def fetch(builder: Any, address: Any) -> None:
        for offset in range(0, size, _LINE_BYTES):
            line = builder.add(address, address.type(offset))
            emit_prefetch(builder, line, for_writing=False, level=4 - level)

    return fetch
