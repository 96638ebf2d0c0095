"""Lowers the text of a program to instructions of the interpreter: buffers for values, no copies.

A program is lowered twice: for blocks of rows with entries, and for blocks without, where sums are
zero, and what follows from zeros and scalars is a scalar. This module needs no Numba.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fusion.ops.updates.cpu_kernels.layout import (
    BINARY_CODES,
    CODE_VERSION,
    COPY,
    FILL,
    GATHER,
    GATHER_VALUE,
    OF_ENTRIES,
    OF_ROWS,
    OF_SCALAR,
    OTHER_CODES,
    RESULT,
    SCALAR_VECTOR,
    SUM,
    SUM_VALUE,
    TAKE,
    TAKE_VARIABLE,
    UNARY_CODES,
    VECTOR_SCALAR,
)
from fusion.schema.update_program import SCATTERS, Instruction, Program, leaf, parse

_OPCODES = {**BINARY_CODES, **UNARY_CODES, **OTHER_CODES}
#: Of what there are buffers, as `CodeCounts` has them.
_ORDER = (OF_ROWS, OF_ENTRIES, OF_SCALAR)
_KINDS = {"v": OF_ROWS, "x": OF_ENTRIES, "s": OF_SCALAR}


class Inputs(NamedTuple):
    """The inputs of a node of FusedEmbeddingUpdate.

    Attributes:
        variables, values, scalars, results: how many.
        deduplicates: whether an entry is the sum of those of its row.
    """

    variables: int
    values: int
    scalars: int
    results: int
    deduplicates: bool


@functools.lru_cache(maxsize=256)
def lower(text: str, inputs: Inputs) -> bytes:
    """The attr `code` of a node: what its kernel executes.

    Args:
        text: the program, see `fusion.schema.update_program`.

    Raises:
        ValueError: it is no program, or none of these inputs and outputs.
    """
    program = parse(text)
    _check(program, inputs)
    ops = {line.op for line in program.instructions}
    is_sweep = "assign" in ops
    needs_rows = not ops.isdisjoint({"take", "result", *SCATTERS})
    with_entries = _Block(inputs, is_sweep).lowered(program.instructions)
    without = _Block(inputs, is_sweep, has_entries=False).lowered(program.instructions)
    flags = is_sweep, needs_rows, _may_skip(program.instructions)
    words = [CODE_VERSION, *map(int, flags)]
    for code in (with_entries, without):
        words += [len(code.instructions), code.rows, code.entries, code.scalars]
    for code in (with_entries, without):
        words += [word for words in code.instructions for word in words]
    return struct.pack(f"<{len(words)}i", *words)


def _check(program: Program, inputs: Inputs) -> None:
    """Refuses a program of other inputs and outputs."""
    limits = {"v": inputs.variables, "x": inputs.values, "s": inputs.scalars}
    for line in program.instructions:
        for arg in line.args:
            known = leaf(arg)
            if known and known[1] >= limits[known[0]]:
                raise ValueError(f"program: {line.text!r}: there is no {arg}")
    results = sum(line.op == "result" for line in program.instructions)
    if results != inputs.results:
        raise ValueError(f"program has {results} results, not {inputs.results}")
    if results and inputs.deduplicates:
        raise ValueError("program must not have results with deduplicate")


def _may_skip(lines: Sequence[Instruction]) -> bool:
    """Whether the table may stay as it is where slots are zero, if a trial with zeros agrees.

    It is read once, for a sum or a difference that is assigned to it and serves for nothing else.
    Then rows of zero slots all get the same added, and if that is nothing they stay. (Denormals of
    such rows stay, too, where a processor takes them for zeros.)
    """
    table = ("v", 0)
    read = [(line, arg) for line in lines for arg in line.operands]
    readers = [line for line, arg in read if leaf(arg) == table]
    writers = [line for line in lines if line.op == "assign" and line.target == 0]
    if len(readers) != 1 or len(writers) != 1:
        return False
    (reader,), (assigned,) = readers, writers[0].operands
    is_alone = reader.name == assigned and sum(arg == assigned for _, arg in read) == 1
    is_minuend = leaf(reader.operands[0]) == table
    return is_alone and (reader.op == "add" or (reader.op == "sub" and is_minuend))


@dataclass(eq=False)
class _Value:
    """A value that steps read and compute.

    Attributes:
        name: of buffers that become free together that of the first name is used again first.
        kind: `OF_ROWS`, `OF_ENTRIES` or `OF_SCALAR`.
        register: where it is, for those that are in no buffer.
        buffer: the number of its buffer among those of its kind.
        last_use: the last step that reads it.
    """

    name: str
    kind: int
    register: int | None = None
    buffer: int | None = None
    last_use: int = -1


@dataclass(eq=False)
class _Step:
    """An operation: its target is the index of what it loads or writes."""

    opcode: int
    out: _Value | None
    target: int = 0
    operands: tuple[_Value, ...] = ()


class _Code(NamedTuple):
    """Instructions, and how many buffers they have."""

    instructions: list[list[int]]
    rows: int
    entries: int
    scalars: int


@dataclass
class _Block:
    """Lowers a program for blocks with entries, or for blocks without.

    Attributes:
        is_sweep: whether blocks are rows side by side, which are where variables are; else the
            rows of a block are far from each other, and are loaded.
    """

    inputs: Inputs
    is_sweep: bool
    has_entries: bool = True
    steps: list[_Step] = field(default_factory=list)
    values: dict[object, _Value] = field(default_factory=dict)
    loaded: dict[object, _Value] = field(default_factory=dict)
    results: int = 0
    free: dict[int, list[int]] = field(default_factory=lambda: {kind: [] for kind in _ORDER})
    counts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_ORDER, 0))

    @property
    def zero(self) -> _Value:
        """The sum of no entries, a scalar."""
        register = self.inputs.variables + self.inputs.scalars
        return self.values.setdefault("", _Value("", OF_SCALAR, register))

    def lowered(self, lines: Iterable[Instruction]) -> _Code:
        """The instructions of a program."""
        for line in lines:
            if self.has_entries:
                self._add(line)
            else:
                self._add_without(line)
        self._keep_used()
        if self.is_sweep:
            self._assign_in_place()
        return self._instructions()

    # --- steps of lines ---------------------------------------------------------------------------

    def _value(self, name: str) -> _Value:
        """The value of an argument; variables, entries and scalars are one each."""
        known = leaf(name)
        if known is None:
            return self.values[name]
        letter, index = known
        if known not in self.values:
            register = index + (self.inputs.variables if letter == "s" else 0)
            self.values[known] = _Value(name, _KINDS[letter], register)
        return self.values[known]

    def _new(self, name: str, kind: int) -> _Value | None:
        """The value that a line gives a name, if it does."""
        if not name:
            return None
        self.values[name] = _Value(name, kind)
        return self.values[name]

    def _add(self, line: Instruction) -> None:
        """Adds the steps of a line for blocks with entries; what they read is loaded before."""
        opcode, first = _OPCODES[line.op], leaf(line.operands[0])
        if line.op == "take" and first and not self.is_sweep:
            self.steps.append(_Step(TAKE_VARIABLE, self._new(line.name, OF_ENTRIES), first[1]))
            return
        operands = tuple(map(self._operand, line.operands))
        target = 0
        if line.is_write:
            target = line.target
            self.loaded.pop(("v", target), None)
        elif line.op == "result":
            target = self.results
            self.results += 1
        kinds = {operand.kind for operand in operands} - {OF_SCALAR}
        kind = {SUM: OF_ROWS, TAKE: OF_ENTRIES}.get(opcode, max(kinds))
        self.steps.append(_Step(opcode, self._new(line.name, kind), target, operands))

    def _operand(self, name: str) -> _Value:
        """What a step has for an operand of a line, of which a step may load it."""
        value, known = self._value(name), leaf(name)
        if known is None or known[0] == "s" or (known[0] == "v" and self.is_sweep):
            return value
        if known not in self.loaded:
            of_values = SUM_VALUE if self.inputs.deduplicates else GATHER_VALUE
            opcode = GATHER if known[0] == "v" else of_values
            self.loaded[known] = _Value(f"{value.name}@", value.kind)
            self.steps.append(_Step(opcode, self.loaded[known], known[1]))
        return self.loaded[known]

    def _add_without(self, line: Instruction) -> None:
        """Adds the step of a line for blocks without entries, if it has one."""
        if line.op == "sum":
            self.values[line.name] = self.zero
            return
        is_known = all(leaf(arg) or arg in self.values for arg in line.operands)
        if not is_known or line.op == "take" or (line.is_write and line.op != "assign"):
            return
        operands = tuple(map(self._value, line.operands))
        if any(operand.kind == OF_ENTRIES for operand in operands):
            return
        kind = min(operand.kind for operand in operands)  # rows, unless all are scalars
        target = line.target if line.is_write else 0
        self.steps.append(_Step(_OPCODES[line.op], self._new(line.name, kind), target, operands))

    # --- fewer steps ------------------------------------------------------------------------------

    def _keep_used(self) -> None:
        """Removes the steps whose values are not used."""
        used: set[_Value] = set()
        steps = []
        for step in reversed(self.steps):
            if step.out is None or step.out in used:
                steps.append(step)
                used.update(step.operands)
        self.steps = steps[::-1]

    def _assign_in_place(self) -> None:
        """Removes assignments of values that can be computed in a variable's own rows."""
        producers = {step.out: index for index, step in enumerate(self.steps) if step.out}
        self._find_last_uses()
        removed = set()
        for index, step in enumerate(self.steps):
            if step.opcode == COPY and self._has_home(producers, index):
                step.operands[0].register = step.target
                removed.add(index)
        self.steps = [step for index, step in enumerate(self.steps) if index not in removed]

    def _has_home(self, producers: dict[_Value, int], assignment: int) -> bool:
        """Whether what an assignment assigns can be in the variable from the start.

        That is before it is assigned: nothing reads or writes the variable until then. And
        afterwards it is not needed any more once the variable is written again.
        """
        step = self.steps[assignment]
        (value,), target = step.operands, step.target
        if value not in producers or value.register is not None or value.kind != OF_ROWS:
            return False
        is_overwritten = False
        for index in range(producers[value] + 1, value.last_use + 1):
            other = self.steps[index]
            writes = other.out is None and other.opcode != RESULT and other.target == target
            reads = any(v.kind == OF_ROWS and v.register == target for v in other.operands)
            if index < assignment and (writes or reads):
                return False
            is_overwritten |= writes and index > assignment
            if is_overwritten and value in other.operands:
                return False
        return True

    # --- instructions -----------------------------------------------------------------------------

    def _instructions(self) -> _Code:
        """The instructions of the steps: opcode, count, out, left and right."""
        self._find_last_uses()
        for index, step in enumerate(self.steps):
            # A value may take over the buffer of an operand of the same elements, but of no others.
            if step.opcode < COPY:
                self._free(index, step)
                self._take(step.out)
            else:
                self._take(step.out)
                self._free(index, step)
        written = [*map(self._written, self.steps)]
        return _Code(written, *map(self.counts.__getitem__, _ORDER))

    def _find_last_uses(self) -> None:
        for index, step in enumerate(self.steps):
            for operand in step.operands:
                operand.last_use = index

    def _take(self, value: _Value | None) -> None:
        """Gives the value of a step a buffer, unless it is in a variable's rows."""
        if value is None or value.register is not None:
            return
        if self.free[value.kind]:
            value.buffer = self.free[value.kind].pop()
        else:
            value.buffer = self.counts[value.kind]
            self.counts[value.kind] += 1

    def _free(self, index: int, step: _Step) -> None:
        """Frees the buffers of the operands of a step that are not needed any more."""
        done = {value for value in step.operands if value.last_use == index}
        for value in sorted(done, key=lambda value: value.name):
            if value.buffer is not None:
                self.free[value.kind].append(value.buffer)

    def _written(self, step: _Step) -> list[int]:
        registers = [*map(self._register, step.operands)] or [step.target]
        out = step.target if step.out is None else self._register(step.out)
        opcode, count = step.opcode, OF_ROWS
        kinds = [value.kind for value in step.operands]
        if opcode < COPY:
            assert step.out is not None
            count = step.out.kind
            if len({*kinds}) == 2:
                opcode += SCALAR_VECTOR if kinds[0] == OF_SCALAR else VECTOR_SCALAR
        elif opcode == COPY and kinds == [OF_SCALAR]:
            opcode = FILL
        return [opcode, count, out, registers[0], registers[-1]]

    def _register(self, value: _Value) -> int:
        """Registers are variables, scalars, zero, then the buffers of scalars, rows and entries."""
        if value.buffer is None:
            assert value.register is not None
            return value.register
        register = self.inputs.variables + self.inputs.scalars + 1 + value.buffer
        if value.kind != OF_SCALAR:
            register += self.counts[OF_SCALAR]
        if value.kind == OF_ENTRIES:
            register += self.counts[OF_ROWS]
        return register
