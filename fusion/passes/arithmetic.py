"""Elementwise integer arithmetic as expressions that can be compared.

What an expression is made of does not matter, only what it computes: constants are folded whether
TensorFlow did so or not, and the operands of a commutative op have one order.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.idioms import is_integer_cast
from fusion.passes.shapes import is_flat_already

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
    nodes: dict[str, None] = {}
    found = _expression(view, tensor, variables, nodes, _DEEPEST)
    return None if found is None else (found, tuple(nodes))


def _expression(
    view: GraphView,
    tensor: Tensor,
    variables: dict[Tensor, str],
    nodes: dict[str, None],
    depth: int,
) -> Expression | None:
    passed = view.aliases(tensor)
    tensor = view.resolve(tensor)
    if tensor in variables:
        nodes.update(dict.fromkeys(passed))
        return variables[tensor]
    value = view.constant(tensor)
    if value is not None:
        return int(value) if value.ndim == 0 and value.dtype.kind == "i" else None
    op, inputs = view.op(tensor.node), view.inputs(tensor.node)
    if not depth or view.controls(tensor.node):
        return None
    nodes.update(dict.fromkeys((*passed, tensor.node)))
    if is_integer_cast(view, tensor.node) or is_flat_already(view, tensor.node):
        return _expression(view, inputs[0], variables, nodes, depth - 1)
    if op not in _NAMES:
        return None
    operands = [_expression(view, one, variables, nodes, depth - 1) for one in inputs]
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
