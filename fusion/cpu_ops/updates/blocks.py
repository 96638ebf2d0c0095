"""The interpreter of programs: executes instructions for a block of rows, see `layout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusion.cpu_ops.row_tiles import tiles
from fusion.cpu_ops.updates import layout
from fusion.cpu_ops.updates.elementwise import elementwise
from fusion.cpu_ops.updates.layout import Block, Instruction, ValueSource
from fusion.cpu_ops.vectors import tile_ops
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load
from fusion.runtime.tensorflow.dtypes import DTYPES


def block_kernel(stored: str) -> Callable[[int], None]:
    """A function `(block)` that executes a block's instructions; rows are of dtype `stored`."""
    by_elements, by_rows = _chain(elementwise(stored), 4), _chain(_of_rows(stored), 3)
    lowest_of_rows = layout.SUM

    def execute(block: int) -> None:
        registers, dim = load(block, Block.registers), load(block, Block.dim)
        instruction = load(block, Block.instructions)
        end = instruction + 8 * Instruction.SIZE * load(block, Block.instruction_count)
        while instruction < end:
            opcode, out = load(instruction, Instruction.opcode), load(instruction, Instruction.out)
            left = load(instruction, Instruction.left)
            if opcode >= lowest_of_rows:
                by_rows(opcode, block, out, left)
            else:
                count = load(instruction, Instruction.count)
                elements = int64(1)
                if count != layout.OF_SCALAR:
                    field = Block.row_count if count == layout.OF_ROWS else Block.entry_count
                    elements = load(block, field) * dim
                right = load(registers, load(instruction, Instruction.right))
                by_elements(opcode, load(registers, out), load(registers, left), right, elements)
            instruction += 8 * Instruction.SIZE

    return execute


def _chain(choices: list[tuple[int, Any]], arguments: int) -> Any:
    """A jitted function (opcode, *arguments) that calls the function of an opcode."""
    chain = choices[-1][1]
    chosen = _either4 if arguments == 4 else _either3
    is_last = True
    for code, function in reversed(choices):
        chain = chosen(code, function, chain, is_last)
        is_last = False
    return chain


def _either4(code: int, function: Any, other: Any, is_last: bool) -> Any:
    if is_last:

        @jit
        def last(opcode: int, out: int, left: int, right: int, elements: int) -> None:
            function(out, left, right, elements)

        return last

    @jit
    def either(opcode: int, out: int, left: int, right: int, elements: int) -> None:
        if opcode == code:
            function(out, left, right, elements)
        else:
            other(opcode, out, left, right, elements)

    return either


def _either3(code: int, function: Any, other: Any, is_last: bool) -> Any:
    if is_last:

        @jit
        def last(opcode: int, block: int, out: int, left: int) -> None:
            function(block, out, left)

        return last

    @jit
    def either(opcode: int, block: int, out: int, left: int) -> None:
        if opcode == code:
            function(block, out, left)
        else:
            other(opcode, block, out, left)

    return either


