"""The steps of a program: what is done for blocks of rows with entries, or for those without.

In blocks without entries sums are zero, and what follows from zeros and scalars is a scalar.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import (
    BINARY_CODES,
    COPY,
    GATHER,
    GATHER_VALUE,
    OF_ROWS,
    RESULT,
    SUM,
    SUM_VALUE,
    TAKE,
    TAKE_VARIABLE,
)
from fusion.ops.cpu.updates.program import (
    ENTRY,
    LOADED,
    NAMED,
    NONE,
    VARIABLE,
    Line,
    Lowering,
    Program,
    Step,
    Value,
)
from fusion.ops.cpu.updates.records import (
    is_write,
    keep_steps,
    line_of,
    lookup,
    new_step,
    new_value,
    reset_value,
    step_of,
    value_of,
)
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load, store

_ADD, _SUB = BINARY_CODES["add"], BINARY_CODES["sub"]


@jit
def make_steps(program: int, has_entries: bool) -> None:
    """Makes the steps for blocks with entries, or for blocks without."""
    store(program, Program.step_count, 0)
    store(program, Program.result_count, 0)
    for index in range(load(program, Program.value_count)):
        reset_value(value_of(program, index))
    for index in range(load(program, Program.line_count)):
        if has_entries:
            _add_line(program, line_of(program, index))
        else:
            _add_line_without(program, line_of(program, index))
    _keep_used(program)
    if load(load(program, Program.lowering), Lowering.is_sweep) != 0:
        _assign_in_place(program)


# --- steps of lines -----------------------------------------------------------------------------


@jit
def _add_line(program: int, line: int) -> None:
    """Adds the steps of a line for blocks with entries; what they read is loaded before.

    Rows of variables are where they are in a sweep, and else far from each other.
    """
    opcode, out, left = load(line, Line.opcode), load(line, Line.out), load(line, Line.left)
    target, is_sweep = NONE, load(load(program, Program.lowering), Lowering.is_sweep) != 0
    if opcode == TAKE and not is_sweep and load(left, Value.origin) == VARIABLE:
        new_step(program, TAKE_VARIABLE, out, load(left, Value.index), 0, 0)
        return
    left = _loaded(program, left, is_sweep)
    right = load(line, Line.right)
    if right != 0:
        right = _loaded(program, right, is_sweep)
    if is_write(opcode):
        written = load(line, Line.target)
        target = load(written, Value.index)
        store(written, Value.loaded, 0)
    elif opcode == RESULT:
        target = load(program, Program.result_count)
        store(program, Program.result_count, target + 1)
    new_step(program, opcode, out, target, left, right)


@jit
def _loaded(program: int, value: int, is_sweep: bool) -> int:
    """The value that a step has for the operand of a line, of which a step may load it."""
    origin, opcode = load(value, Value.origin), GATHER
    if origin == ENTRY:
        sums = load(load(program, Program.lowering), Lowering.sums_values) != 0
        opcode = SUM_VALUE if sums else GATHER_VALUE
    elif origin != VARIABLE or is_sweep:
        return value
    loaded = load(value, Value.loaded)
    if loaded == 0:
        text, size = load(value, Value.text), load(value, Value.text_bytes)
        loaded = new_value(program, LOADED, 0, text, size, load(value, Value.kind))
        store(value, Value.loaded, loaded)
        new_step(program, opcode, loaded, load(value, Value.index), 0, 0)
    return loaded


@jit
def _add_line_without(program: int, line: int) -> None:
    """Adds the step of a line for blocks without entries, if it has one."""
    opcode, out, target = load(line, Line.opcode), load(line, Line.out), NONE
    if opcode == SUM:
        store(out, Value.is_zero, 1)
        return
    if opcode == COPY:
        target = load(load(line, Line.target), Value.index)
    elif out == 0 or load(out, Value.kind) != OF_ROWS:
        return
    left, right = load(line, Line.left), load(line, Line.right)
    if load(left, Value.is_zero) != 0:
        left = load(program, Program.values)
    kind = load(left, Value.kind)  # rows, unless all operands are scalars
    if right != 0:
        if load(right, Value.is_zero) != 0:
            right = load(program, Program.values)
        kind = min(kind, load(right, Value.kind))
    new_step(program, opcode, out, target, left, right)
    if out != 0:
        store(out, Value.kind, kind)


# --- fewer steps --------------------------------------------------------------------------------


@jit
def _keep_used(program: int) -> None:
    """Removes the steps whose values are not used."""
    count = load(program, Program.step_count)
    for index in range(count):
        step = step_of(program, count - 1 - index)
        out, left, right = load(step, Step.out), load(step, Step.left), load(step, Step.right)
        if out != 0 and load(out, Value.is_used) == 0:
            store(step, Step.is_kept, 0)
            continue
        if left != 0:
            store(left, Value.is_used, 1)
        if right != 0:
            store(right, Value.is_used, 1)
    keep_steps(program)


@jit
def _assign_in_place(program: int) -> None:
    """Removes assignments of values that can be computed in a variable's own rows."""
    for index in range(load(program, Program.step_count)):
        out = load(step_of(program, index), Step.out)
        if out != 0:
            store(out, Value.step, index)
    for index in range(load(program, Program.step_count)):
        step = step_of(program, index)
        if load(step, Step.opcode) == COPY and _has_home(program, index):
            value, target = load(step, Step.left), load(step, Step.target)
            store(value, Value.home, target)
            store(value, Value.register, target)
            store(step, Step.is_kept, 0)
    keep_steps(program)


