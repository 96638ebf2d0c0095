"""Records of a program in native code: where they are, and new ones."""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import COPY, SCATTER_ADD, SCATTER_UPDATE
from fusion.ops.cpu.updates.program import NAMED, NONE, Line, Program, Step, Value
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import c_memcmp, load, store


@jit
def line_of(program: int, index: int) -> int:
    """The address of a `Line`."""
    return load(program, Program.lines) + 8 * Line.SIZE * index


@jit
def value_of(program: int, index: int) -> int:
    """The address of a `Value`."""
    return load(program, Program.values) + 8 * Value.SIZE * index


@jit
def new_value(program: int, origin: int, index: int, text: int, size: int, kind: int) -> int:
    """Adds a `Value` and returns its address."""
    number = load(program, Program.value_count)
    store(program, Program.value_count, number + 1)
    value = value_of(program, number)
    store(value, Value.origin, origin)
    store(value, Value.index, index)
    store(value, Value.text, text)
    store(value, Value.text_bytes, size)
    store(value, Value.kind, kind)
    store(value, Value.read_count, 0)
    reset_value(value)
    return value


@jit
def lookup(program: int, origin: int, index: int, text: int, size: int) -> int:
    """The value of an origin and an index, or of a name; 0 if there is none."""
    for number in range(load(program, Program.value_count)):
        value = value_of(program, number)
        if load(value, Value.origin) != origin or load(value, Value.index) != index:
            continue
        if origin != NAMED:
            return value
        if load(value, Value.text_bytes) == size and (
            c_memcmp(load(value, Value.text), text, size) == 0
        ):
            return value
    return 0


@jit
def reset_value(value: int) -> None:
    """Forgets of a `Value` what the steps that there were have said of it."""
    store(value, Value.loaded, 0)
    store(value, Value.is_zero, 0)
    store(value, Value.is_used, 0)
    store(value, Value.step, NONE)
    store(value, Value.home, NONE)
    store(value, Value.last_use, NONE)


@jit
def step_of(program: int, index: int) -> int:
    """The address of a `Step`."""
    return load(program, Program.steps) + 8 * Step.SIZE * index


@jit
def new_step(program: int, opcode: int, out: int, target: int, left: int, right: int) -> None:
    """Adds a step, see its fields."""
    number = load(program, Program.step_count)
    store(program, Program.step_count, number + 1)
    step = step_of(program, number)
    store(step, Step.opcode, opcode)
    store(step, Step.out, out)
    store(step, Step.target, target)
    store(step, Step.left, left)
    store(step, Step.right, right)
    store(step, Step.is_kept, 1)
    if left != 0:
        store(left, Value.last_use, number)
    if right != 0:
        store(right, Value.last_use, number)


@jit
def keep_steps(program: int) -> None:
    """Removes the steps that are not kept."""
    count = load(program, Program.step_count)
    store(program, Program.step_count, 0)
    for index in range(count):
        step = step_of(program, index)
        if load(step, Step.is_kept) != 0:
            new_step(
                program,
                load(step, Step.opcode),
                load(step, Step.out),
                load(step, Step.target),
                load(step, Step.left),
                load(step, Step.right),
            )


@jit
def is_write(opcode: int) -> bool:
    """Whether a line or a step changes a variable."""
    return opcode == COPY or SCATTER_ADD <= opcode <= SCATTER_UPDATE
