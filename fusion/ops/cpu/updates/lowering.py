"""From the text of a program to instructions of the interpreter: buffers for values, and no copies.

A program is lowered twice: for blocks with entries, and for blocks without.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import OF_SCALAR
from fusion.ops.cpu.updates.instructions import write_instructions
from fusion.ops.cpu.updates.parsing import parse
from fusion.ops.cpu.updates.program import (
    INVALID_ARGUMENT,
    OK,
    RESOURCE_EXHAUSTED,
    ZERO,
    Line,
    Lowering,
    Program,
    Step,
    Value,
)
from fusion.ops.cpu.updates.records import new_value
from fusion.ops.cpu.updates.scanning import count_arguments, count_lines
from fusion.ops.cpu.updates.steps import make_steps, may_skip
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, load, stack_words, store
from fusion.runtime.native.text import Message, append_literal, append_number, begin, literal
from fusion.schema.update_program import MOST_BYTES


def lower_program(lowering: int) -> None:
    """As `lower`, to be compiled by itself."""
    lower(lowering)


@jit
def lower(lowering: int) -> None:
    """Lowers the program of a `Lowering`, whose fields tell what came of it."""
    program, message = stack_words(Program.SIZE), stack_words(Message.SIZE)
    begin(message, load(lowering, Lowering.message), load(lowering, Lowering.message_bytes))
    store(lowering, Lowering.code, OK)
    store(lowering, Lowering.word_count, 0)
    size = load(lowering, Lowering.text_bytes)
    if size > MOST_BYTES:
        store(lowering, Lowering.code, INVALID_ARGUMENT)
        append_literal(message, literal("program has "))
        append_number(message, size)
        append_literal(message, literal(" bytes, more than "))
        append_number(message, MOST_BYTES)
        return
    memory = _open(program, lowering)
    if memory == 0:
        store(lowering, Lowering.code, RESOURCE_EXHAUSTED)
        append_literal(message, literal("no memory for a program of "))
        append_number(message, size)
        append_literal(message, literal(" bytes"))
        return
    store(program, Program.message, message)
    if parse(program):
        store(lowering, Lowering.may_skip, int64(may_skip(program)))
        make_steps(program, True)
        if write_instructions(program, lowering + 8 * Lowering.with_entries):
            make_steps(program, False)
            write_instructions(program, lowering + 8 * Lowering.without)
    c_free(memory)


@jit
def _open(program: int, lowering: int) -> int:
    """Makes an empty `Program`; returns the memory of its records, 0 if there is none."""
    text, size = load(lowering, Lowering.text), load(lowering, Lowering.text_bytes)
    lines, arguments = count_lines(text, text + size), count_arguments(text, text + size)
    # Each argument may be a value by itself, and be loaded; zero is one besides.
    values, steps = 1 + lines + 2 * arguments, lines + arguments
    words = Line.SIZE * lines + Value.SIZE * values + Step.SIZE * steps
    words += 1 + (OF_SCALAR + 1) * steps
    memory = c_malloc(8 * words)
    if memory == 0:
        return memory
    at = memory
    store(program, Program.lowering, lowering)
    store(program, Program.lines, at)
    store(program, Program.line_count, lines)
    at += 8 * Line.SIZE * lines
    store(program, Program.values, at)
    store(program, Program.value_count, 0)
    at += 8 * Value.SIZE * values
    store(program, Program.steps, at)
    at += 8 * Step.SIZE * steps
    store(program, Program.next_free, at)
    zero = new_value(program, ZERO, 0, text, 0, OF_SCALAR)
    count = load(lowering, Lowering.variable_count) + load(lowering, Lowering.scalar_count)
    store(zero, Value.register, count)
    return memory