@jit
def _has_home(program: int, assignment: int) -> bool:
    """Whether what an assignment assigns can be in the variable from the start.

    That is before it is assigned: nobody reads or writes the variable until then. And afterwards it
    is not needed any more once the variable is written again.
    """
    step = step_of(program, assignment)
    value, target = load(step, Step.left), load(step, Step.target)
    made = load(value, Value.step)
    if made == NONE or load(value, Value.home) != NONE or load(value, Value.kind) != OF_ROWS:
        return False
    is_overwritten = False
    for index in range(made + 1, load(program, Program.step_count)):
        step = step_of(program, index)
        left, right = load(step, Step.left), load(step, Step.right)
        writes = load(step, Step.target) == target and is_write(load(step, Step.opcode))
        if index < assignment and (writes or _is_in(left, target) or _is_in(right, target)):
            return False
        is_overwritten |= writes and index > assignment
        if is_overwritten and (left == value or right == value):
            return False
    return True


@jit
def _is_in(value: int, variable: int) -> bool:
    """Whether a value is a variable, or is in its rows."""
    if value == 0:
        return False
    is_variable = load(value, Value.origin) == VARIABLE
    return load(value, Value.index if is_variable else Value.home) == variable


# --- what a program does ------------------------------------------------------------------------


@jit
def may_skip(program: int) -> bool:
    """Whether the table may stay as it is where slots are zero, if a trial with zeros agrees.

    It is read once, for a sum or a difference that is assigned to it and serves for nothing else.
    Then rows of zero slots all get the same added, and if that is nothing they stay. (Denormals of
    such rows stay, too, where a processor takes them for zeros.)
    """
    table = lookup(program, VARIABLE, 0, 0, 0)
    if table == 0 or load(table, Value.read_count) != 1:
        return False
    writers, value = 0, table
    for index in range(load(program, Program.line_count)):
        line = line_of(program, index)
        if load(line, Line.target) == table and load(line, Line.opcode) == COPY:
            writers += 1
            value = load(line, Line.left)
    if writers != 1 or load(value, Value.origin) != NAMED or load(value, Value.read_count) != 1:
        return False
    line = load(value, Value.line)
    opcode, is_minuend = load(line, Line.opcode), load(line, Line.left) == table
    return (opcode == _ADD or (opcode == _SUB and is_minuend)) and (
        is_minuend or load(line, Line.right) == table
    )
