"""From a program to instructions of the interpreter: buffers for its values, and no copies.

A program is lowered twice: for blocks with entries, and for blocks without, where sums are zero and
what follows from zeros and scalars is a scalar. This module needs no Numba.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fusion.cpu_ops.updates import layout
from fusion.schema.update_program import (
    BINARY,
    ELEMENTWISE,
    ENTRIES,
    ROWS,
    SCALAR,
    SCATTERS,
    Instruction,
    Program,
    leaf,
)

#: The sum of no entries.
_ZERO = "0"

#: Operations of the interpreter that programs do not have.
_VALUE, _SUM_VALUE, _GATHER, _TAKE_VARIABLE = "value", "sum_value", "gather", "take_variable"

_OPCODES = {
    "sum": layout.SUM,
    "take": layout.TAKE,
    _TAKE_VARIABLE: layout.TAKE_VARIABLE,
    _GATHER: layout.GATHER,
    _VALUE: layout.GATHER_VALUE,
    _SUM_VALUE: layout.SUM_VALUE,
    "scatter_add": layout.SCATTER_ADD,
    "scatter_sub": layout.SCATTER_SUB,
    "scatter_update": layout.SCATTER_UPDATE,
    "result": layout.RESULT,
}
_COUNTS = {ROWS: layout.OF_ROWS, ENTRIES: layout.OF_ENTRIES, SCALAR: layout.OF_SCALAR}


class Lowered(NamedTuple):
    """Instructions, each the words of a `layout.Instruction`, and the buffers that they use.

    Registers are variables, scalars, zero, then the buffers of scalars, of rows and of entries.
    """

    instructions: list[list[int]]
    scalar_buffers: int
    row_buffers: int
    entry_buffers: int


@dataclass(frozen=True)
class _Step:
    """An operation with its operands; `target` is the index of what it reads or writes besides."""

    name: str
    op: str
    operands: tuple[str, ...]
    target: int = -1


@dataclass
class _Values:
    """What is known of the values of a program.

    Attributes:
      kinds: of each by its name.
      homes: the variable in whose rows a value is computed, because it is assigned to it.
    """

    kinds: dict[str, str]
    homes: dict[str, int] = field(default_factory=dict)


def lower(
    program: Program, variables: int, scalars: int, *, has_entries: bool, sums_values: bool
) -> Lowered:
    """The instructions of a program for blocks with entries, or for blocks without.

    Args:
      program: what to lower.
      variables, scalars: how many it has.
      has_entries: whether the blocks have entries.
      sums_values: whether an entry is the sum of those of its row.
    """
    values = _Values(dict(program.kinds) | {_ZERO: SCALAR})
    if has_entries:
        steps = _steps(program, values, _SUM_VALUE if sums_values else _VALUE)
    else:
        steps = _steps_without_entries(program, values)
    steps = _live(steps)
    if program.is_sweep:
        steps = _assigned_in_place(steps, values)
    return _allocated(steps, values, variables, scalars)


def may_skip(program: Program) -> bool:
    """Whether the table may stay as it is where slots are zero, if a trial with zeros agrees.

    It is read once, for a sum or a difference that is assigned to it and serves for nothing else.
    Then rows of zero slots all get the same added, and if that is nothing they stay. (Denormals of
    such rows stay, too, where a processor takes them for zeros.)
    """
    reads = [line for line in program.instructions if "v0" in line.operands]
    writes = [line for line in program.instructions if line.op == "assign" and line.target == 0]
    if len(reads) != 1 or len(writes) != 1 or reads[0].op not in ("add", "sub"):
        return False
    read, name = reads[0], reads[0].name
    uses = [line for line in program.instructions for arg in line.operands if arg == name]
    is_minuend = read.op == "add" or read.args[0] == "v0"
    return is_minuend and read.args.count("v0") == 1 and uses == writes


def _steps(program: Program, values: _Values, gather_value: str) -> list[_Step]:
    """The steps for blocks with entries: what is not in buffers is loaded where it is needed.

    Rows of variables are where they are in a sweep, and else far from each other.
    """
    steps: list[_Step] = []
    writes: dict[int, int] = {}

    def loaded(name: str) -> str:
        known = leaf(name)
        if known is None or known[0] == "s" or (known[0] == "v" and program.is_sweep):
            return name
        letter, index = known
        op = gather_value if letter == "x" else _GATHER
        copy = f"{name}@{0 if letter == 'x' else writes.get(index, 0)}"
        if copy not in values.kinds:
            values.kinds[copy] = values.kinds[name]
            steps.append(_Step(copy, op, (), index))
        return copy

    for line in program.instructions:
        if line.op == "take" and not program.is_sweep and (known := leaf(line.args[0])):
            steps.append(_Step(line.name, _TAKE_VARIABLE, (), known[1]))
            continue
        step = _step(line)
        step = replace(step, operands=tuple(loaded(name) for name in step.operands))
        if line.op == "result":
            step = replace(step, target=sum(other.op == "result" for other in steps))
        steps.append(step)
        if line.is_write:
            writes[line.target] = writes.get(line.target, 0) + 1
    return steps


def _step(line: Instruction) -> _Step:
    return _Step(line.name, line.op, line.operands, line.target if line.is_write else -1)


def _steps_without_entries(program: Program, values: _Values) -> list[_Step]:
    """The steps for blocks without entries."""
    steps: list[_Step] = []
    zeros: set[str] = set()
    for line in program.instructions:
        if line.op == "sum":
            zeros.add(line.name)
        elif line.op == "assign" or (line.name and values.kinds[line.name] == ROWS):
            step = _step(line)
            operands = tuple(_ZERO if name in zeros else name for name in step.operands)
            steps.append(replace(step, operands=operands))
            if line.name and all(values.kinds[name] == SCALAR for name in operands):
                values.kinds[line.name] = SCALAR
    return steps


def _live(steps: list[_Step]) -> list[_Step]:
    """Those steps whose values are used, or that have none."""
    used: set[str] = set()
    kept = []
    for step in reversed(steps):
        if not step.name or step.name in used:
            used.update(step.operands)
            kept.append(step)
    return kept[::-1]


def _assigned_in_place(steps: list[_Step], values: _Values) -> list[_Step]:
    """The steps without assignments of values that can be computed in a variable's own rows."""
    kept = []
    made_at = {step.name: index for index, step in enumerate(steps) if step.name}
    for index, step in enumerate(steps):
        if step.op == "assign" and _has_home(steps, values, made_at, index):
            values.homes[step.operands[0]] = step.target
        else:
            kept.append(step)
    return kept


