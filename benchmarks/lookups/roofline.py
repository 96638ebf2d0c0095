"""What this machine's memory can do, measured on the spot: the yardstick of the benchmarks.

Two kernels: reading memory in a row, and adding up rows of a table at random places, with the
accumulator in vector registers and rows fetched ahead. They know nothing of TensorFlow: no bounds
test, no empty bag, every bag of the same length.
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
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

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

_WORD, _FLOAT, _I32 = ir.IntType(64), ir.FloatType(), ir.IntType(32)
_LANES = 16
_LINE_BYTES = 64
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
    bag = _bag_intrinsic(dim, level)

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
        for _ in range(repeats):
            for place in range(first, last):
                bag(
                    table.ctypes.data,
                    ids.ctypes.data + 8 * place * length,
                    output.ctypes.data + 4 * dim * place,
                    length,
                    ahead,
                )

    return kernel


def _bag_intrinsic(dim: int, level: int) -> Any:
    """bag(table, ids, output, length, ahead): one bag, all of them addresses and numbers."""

    @intrinsic
    def bag(typing: Any, table: Any, ids: Any, output: Any, length: Any, ahead: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = [
                context.cast(builder, argument, kind, types.int64)
                for argument, kind in zip(arguments, signature.args, strict=True)
            ]
            _emit_bag(builder, dim, level, *words)
            return context.get_dummy_value()

        return types.void(table, ids, output, length, ahead), codegen

    return bag


def _emit_bag(
    builder: Any,
    dim: int,
    level: int,
    table: Any,
    ids: Any,
    output: Any,
    length: Any,
    ahead: Any,
) -> None:
    """Emits two loops over the ids, with and without fetching ahead; sums stay in registers."""
    fetching, plain, done = (builder.append_basic_block() for _ in range(3))
    builder.cbranch(builder.icmp_signed(">", ahead, _WORD(0)), fetching, plain)
    for block, distance in ((fetching, ahead), (plain, None)):
        builder.position_at_end(block)
        _emit_loop(builder, dim, level, table, ids, output, length, distance)
        builder.branch(done)
    builder.position_at_end(done)


def _emit_loop(
    builder: Any,
    dim: int,
    level: int,
    table: Any,
    ids: Any,
    output: Any,
    length: Any,
    ahead: Any,
) -> None:
    pieces = _pieces(dim)
    entry, head = builder.block, builder.append_basic_block()
    tail = builder.append_basic_block()
    builder.branch(head)
    builder.position_at_end(head)
    place = builder.phi(_WORD)
    place.add_incoming(_WORD(0), entry)
    sums = []
    for _, kind in pieces:
        value = builder.phi(kind)
        value.add_incoming(ir.Constant(kind, None), entry)
        sums.append(value)
    row = _row(builder, dim, table, ids, place)
    if ahead is not None:
        later = _row(builder, dim, table, ids, builder.add(place, ahead))
        for offset in range(0, 4 * dim, _LINE_BYTES):
            _fetch(builder, builder.add(later, _WORD(offset)), level)
    added = [
        builder.fadd(total, _load(builder, row, offset, kind))
        for total, (offset, kind) in zip(sums, pieces, strict=True)
    ]
    following = builder.add(place, _WORD(1))
    place.add_incoming(following, builder.block)
    for total, value in zip(sums, added, strict=True):
        total.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, length), head, tail)
    builder.position_at_end(tail)
    for value, (offset, kind) in zip(added, pieces, strict=True):
        address = builder.inttoptr(builder.add(output, _WORD(offset)), kind.as_pointer())
        builder.store(value, address, align=4)


def _pieces(dim: int) -> list[tuple[int, Any]]:
    """A row in vectors: the byte at which each begins, and its type."""
    found, start = [], 0
    while start < dim:
        lanes = min(_LANES, 1 << ((dim - start).bit_length() - 1))
        found.append((4 * start, ir.VectorType(_FLOAT, lanes)))
        start += lanes
    return found


def _row(builder: Any, dim: int, table: Any, ids: Any, place: Any) -> Any:
    address = builder.add(ids, builder.mul(place, _WORD(8)))
    number = builder.load(builder.inttoptr(address, _WORD.as_pointer()))
    return builder.add(table, builder.mul(number, _WORD(4 * dim)))


def _load(builder: Any, row: Any, offset: int, kind: Any) -> Any:
    address = builder.inttoptr(builder.add(row, _WORD(offset)), kind.as_pointer())
    return builder.load(address, align=4)


def _fetch(builder: Any, address: Any, level: int) -> None:
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    read, keep, data = _I32(0), _I32(4 - level), _I32(1)
    builder.call(prefetch, [builder.inttoptr(address, byte), read, keep, data])
