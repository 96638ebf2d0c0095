"""The programs of FusedEmbeddingUpdate: what an optimizer does to a table and its slots, as text.

    g=sum(x0);a=sub(g,v1);b=mul(s0,a);c=add(v1,b);assign(v1,c);o=sub(v0,c);assign(v0,o)

Lines are executed in order. `v<k>` are the rows of variable k as they are at that line, `x<k>` the
entries of value k, `s<k>` scalar k; every other name is assigned once. A value is *rows*, one
for each row of the variables; *entries*, one for each id; or a *scalar*, which goes with both.

What is executed are instructions that `updates.cpu_kernels.lowering` makes of a program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import whitespace
from typing import Final

#: No program is longer: to lower one takes time that grows with the square of its length.
MAX_BYTES: Final = 1 << 16

ROWS: Final = "rows"
ENTRIES: Final = "entries"
SCALAR: Final = "scalar"

#: Elementwise operations of two operands, and of one.
BINARY = ("add", "sub", "mul", "div", "max", "min")
UNARY = ("neg", "square", "sqrt", "rsqrt", "abs", "sign")
ELEMENTWISE = frozenset((*BINARY, *UNARY))

SCATTERS = ("scatter_add", "scatter_sub", "scatter_update")

#: What other operations take, and what they give; a write gives nothing. "v" is a variable itself.
_SIGNATURES: dict[str, tuple[tuple[str, ...], str]] = {
    "sum": ((ENTRIES,), ROWS),
    "take": ((ROWS,), ENTRIES),
    "assign": (("v", ROWS), ""),
    "scatter_add": (("v", ENTRIES), ""),
    "scatter_sub": (("v", ENTRIES), ""),
    "scatter_update": (("v", ENTRIES), ""),
    "result": ((ENTRIES,), ""),
}

_LINE = re.compile(r"(?:([A-Za-z_]\w*)=)?(\w+)\(([^()]*)\)", re.ASCII)
_LEAF = re.compile(r"([xsv])(\d+)", re.ASCII)
_KINDS = {"x": ENTRIES, "s": SCALAR, "v": ROWS}


def leaf(name: str) -> tuple[str, int] | None:
    """The letter and the index of a value, scalar or variable; None for any other name."""
    match = _LEAF.fullmatch(name)
    return (match[1], int(match[2])) if match else None


@dataclass(frozen=True)
class Instruction:
    """A line: `name=op(args)`, where the name is "" for one without a value."""

    name: str
    op: str
    args: tuple[str, ...]
    text: str

    @property
    def is_write(self) -> bool:
        """Whether it changes a variable, which is its first argument."""
        return self.op == "assign" or self.op in SCATTERS

    @property
    def target(self) -> int:
        """The index of the variable that a write changes."""
        return int(self.args[0][1:])

    @property
    def operands(self) -> tuple[str, ...]:
        """The arguments that are read."""
        return self.args[1:] if self.is_write else self.args


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
      instructions: its lines.
      kinds: of each name that has a value, and of each argument.
    """

    instructions: tuple[Instruction, ...]
    kinds: dict[str, str]


def parse(text: str) -> Program:
    """Parses the text of a program.

    Raises:
      ValueError: with the line: it is no operation, of other operands than that has, or of a name
        without a value; the name that it gives a value has one already. It is too long.
    """
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"program has {size} bytes, more than {MAX_BYTES}")
    kinds: dict[str, str] = {}
    instructions = tuple(_instruction(line.strip(whitespace), kinds) for line in text.split(";"))
    return Program(instructions, kinds)


def _instruction(text: str, kinds: dict[str, str]) -> Instruction:
    """Parses a line; adds the kinds of its names to `kinds`."""
    match = _LINE.fullmatch(text)
    if not match:
        raise _error(text, "it is not name=op(args)")
    name, op, inside = match[1] or "", match[2], match[3]
    args = tuple(arg.strip(whitespace) for arg in inside.split(","))
    for arg in args:
        if known := leaf(arg):
            kinds[arg] = _KINDS[known[0]]
        elif arg not in kinds:
            raise _error(text, f"{arg!r} has no value")
    result = _result(text, op, args, kinds)
    if bool(name) != bool(result):
        raise _error(text, f"{op} gives {'a' if result else 'no'} value")
    if name in kinds or leaf(name):
        raise _error(text, f"{name} has a value already")
    if name:
        kinds[name] = result
    return Instruction(name, op, args, text)


def _result(text: str, op: str, args: tuple[str, ...], kinds: dict[str, str]) -> str:
    """The kind of the result of an operation, "" for none."""
    operand_kinds = [kinds[arg] for arg in args]
    if op in ELEMENTWISE:
        if len(args) != (2 if op in BINARY else 1):
            raise _error(text, f"{op} has not {len(args)} operands")
        element_kinds = {*operand_kinds} - {SCALAR}
        if len(element_kinds) != 1:
            raise _error(text, f"{op} of {' and '.join(operand_kinds)}")
        return element_kinds.pop()
    if op not in _SIGNATURES:
        raise _error(text, f"there is no operation {op!r}")
    wanted, result = _SIGNATURES[op]
    is_variable = wanted[0] != "v" or (leaf(args[0]) or "x")[0] == "v"
    if [kind.replace("v", ROWS) for kind in wanted] != operand_kinds or not is_variable:
        raise _error(text, f"{op} takes {', '.join(wanted)}")
    return result


def _error(text: str, problem: str) -> ValueError:
    return ValueError(f"program: {text!r}: {problem}")
