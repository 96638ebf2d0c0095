"""Instructions that go row by row: sums of entries, and what is gathered and scattered.

All are jitted functions (block, out, left), see the opcodes in `layout`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.elements import integer_at
from fusion.cpu_ops.row_tiles import tiles
from fusion.cpu_ops.vectors import tile_ops
from fusion.ops.updates.cpu_kernels import layout
from fusion.ops.updates.cpu_kernels.layout import MARK_BYTES, Block
from fusion.ops.updates.cpu_kernels.tile_math import where_marked
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.tensorflow.dtypes import DTYPES


def of_rows(stored: str) -> list[tuple[int, Any]]:
    """(opcode, function) of these instructions, for rows of dtype `stored`."""
    item = DTYPES[stored].item_bytes
    copy, clear, begin, add = (_row(stored, kind) for kind in ("copy", "clear", "begin", "add"))
    return [
        (layout.SUM, _sum(item, clear, begin, add)),
        (layout.TAKE, _take(item, copy)),
        (layout.TAKE_VARIABLE, _take_variable(item, copy)),
        (layout.GATHER, _gather(item, copy)),
        (layout.GATHER_VALUE, _gather_value(item, copy)),
        (layout.SUM_VALUE, _sum_value(item, copy, clear, begin, add)),
        (layout.SUM_BY_IDS, _sum_by_ids(item, clear, add)),
        (layout.SCATTER_ADD, _scatter(stored, "add")),
        (layout.SCATTER_SUB, _scatter(stored, "subtract")),
        (layout.SCATTER_UPDATE, _scatter(stored, "copy")),
        (layout.RESULT, _result(item, copy)),
    ]


@jit
def _index_mask(block: Block) -> int:
    """The bits of a word of `Block.entries` that are the index of the entry among all."""
    return (int64(1) << block.shift) - 1


@jit
def _register(block: Block, number: int) -> int:
    return block.registers[number]


def _sum(item: int, clear: Any, begin: Any, add: Any) -> Any:
    @jit
    def add_up(block: Block, out: int, left: int) -> None:
        dim, local_rows = block.dim, block.locals
        rows, entries, size = _register(block, out), _register(block, left), dim * item
        # Sums begin with 0, as stock's do: 0 + -0 is 0.
        if local_rows == 0:
            begin(rows, entries, block.row_count * dim)
            return
        clear(rows, rows, block.row_count * dim)
        for entry in range(block.entry_count):
            add(rows + local_rows[entry] * size, entries + entry * size, dim)

    return add_up


def _take(item: int, copy: Any) -> Any:
    @jit
    def take(block: Block, out: int, left: int) -> None:
        dim, local_rows = block.dim, block.locals
        entries, rows, size = _register(block, out), _register(block, left), dim * item
        if local_rows == 0:
            copy(entries, rows, block.entry_count * dim)
            return
        for entry in range(block.entry_count):
            copy(entries + entry * size, rows + local_rows[entry] * size, dim)

    return take


def _take_variable(item: int, copy: Any) -> Any:
    @jit
    def take(block: Block, out: int, left: int) -> None:
        dim, first = block.dim, block.variables[left]
        entries, size = _register(block, out), dim * item
        words, shift = block.entries, block.shift
        if block.marks != 0:
            copy(entries, _register(block, left), block.entry_count * dim)
            return
        for entry in range(block.entry_count):
            copy(entries + entry * size, first + (words[entry] >> shift) * size, dim)

    return take


def _gather(item: int, copy: Any) -> Any:
    @jit
    def gather(block: Block, out: int, left: int) -> None:
        dim, first = block.dim, block.variables[left]
        rows, numbers, size = _register(block, out), block.rows, dim * item
        if block.marks != 0:
            copy(rows, _register(block, left), block.row_count * dim)
            return
        for row in range(block.row_count):
            copy(rows + row * size, first + numbers[row] * size, dim)

    return gather


def _gather_value(item: int, copy: Any) -> Any:
    @jit
    def gather(block: Block, out: int, left: int) -> None:
        source = block.values[left]
        first, step = source.first, source.step
        dim, entries = block.dim, _register(block, out)
        words, mask, size = block.entries, _index_mask(block), dim * item
        for entry in range(block.entry_count):
            copy(entries + entry * size, first + (words[entry] & mask) * step, dim)

    return gather


def _sum_value(item: int, copy: Any, clear: Any, begin: Any, add: Any) -> Any:
    """Where `Block.starts` is 0 the summands are those of `number_rows`."""

    @jit
    def add_in_order(block: Block, out: int, first: int, step: int) -> None:
        dim, count = block.dim, block.entry_count
        entries, summands = _register(block, out), block.summands
        shift, mask, size = block.shift, _index_mask(block), dim * item
        if count == 0:
            return
        # As many summands as sums, and none left out.
        is_one_each = summands[count] < 0 and summands[count - 1] & mask == count - 1
        if is_one_each and step == size:
            begin(entries, first, count * dim)
            return
        clear(entries, entries, count * dim)
        summand, k = summands[0], int64(0)
        while summand >= 0:
            add(entries + (summand >> shift) * size, first + (summand & mask) * step, dim)
            k += 1
            summand = summands[k]

    @jit
    def add_up(block: Block, out: int, left: int) -> None:
        if block.marks != 0:
            dim, size = block.dim, block.dim * item
            rows = block.sums[left] + block.first_row * size
            copy(_register(block, out), rows, block.entry_count * dim)
            return
        source = block.values[left]
        first, step = source.first, source.step
        starts, summands = block.starts, block.summands
        if starts == 0:
            add_in_order(block, out, first, step)
            return
        dim, entries = block.dim, _register(block, out)
        words, mask, size = block.entries, _index_mask(block), dim * item
        for entry in range(block.entry_count):
            index, target = words[entry] & mask, entries + entry * size
            start = starts[index]
            begin(target, first + (summands[start] & mask) * step, dim)
            for summand in range(start + 1, starts[index + 1]):
                add(target, first + (summands[summand] & mask) * step, dim)

    return add_up


def _sum_by_ids(item: int, clear: Any, add: Any) -> Any:
    @jit
    def add_by_ids(block: Block, out: int, left: int) -> None:
        source = block.values[left]
        first, step = source.first, source.step
        dim, rows = block.dim, _register(block, out)
        ids, dtype = block.ids, block.ids_dtype
        wraps, size = block.wraps, dim * item
        clear(rows, rows, block.row_count * dim)
        for index in range(block.id_count):
            row = integer_at(ids, index, dtype)
            if row < 0:
                row += wraps
            if row >= 0:
                add(rows + row * size, first + index * step, dim)

    return add_by_ids


def _scatter(stored: str, kind: str) -> Any:
    item, change, change_marked = (
        DTYPES[stored].item_bytes,
        _row(stored, kind),
        _marked(stored, kind),
    )

    @jit
    def scatter(block: Block, out: int, left: int) -> None:
        dim, first = block.dim, block.variables[out]
        entries, size = _register(block, left), dim * item
        words, shift = block.entries, block.shift
        if block.marks != 0:
            marks, count = block.marks, block.row_count
            change_marked(_register(block, out), entries, marks, count, dim)
            return
        for entry in range(block.entry_count):
            change(first + (words[entry] >> shift) * size, entries + entry * size, dim)

    return scatter


def _result(item: int, copy: Any) -> Any:
    @jit
    def result(block: Block, out: int, left: int) -> None:
        dim, first = block.dim, block.results[out]
        entries, size = _register(block, left), dim * item
        words, mask = block.entries, _index_mask(block)
        for entry in range(block.entry_count):
            copy(first + (words[entry] & mask) * size, entries + entry * size, dim)

    return result


def _marked(stored: str, kind: str) -> Any:
    """A jitted function (first, entries, marks, rows, dim) that changes rows with marks."""
    item, change = DTYPES[stored].item_bytes, _row(stored, kind)
    lanes = tiles(stored)[-1][0]
    by_vector, by_element = _marked_part(stored, kind, lanes), _marked_part(stored, kind, 1)

    @jit
    def whole(first: int, entries: int, marks: int, rows: int, dim: int) -> None:
        row = int64(0)
        if dim == 1:
            while row + lanes <= rows:
                by_vector(first + row * item, entries + row * item, marks + row * MARK_BYTES)
                row += lanes
            while row < rows:
                by_element(first + row * item, entries + row * item, marks + row * MARK_BYTES)
                row += 1
            return
        while row < rows:
            if load_as(marks, row, np.int32) != 0:
                change(first + row * dim * item, entries + row * dim * item, dim)
            row += 1

    return whole


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


def _changed(stored: str, kind: str, lanes: int) -> Any:
    """A jitted function (row, other) -> the tile that elements of a row are changed to."""
    ops, none = tile_ops(stored, lanes, 1), 0
    load_tile, zero = ops.load, ops.zero

    @jit
    def copy(row: int, other: int) -> Any:
        return load_tile(other, none)

    @jit
    def add(row: int, other: int) -> Any:
        return load_tile(row, none) + load_tile(other, none)

    @jit
    def subtract(row: int, other: int) -> Any:
        return load_tile(row, none) - load_tile(other, none)

    @jit
    def begin(row: int, other: int) -> Any:
        # As sums begin with 0: 0 + -0 is 0.
        return zero() + load_tile(other, none)

    @jit
    def clear(row: int, other: int) -> Any:
        return zero()

    kinds = {"copy": copy, "add": add, "subtract": subtract, "begin": begin, "clear": clear}
    return kinds[kind]


def _part(stored: str, kind: str, lanes: int) -> Any:
    """A jitted function (row, other) for so many elements."""
    store_tile, changed = tile_ops(stored, lanes, 1).store, _changed(stored, kind, lanes)

    @jit
    def change(row: int, other: int) -> None:
        store_tile(row, 0, changed(row, other))

    return change


def _marked_part(stored: str, kind: str, lanes: int) -> Any:
    """A jitted function (row, other, marks) that changes those of so many elements with a mark."""
    ops, changed = tile_ops(stored, lanes, 1), _changed(stored, kind, lanes)
    load_tile, store_tile = ops.load, ops.store

    @jit
    def change(row: int, other: int, marks: int) -> None:
        store_tile(row, 0, where_marked(marks, changed(row, other), load_tile(row, 0)))

    return change