def _of_rows(stored: str) -> list[tuple[int, Any]]:
    """(opcode, jitted function (block, out, left)) of the instructions that go row by row."""
    item = DTYPES[stored].item_bytes
    copy, add, subtract = (_row(stored, kind) for kind in ("copy", "add", "subtract"))
    clear = _row(stored, "clear")

    @jit
    def row_of(block: int, entry: int) -> int:
        return load(load(block, Block.entries), entry) >> load(block, Block.shift)

    @jit
    def index_of(block: int, entry: int) -> int:
        mask = (int64(1) << load(block, Block.shift)) - 1
        return load(load(block, Block.entries), entry) & mask

    @jit
    def register(block: int, number: int) -> int:
        return load(load(block, Block.registers), number)

    @jit
    def add_up(block: int, out: int, left: int) -> None:
        dim, local = load(block, Block.dim), load(block, Block.locals)
        rows, entries = register(block, out), register(block, left)
        clear(rows, rows, load(block, Block.row_count) * dim)
        for entry in range(load(block, Block.entry_count)):
            row = rows + load(local, entry) * dim * item
            add(row, entries + entry * dim * item, dim)

    @jit
    def take(block: int, out: int, left: int) -> None:
        dim, local = load(block, Block.dim), load(block, Block.locals)
        entries, rows = register(block, out), register(block, left)
        for entry in range(load(block, Block.entry_count)):
            copy(entries + entry * dim * item, rows + load(local, entry) * dim * item, dim)

    @jit
    def take_variable(block: int, out: int, left: int) -> None:
        size, first = load(block, Block.dim) * item, load(load(block, Block.variables), left)
        entries = register(block, out)
        for entry in range(load(block, Block.entry_count)):
            row = first + row_of(block, entry) * size
            copy(entries + entry * size, row, load(block, Block.dim))

    @jit
    def gather(block: int, out: int, left: int) -> None:
        size, first = load(block, Block.dim) * item, load(load(block, Block.variables), left)
        rows, numbers = register(block, out), load(block, Block.rows)
        for row in range(load(block, Block.row_count)):
            copy(rows + row * size, first + load(numbers, row) * size, load(block, Block.dim))

    @jit
    def gather_value(block: int, out: int, left: int) -> None:
        size = load(block, Block.dim) * item
        source = load(block, Block.values) + 8 * ValueSource.SIZE * left
        first, step = load(source, ValueSource.first), load(source, ValueSource.step)
        entries = register(block, out)
        for entry in range(load(block, Block.entry_count)):
            value = first + index_of(block, entry) * step
            copy(entries + entry * size, value, load(block, Block.dim))

    @jit
    def scatter_add(block: int, out: int, left: int) -> None:
        size, first = load(block, Block.dim) * item, load(load(block, Block.variables), out)
        entries = register(block, left)
        for entry in range(load(block, Block.entry_count)):
            row = first + row_of(block, entry) * size
            add(row, entries + entry * size, load(block, Block.dim))

    @jit
    def scatter_sub(block: int, out: int, left: int) -> None:
        size, first = load(block, Block.dim) * item, load(load(block, Block.variables), out)
        entries = register(block, left)
        for entry in range(load(block, Block.entry_count)):
            row = first + row_of(block, entry) * size
            subtract(row, entries + entry * size, load(block, Block.dim))

    @jit
    def result(block: int, out: int, left: int) -> None:
        size, first = load(block, Block.dim) * item, load(load(block, Block.results), out)
        entries = register(block, left)
        for entry in range(load(block, Block.entry_count)):
            target = first + index_of(block, entry) * size
            copy(target, entries + entry * size, load(block, Block.dim))

    return [
        (layout.SUM, add_up),
        (layout.TAKE, take),
        (layout.TAKE_VARIABLE, take_variable),
        (layout.GATHER, gather),
        (layout.GATHER_VALUE, gather_value),
        (layout.SCATTER_ADD, scatter_add),
        (layout.SCATTER_SUB, scatter_sub),
        (layout.RESULT, result),
    ]


def _row(stored: str, kind: str) -> Any:
    """A jitted function (row, other, elements) that does something to a row of any length."""
    lanes, item = tiles(stored)[-1][0], DTYPES[stored].item_bytes
    by_vector, by_half = _part(stored, kind, lanes), _part(stored, kind, lanes // 2)
    by_element = _part(stored, kind, 1)

    @jit
    def whole(row: int, other: int, elements: int) -> None:
        end, offset = elements * item, int64(0)
        while offset + lanes * item <= end:
            by_vector(row + offset, other + offset)
            offset += lanes * item
        if offset + lanes // 2 * item <= end:
            by_half(row + offset, other + offset)
            offset += lanes // 2 * item
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
    def clear(row: int, other: int) -> None:
        store_tile(row, none, zero())

    return {"copy": copy, "add": add, "subtract": subtract, "clear": clear}[kind]
