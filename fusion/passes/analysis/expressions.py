"""Elementwise integer arithmetic as expressions that can be compared.

What an expression is made of does not matter, only what it computes: constants are folded whether
TensorFlow did so or not, and the operands of a commutative op have one order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.analysis.symbolic_shapes import is_flat_already
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Value

_COMMUTATIVE = frozenset({"add", "mul", "max"})
_NAMES = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Maximum": "max",
    "FloorDiv": "div",
    "FloorMod": "mod",
    "Less": "less",
    "Select": "select",
    "SelectV2": "select",
}
_MAX_DEPTH = 24


@dataclass(frozen=True)
class Call:
    """An operation on expressions."""

    name: str
    operands: tuple[Expression, ...]


Expression = int | str | Call
"""A number, a variable, or an operation."""


def call(name: str, *operands: Expression) -> Expression:
    """Returns the operation in its normal form."""
    if all(isinstance(operand, int) for operand in operands) and name != "select":
        folded = _fold(name, *(operand for operand in operands if isinstance(operand, int)))
        if folded is not None:
            return folded
    if name == "sub" and operands[1] == 0:
        return operands[0]
    if name == "add" and 0 in operands:
        return operands[1 - operands.index(0)]
    if name in _COMMUTATIVE:
        operands = tuple(sorted(operands, key=repr))
    return Call(name, operands)


def expression(
    value: Value, variables: dict[Value, str]
) -> tuple[Expression, tuple[str, ...]] | None:
    """Returns what an integer tensor is, elementwise, in terms of `variables`, and its nodes.

    None when it is made of anything else.
    """
    reader = _Reader(variables)
    result = reader.read(value, _MAX_DEPTH)
    return None if result is None else (result, tuple(reader.nodes))


@dataclass(frozen=True)
class _Reader:
    """Reads expressions, each tensor once.

    Attributes:
        nodes: the nodes read, in order.
        known: what was read.
    """

    variables: dict[Value, str]
    nodes: dict[str, None] = field(default_factory=dict)
    known: dict[Value, Expression | None] = field(default_factory=dict)

    def read(self, value: Value, depth: int) -> Expression | None:
        """Returns the expression of one tensor."""
        passed, value = value.aliases, value.resolved
        if value not in self.known:
            self.known[value] = self._read(value, depth)
        self.nodes.update(dict.fromkeys(passed))
        return self.known[value]

    def _read(self, value: Value, depth: int) -> Expression | None:
        if value in self.variables:
            return self.variables[value]
        constant, node = value.constant, value.producer
        if constant is not None:
            return int(constant) if constant.ndim == 0 and constant.dtype.kind == "i" else None
        if not depth or node.controls:
            return None
        self.nodes[node.name] = None
        if is_integer_cast(node) or is_flat_already(node):
            return self.read(node.input(0), depth - 1)
        if node.op not in _NAMES:
            return None
        operands = [self.read(operand, depth - 1) for operand in node.inputs]
        known = [operand for operand in operands if operand is not None]
        return call(_NAMES[node.op], *known) if len(known) == len(operands) else None


def _fold(name: str, left: int, right: int) -> int | None:
    if name == "add":
        return left + right
    if name == "sub":
        return left - right
    if name == "mul":
        return left * right
    if name == "max":
        return max(left, right)
    if name == "div" and right:
        return left // right
    if name == "mod" and right:
        return left % right
    return None
