"""The interpreter of programs: executes instructions for a block of rows, see `layout`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from fusion.cpu_ops.updates import layout
from fusion.cpu_ops.updates.elementwise import elementwise
from fusion.cpu_ops.updates.entries import of_rows
from fusion.cpu_ops.updates.layout import Block, Instruction
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load


def block_kernel(stored: str) -> Callable[[int], None]:
    """A function `(block)` that executes a block's instructions; rows are of dtype `stored`."""
    loops = [(code, _on_elements(loop)) for code, loop in elementwise(stored)]
    functions = [(code, _on_rows(function)) for code, function in of_rows(stored)]
    execute_one = _chosen(sorted([*loops, *functions], key=itemgetter(0)))

    def execute(block: int) -> None:
        instruction = load(block, Block.instructions)
        end = instruction + 8 * Instruction.SIZE * load(block, Block.instruction_count)
        while instruction < end:
            execute_one(load(instruction, Instruction.opcode), block, instruction)
            instruction += 8 * Instruction.SIZE

    return execute


def _chosen(functions: Sequence[tuple[int, Any]]) -> Any:
    """A jitted function (opcode, block, instruction) that does the one of that opcode.

    Args:
      functions: opcodes in ascending order, each with a function of these arguments.
    """
    if len(functions) == 1:
        return functions[0][1]
    half = len(functions) // 2
    first, lower, upper = functions[half][0], _chosen(functions[:half]), _chosen(functions[half:])

    @jit
    def execute(opcode: int, block: int, instruction: int) -> None:
        if opcode < first:
            lower(opcode, block, instruction)
        else:
            upper(opcode, block, instruction)

    return execute


def _on_elements(loop: Any) -> Any:
    """A jitted function (opcode, block, instruction) of one (out, left, right, elements)."""

    @jit
    def execute(opcode: int, block: int, instruction: int) -> None:
        registers, count = load(block, Block.registers), load(instruction, Instruction.count)
        elements = load(block, Block.dim)
        if count == layout.OF_ROWS:
            elements *= load(block, Block.row_count)
        elif count == layout.OF_ENTRIES:
            elements *= load(block, Block.entry_count)
        else:
            elements = int64(1)
        loop(
            load(registers, load(instruction, Instruction.out)),
            load(registers, load(instruction, Instruction.left)),
            load(registers, load(instruction, Instruction.right)),
            elements,
        )

    return execute


def _on_rows(function: Any) -> Any:
    """A jitted function (opcode, block, instruction) of one (block, out, left)."""

    @jit
    def execute(opcode: int, block: int, instruction: int) -> None:
        out, left = load(instruction, Instruction.out), load(instruction, Instruction.left)
        function(block, out, left)

    return execute