def _has_home(
    steps: list[_Step], values: _Values, made_at: dict[str, int], assignment: int
) -> bool:
    """Whether what an assignment assigns can be in the variable from the start.

    That is before it is assigned: nobody reads or writes the variable until then. And afterwards it
    is not needed any more once the variable is written again.
    """
    (name,), target = steps[assignment].operands, steps[assignment].target
    if name not in made_at or name in values.homes or values.kinds[name] != ROWS:
        return False
    residents = {f"v{target}"} | {
        other for other, variable in values.homes.items() if variable == target
    }
    between = steps[made_at[name] + 1 : assignment]
    if any(residents & {*step.operands} or _writes(step, target) for step in between):
        return False
    is_overwritten = False
    for step in steps[assignment + 1 :]:
        is_overwritten |= _writes(step, target)
        if is_overwritten and name in step.operands:
            return False
    return True


def _writes(step: _Step, variable: int) -> bool:
    return step.op in ("assign", *SCATTERS) and step.target == variable


@dataclass
class _Buffers:
    """The buffers of a program, each for one value at a time.

    Attributes:
      sizes: how many there are, by kind.
      free: numbers of those that hold no value.
      used: kind and number of the one of each value.
    """

    sizes: dict[str, int] = field(default_factory=lambda: {ROWS: 0, ENTRIES: 0, SCALAR: 0})
    free: dict[str, list[int]] = field(default_factory=lambda: {ROWS: [], ENTRIES: [], SCALAR: []})
    used: dict[str, tuple[str, int]] = field(default_factory=dict)

    def take(self, name: str, kind: str) -> None:
        """Gives a value a buffer."""
        if not self.free[kind]:
            self.free[kind].append(self.sizes[kind])
            self.sizes[kind] += 1
        self.used[name] = kind, self.free[kind].pop()

    def release(self, names: set[str]) -> None:
        """Frees the buffers of values."""
        for name in sorted(names):
            kind, number = self.used[name]
            self.free[kind].append(number)


