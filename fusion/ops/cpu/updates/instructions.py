"""The instructions of a program: its steps, with buffers for their values.

Registers are variables, scalars, zero, then the buffers of scalars, of rows and of entries.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import (
    COPY,
    FILL,
    OF_ENTRIES,
    OF_ROWS,
    OF_SCALAR,
    SCALAR_VECTOR,
    UNARY_CODES,
    VECTOR_SCALAR,
    Instruction,
)
from fusion.ops.cpu.updates.layout import Code
from fusion.ops.cpu.updates.program import (
    LOADED,
    NAMED,
    NONE,
    RESOURCE_EXHAUSTED,
    Lowering,
    Program,
    Step,
    Value,
)
from fusion.ops.cpu.updates.records import step_of
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import c_memcmp, load, store
from fusion.runtime.native.text import append_literal, append_number, byte, literal

_KINDS = 3
_FIRST_UNARY = min(UNARY_CODES.values())
#: What an elementwise instruction is not: those are the first.
_FIRST_OTHER = COPY

#: In the place of a register: no buffer of a kind is free.
_NO_BUFFER = 0

_AT = ord("@")


@jit
def write_instructions(program: int, code: int) -> bool:
    """Writes the instructions of the steps behind those that there are, and the `Code` of them.

    A buffer is used again once its value is not needed any more. While it is not known how many
    there are, its register is negative: -1 - (3 * its number + its kind).
    """
    lowering, count = load(program, Program.lowering), load(program, Program.step_count)
    written = load(lowering, Lowering.word_count)
    if written + Instruction.SIZE * count > load(lowering, Lowering.word_capacity):
        store(lowering, Lowering.code, RESOURCE_EXHAUSTED)
        message = load(program, Program.message)
        append_literal(message, literal("program has more words of instructions than "))
        append_number(message, load(lowering, Lowering.word_capacity))
        return False
    first = load(lowering, Lowering.words) + 8 * written
    for field in range(Program.free_buffers, Program.SIZE):
        store(program, field, 0)
    for index in range(count):
        _write(program, index, first + 8 * Instruction.SIZE * index)
    for index in range(count):
        _number_buffers(program, first + 8 * Instruction.SIZE * index)
    store(lowering, Lowering.word_count, written + Instruction.SIZE * count)
    store(code, Code.offset, load(lowering, Lowering.first_word) + written)
    store(code, Code.instruction_count, count)
    store(code, Code.row_buffers, load(program, Program.buffer_counts + OF_ROWS))
    store(code, Code.entry_buffers, load(program, Program.buffer_counts + OF_ENTRIES))
    store(code, Code.scalar_buffers, load(program, Program.buffer_counts + OF_SCALAR))
    return True


@jit
def _write(program: int, index: int, instruction: int) -> None:
    """Writes the instruction of a step."""
    step = step_of(program, index)
    opcode, out, target = load(step, Step.opcode), load(step, Step.out), load(step, Step.target)
    left, right = load(step, Step.left), load(step, Step.right)
    store(instruction, Instruction.count, OF_ROWS)
    store(instruction, Instruction.left, load(left, Value.register) if left != 0 else target)
    last = right if right != 0 else left
    store(instruction, Instruction.right, load(last, Value.register) if last != 0 else target)
    # A value may take over the buffer of an operand of the same elements, but of no others.
    if opcode < _FIRST_OTHER:
        store(instruction, Instruction.count, load(out, Value.kind))
        opcode += _shape(opcode, left, right)
        _free(program, index, left, right)
        _take(program, out)
    else:
        if opcode == COPY and load(left, Value.kind) == OF_SCALAR:
            opcode = FILL
        if out != 0:
            _take(program, out)
        _free(program, index, left, right)
    store(instruction, Instruction.opcode, opcode)
    store(instruction, Instruction.out, load(out, Value.register) if out != 0 else target)


@jit
def _shape(opcode: int, left: int, right: int) -> int:
    """What is added to the opcode of an elementwise operation of two vectors for its operands."""
    if opcode >= _FIRST_UNARY or load(left, Value.kind) == load(right, Value.kind):
        return 0
    return SCALAR_VECTOR if load(left, Value.kind) == OF_SCALAR else VECTOR_SCALAR


@jit
def _number_buffers(program: int, instruction: int) -> None:
    """Replaces the buffers of an instruction by their registers."""
    lowering = load(program, Program.lowering)
    start = load(lowering, Lowering.variable_count) + load(lowering, Lowering.scalar_count) + 1
    scalars = load(program, Program.buffer_counts + OF_SCALAR)
    rows = load(program, Program.buffer_counts + OF_ROWS)
    for field in range(Instruction.out, Instruction.right + 1):
        buffer = -1 - load(instruction, field)
        if buffer >= 0:
            kind, number = buffer % _KINDS, buffer // _KINDS
            register = start + number
            if kind != OF_SCALAR:
                register += scalars
            if kind == OF_ENTRIES:
                register += rows
            store(instruction, field, register)


# --- buffers ------------------------------------------------------------------------------------


@jit
def _take(program: int, value: int) -> None:
    """Gives the value of a step a buffer, unless it is in a variable's rows."""
    if load(value, Value.home) != NONE:
        return
    kind = load(value, Value.kind)
    register = load(program, Program.free_buffers + kind)
    if register == _NO_BUFFER:
        number = load(program, Program.buffer_counts + kind)
        store(program, Program.buffer_counts + kind, number + 1)
        register = -1 - (_KINDS * number + kind)
    else:
        following = load(load(program, Program.next_free), -register)
        store(program, Program.free_buffers + kind, following)
    store(value, Value.register, register)


@jit
def _free(program: int, index: int, left: int, right: int) -> None:
    """Frees the buffers of the operands of a step that are not needed any more, by their names."""
    if right == 0 or right == left:
        _free_one(program, index, left)
    elif _is_before(right, left):
        _free_one(program, index, right)
        _free_one(program, index, left)
    else:
        _free_one(program, index, left)
        _free_one(program, index, right)


@jit
def _free_one(program: int, index: int, value: int) -> None:
    if value == 0 or load(value, Value.last_use) != index:
        return
    register, origin = load(value, Value.register), load(value, Value.origin)
    # With numbers of inputs that no node can have, registers without a buffer overflow, too.
    if register < 0 and NAMED <= origin <= LOADED:
        free = Program.free_buffers + load(value, Value.kind)
        store(load(program, Program.next_free), -register, load(program, free))
        store(program, free, register)


@jit
def _is_before(one: int, other: int) -> bool:
    """Whether the name of a value comes before another's; what is loaded of x0 has the name x0@."""
    common = min(load(one, Value.text_bytes), load(other, Value.text_bytes))
    order = c_memcmp(load(one, Value.text), load(other, Value.text), common)
    if order != 0:
        return order < 0
    return _byte_of(one, common) < _byte_of(other, common)


@jit
def _byte_of(value: int, index: int) -> int:
    """A byte of the name of a value, 0 at its end."""
    if index < load(value, Value.text_bytes):
        return byte(load(value, Value.text) + index)
    return _AT if load(value, Value.origin) == LOADED else 0
