"""The interpreter of programs: executes instructions for a block of rows, see `layout`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from fusion.ops.updates.cpu_kernels import layout
from fusion.ops.updates.cpu_kernels.elementwise import elementwise
from fusion.ops.updates.cpu_kernels.entries import of_rows
from fusion.ops.updates.cpu_kernels.layout import Block, Instruction
from fusion.runtime.native.jit import int64, jit


def block_kernel(stored: str) -> Callable[[Block], None]:
    """A function `(block)` that executes a block's instructions; rows are of dtype `stored`."""
    loops = [(code, _on_elements(loop)) for code, loop in elementwise(stored)]
    functions = [(code, _on_rows(function)) for code, function in of_rows(stored)]
    execute_one = _chosen(sorted([*loops, *functions], key=itemgetter(0)))

    def execute(block: Block) -> None:
        for k in range(block.instruction_count):
            instruction = block.instructions[k]
            execute_one(instruction.opcode, block, instruction)

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
    def execute(opcode: int, block: Block, instruction: Instruction) -> None:
        if opcode < first:
            lower(opcode, block, instruction)
        else:
            upper(opcode, block, instruction)

    return execute


def _on_elements(loop: Any) -> Any:
    """A jitted function (opcode, block, instruction) of one (out, left, right, elements)."""

    @jit
    def execute(opcode: int, block: Block, instruction: Instruction) -> None:
        registers, count = block.registers, instruction.count
        elements = block.dim
        if count == layout.OF_ROWS:
            elements *= block.row_count
        elif count == layout.OF_ENTRIES:
            elements *= block.entry_count
        else:
            elements = int64(1)
        loop(
            registers[instruction.out],
            registers[instruction.left],
            registers[instruction.right],
            elements,
        )

    return execute


def _on_rows(function: Any) -> Any:
    """A jitted function (opcode, block, instruction) of one (block, out, left)."""

    @jit
    def execute(opcode: int, block: int, instruction: Instruction) -> None:
        out, left = instruction.out, instruction.left
        function(block, out, left)

    return execute