def _allocated(steps: list[_Step], values: _Values, variables: int, scalars: int) -> Lowered:
    """The instructions of steps; a buffer is used again once its value is not needed any more."""
    last_use = {name: index for index, step in enumerate(steps) for name in step.operands}
    buffers = _Buffers()
    written: list[tuple[_Step, list[tuple[str, int]], tuple[str, int]]] = []

    def place(name: str) -> tuple[str, int]:
        known = leaf(name)
        if name == _ZERO:
            return "fixed", variables + scalars
        if known is not None:
            return "fixed", known[1] + (variables if known[0] == "s" else 0)
        if name in values.homes:
            return "fixed", values.homes[name]
        return buffers.used[name]

    for index, step in enumerate(steps):
        operands = [place(name) for name in step.operands]
        used = (name for name in step.operands if name in buffers.used)
        ended = {name for name in used if last_use[name] == index}
        # A value may take over the buffer of an operand of the same elements, but of no others.
        if step.op in ELEMENTWISE:
            buffers.release(ended)
        if step.name and step.name not in values.homes:
            buffers.take(step.name, values.kinds[step.name])
        if step.op not in ELEMENTWISE:
            buffers.release(ended)
        written.append((step, operands, place(step.name) if step.name else ("fixed", step.target)))
    sizes, first = buffers.sizes, variables + scalars + 1
    starts = {"fixed": 0, SCALAR: first, ROWS: first + sizes[SCALAR]}
    starts[ENTRIES] = starts[ROWS] + sizes[ROWS]
    instructions = []
    for step, operands, (kind, number) in written:
        numbers = [starts[kind] + number for kind, number in operands]
        instructions.append(_words(step, values, numbers, starts[kind] + number))
    return Lowered(instructions, sizes[SCALAR], sizes[ROWS], sizes[ENTRIES])


def _words(step: _Step, values: _Values, operands: list[int], out: int) -> list[int]:
    """The words of an instruction."""
    words = [0] * layout.Instruction.SIZE
    words[layout.Instruction.out] = out
    if step.target >= 0 and step.name:  # what is loaded
        operands = [step.target]
    words[layout.Instruction.left], words[layout.Instruction.right] = operands[0], operands[-1]
    kinds = [values.kinds[name] for name in step.operands]
    if step.op == "assign":
        words[layout.Instruction.opcode] = layout.FILL if kinds == [SCALAR] else layout.COPY
        words[layout.Instruction.count] = layout.OF_ROWS
    elif step.op in ELEMENTWISE:
        words[layout.Instruction.opcode] = _elementwise_opcode(step.op, kinds)
        words[layout.Instruction.count] = _COUNTS[values.kinds[step.name]]
    else:
        words[layout.Instruction.opcode] = _OPCODES[step.op]
    return words


def _elementwise_opcode(op: str, kinds: list[str]) -> int:
    if op not in BINARY:
        return layout.UNARY_CODES[op]
    shape = layout.VECTORS
    if kinds[0] != kinds[1]:
        shape = layout.SCALAR_VECTOR if kinds[0] == SCALAR else layout.VECTOR_SCALAR
    return layout.BINARY_CODES[op] + shape
