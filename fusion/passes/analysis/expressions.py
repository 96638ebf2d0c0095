"""Elementwise integer arithmetic as expressions that can be compared.

What an expression is made of does not matter, only what it computes: constants are folded whether
TensorFlow did so or not, and the operands of a commutative op have one order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.analysis.symbolic_shapes import is_flat_already
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView

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
_DEEPEST = 24


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
    view: GraphView, tensor: Tensor, variables: dict[Tensor, str]
) -> tuple[Expression, tuple[str, ...]] | None:
    """Returns what an integer tensor is, elementwise, in terms of `variables`, and its nodes.

    None when it is made of anything else.
    """
    reader = _Reader(view, variables)
    value = reader.read(tensor, _DEEPEST)
    return None if value is None else (value, tuple(reader.nodes))


@dataclass(frozen=True)
class _Reader:
    """Reads expressions, each tensor once.

    Attributes:
        nodes: the nodes read, in order.
        known: what was read.
    """

    view: GraphView
    variables: dict[Tensor, str]
    nodes: dict[str, None] = field(default_factory=dict)
    known: dict[Tensor, Expression | None] = field(default_factory=dict)

    def read(self, tensor: Tensor, depth: int) -> Expression | None:
        """Returns the expression of one tensor."""
        passed = self.view.aliases(tensor)
        tensor = self.view.resolve(tensor)
        if tensor not in self.known:
            self.known[tensor] = self._read(tensor, depth)
        self.nodes.update(dict.fromkeys(passed))
        return self.known[tensor]

    def _read(self, tensor: Tensor, depth: int) -> Expression | None:
        view, name = self.view, tensor.node
        if tensor in self.variables:
            return self.variables[tensor]
        value = view.constant(tensor)
        if value is not None:
            return int(value) if value.ndim == 0 and value.dtype.kind == "i" else None
        op, inputs = view.op(name), view.inputs(name)
        if not depth or view.controls(name):
            return None
        self.nodes[name] = None
        if is_integer_cast(view, name) or is_flat_already(view, name):
            return self.read(inputs[0], depth - 1)
        if op not in _NAMES:
            return None
        operands = [self.read(tensor, depth - 1) for tensor in inputs]
        known = [operand for operand in operands if operand is not None]
        return call(_NAMES[op], *known) if len(known) == len(operands) else None


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
