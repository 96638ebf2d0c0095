"""Instructions that go row by row: sums of entries, and what is gathered and scattered.

All are jitted functions (block, out, left), see the opcodes in `layout`.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops.row_tiles import tiles
from fusion.cpu_ops.updates import layout
from fusion.cpu_ops.updates.layout import Block, ValueSource
from fusion.cpu_ops.vectors import tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load
from fusion.runtime.tensorflow.dtypes import DTYPES


def of_rows(stored: str) -> list[tuple[int, Any]]:
    """(opcode, function) of these instructions, for rows of dtype `stored`."""
    item = DTYPES[stored].item_bytes
    copy, clear, begin, add = (_row(stored, kind) for kind in ("copy", "clear", "begin", "add"))
    return [
        (layout.SUM, _sum(item, clear, add)),
        (layout.TAKE, _take(item, copy)),
        (layout.TAKE_VARIABLE, _take_variable(item, copy)),
        (layout.GATHER, _gather(item, copy)),
        (layout.GATHER_VALUE, _gather_value(item, copy)),
        (layout.SUM_VALUE, _sum_value(item, clear, begin, add)),
        (layout.SCATTER_ADD, _scatter(item, add)),
        (layout.SCATTER_SUB, _scatter(item, _row(stored, "subtract"))),
        (layout.SCATTER_UPDATE, _scatter(item, copy)),
        (layout.RESULT, _result(item, copy)),
    ]


@jit
def _index_mask(block: int) -> int:
    """The bits of a word of `Block.entries` that are the index of the entry among all."""
    return (int64(1) << load(block, Block.shift)) - 1


@jit
def _register(block: int, number: int) -> int:
    return load(load(block, Block.registers), number)


def _sum(item: int, clear: Any, add: Any) -> Any:
    @jit
    def add_up(block: int, out: int, left: int) -> None:
        dim, local_rows = load(block, Block.dim), load(block, Block.locals)
        rows, entries, size = _register(block, out), _register(block, left), dim * item
        # Sums begin with 0, as stock's do: 0 + -0 is 0.
        clear(rows, rows, load(block, Block.row_count) * dim)
        for entry in range(load(block, Block.entry_count)):
            add(rows + load(local_rows, entry) * size, entries + entry * size, dim)

    return add_up


def _take(item: int, copy: Any) -> Any:
    @jit
    def take(block: int, out: int, left: int) -> None:
        dim, local_rows = load(block, Block.dim), load(block, Block.locals)
        entries, rows, size = _register(block, out), _register(block, left), dim * item
        for entry in range(load(block, Block.entry_count)):
            copy(entries + entry * size, rows + load(local_rows, entry) * size, dim)

    return take


def _take_variable(item: int, copy: Any) -> Any:
    @jit
    def take(block: int, out: int, left: int) -> None:
        dim, first = load(block, Block.dim), load(load(block, Block.variables), left)
        entries, size = _register(block, out), dim * item
        words, shift = load(block, Block.entries), load(block, Block.shift)
        for entry in range(load(block, Block.entry_count)):
            copy(entries + entry * size, first + (load(words, entry) >> shift) * size, dim)

    return take


def _gather(item: int, copy: Any) -> Any:
    @jit
    def gather(block: int, out: int, left: int) -> None:
        dim, first = load(block, Block.dim), load(load(block, Block.variables), left)
        rows, numbers, size = _register(block, out), load(block, Block.rows), dim * item
        for row in range(load(block, Block.row_count)):
            copy(rows + row * size, first + load(numbers, row) * size, dim)

    return gather


def _gather_value(item: int, copy: Any) -> Any:
    @jit
    def gather(block: int, out: int, left: int) -> None:
        source = load(block, Block.values) + 8 * ValueSource.SIZE * left
        first, step = load(source, ValueSource.first), load(source, ValueSource.step)
        dim, entries = load(block, Block.dim), _register(block, out)
        words, mask, size = load(block, Block.entries), _index_mask(block), dim * item
        for entry in range(load(block, Block.entry_count)):
            copy(entries + entry * size, first + (load(words, entry) & mask) * step, dim)

    return gather


def _sum_value(item: int, clear: Any, begin: Any, add: Any) -> Any:
    """Of a block of all rows `Block.starts` may be 0, and the summands those of `number_rows`."""

    @jit
    def add_in_order(block: int, out: int, first: int, step: int) -> None:
        dim, count = load(block, Block.dim), load(block, Block.entry_count)
        entries, summands = _register(block, out), load(block, Block.summands)
        shift, mask, size = load(block, Block.shift), _index_mask(block), dim * item
        if count == 0:
            return
        # As many summands as sums, and none left out.
        is_one_each = load(summands, count) < 0 and load(summands, count - 1) & mask == count - 1
        if is_one_each and step == size:
            begin(entries, first, count * dim)
            return
        clear(entries, entries, count * dim)
        summand = load(summands, 0)
        while summand >= 0:
            add(entries + (summand >> shift) * size, first + (summand & mask) * step, dim)
            summands += 8
            summand = load(summands, 0)

    @jit
    def add_up(block: int, out: int, left: int) -> None:
        source = load(block, Block.values) + 8 * ValueSource.SIZE * left
        first, step = load(source, ValueSource.first), load(source, ValueSource.step)
        starts, summands = load(block, Block.starts), load(block, Block.summands)
        if starts == 0:
            add_in_order(block, out, first, step)
            return
        dim, entries = load(block, Block.dim), _register(block, out)
        words, mask, size = load(block, Block.entries), _index_mask(block), dim * item
        for entry in range(load(block, Block.entry_count)):
            index, target = load(words, entry) & mask, entries + entry * size
            start = load(starts, index)
            begin(target, first + (load(summands, start) & mask) * step, dim)
            for summand in range(start + 1, load(starts, index + 1)):
                add(target, first + (load(summands, summand) & mask) * step, dim)

    return add_up


def _scatter(item: int, change: Any) -> Any:
    @jit
    def scatter(block: int, out: int, left: int) -> None:
        dim, first = load(block, Block.dim), load(load(block, Block.variables), out)
        entries, size = _register(block, left), dim * item
        words, shift = load(block, Block.entries), load(block, Block.shift)
        for entry in range(load(block, Block.entry_count)):
            change(first + (load(words, entry) >> shift) * size, entries + entry * size, dim)

    return scatter


def _result(item: int, copy: Any) -> Any:
    @jit
    def result(block: int, out: int, left: int) -> None:
        dim, first = load(block, Block.dim), load(load(block, Block.results), out)
        entries, size = _register(block, left), dim * item
        words, mask = load(block, Block.entries), _index_mask(block)
        for entry in range(load(block, Block.entry_count)):
            copy(first + (load(words, entry) & mask) * size, entries + entry * size, dim)

    return result


def _row(stored: str, kind: str) -> Any:
    """A jitted function (row, other, elements) that changes a row by another, of any length."""
    lanes, item = tiles(stored)[-1][0], DTYPES[stored].item_bytes
    by_vector, by_half = _part(stored, kind, lanes), _part(stored, kind, lanes // 2)
    by_element = _part(stored, kind, 1)
    half = lanes // 2 * item

    @jit
    def whole(row: int, other: int, elements: int) -> None:
        # Of a loop over rows of one element the compiler makes another loop.
        if elements == 1:
            by_element(row, other)
            return
        end, offset = elements * item, int64(0)
        while offset + 2 * half <= end:
            by_vector(row + offset, other + offset)
            offset += 2 * half
        if offset + half <= end:
            by_half(row + offset, other + offset)
            offset += half
        while offset < end:
            by_element(row + offset, other + offset)
            offset += item

    return whole


def _part(stored: str, kind: str, lanes: int) -> Any:
    """A jitted function (row, other) for so many elements."""
    ops, none = tile_ops(stored, lanes, 1), 0
    load_tile, store_tile, zero = ops.load, ops.store, ops.zero

    @jit
    def copy(row: int, other: int) -> None:
        store_tile(row, none, load_tile(other, none))

    @jit
    def add(row: int, other: int) -> None:
        store_tile(row, none, load_tile(row, none) + load_tile(other, none))

    @jit
    def subtract(row: int, other: int) -> None:
        store_tile(row, none, load_tile(row, none) - load_tile(other, none))

    @jit
    def begin(row: int, other: int) -> None:
        # As sums begin with 0: 0 + -0 is 0.
        store_tile(row, none, zero() + load_tile(other, none))

    @jit
    def clear(row: int, other: int) -> None:
        store_tile(row, none, zero())

    kinds = {"copy": copy, "add": add, "subtract": subtract, "begin": begin, "clear": clear}
    return kinds[kind]
