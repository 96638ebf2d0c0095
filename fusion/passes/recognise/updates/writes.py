"""What changes a variable in a graph, and what it is changed by."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import Expressions, Kind, Value

SCATTERS = {"ResourceScatterAdd": "scatter_add", "ResourceScatterSub": "scatter_sub"}
"""What adds to rows, and subtracts from them, and its name in programs."""
ASSIGNS = {"AssignVariableOp": "", "AssignAddVariableOp": "add", "AssignSubVariableOp": "sub"}
"""What writes a variable whole, and how it computes that of what was there."""


@dataclass(frozen=True, eq=False)
class Write:
    """One change of a variable.

    Attributes:
        node: the stock node.
        op: its op.
        variable: where the handle comes from.
        handle: as the op has it.
        value: what is assigned, added or subtracted.
        ids: of the rows that change; None: all change.
    """

    node: str
    op: str
    variable: Tensor
    handle: Tensor
    value: Value
    ids: Tensor | None = None


def match_write(view: GraphView, name: str, expressions: Expressions) -> Write | NoMatch:
    """Explains an op that changes a variable."""
    op, inputs = view.op(name), view.inputs(name)
    handle = inputs[0]
    variable = view.origin(handle)
    if op in SCATTERS:
        value = expressions.entries(inputs[2])
        if isinstance(value, NoMatch):
            return value
        ids = expressions.ids(inputs[1])
        return Write(name, op, variable, view.resolve(handle), value, ids)
    if op in ASSIGNS:
        value = expressions.rows(inputs[1])
        if isinstance(value, NoMatch):
            return value
        return Write(name, op, variable, view.resolve(handle), value)
    return NoMatch(f"the variable is also changed by {name} ({op})", name)


def variables_of(write: Write) -> set[Tensor]:
    """Returns the variable that is changed and those that the change is computed from."""
    read = {v.variable for v in write.value.walk() if v.variable is not None}
    return {write.variable, *read}


def ids_of(write: Write) -> set[Tensor]:
    """Returns the ids of all entries that a change is computed from."""
    found = {value.ids for value in write.value.walk() if value.ids is not None}
    return found if write.ids is None else {*found, write.ids}


def has_entries(write: Write) -> bool:
    """Whether a change is computed from rows of a gradient."""
    return any(value.kind is Kind.ENTRIES for value in write.value.walk())
