"""What changes a variable in a graph, and what it is changed by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusion.passes.analysis.stock_bits import APPLIES, has_bits_of
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import (
    Expression,
    Expressions,
    Kind,
    scalar,
    source_ids,
)
from fusion.schema.update_program import parse

SCATTERS = {"ResourceScatterAdd": "scatter_add", "ResourceScatterSub": "scatter_sub"}
"""What adds to rows, and subtracts from them, and its name in programs."""
ASSIGNS = {
    "AssignVariableOp": "assign",
    "AssignAddVariableOp": "add",
    "AssignSubVariableOp": "sub",
}
"""What writes a variable whole, and how it computes that of what was there."""


BY_ROWS = frozenset((*SCATTERS, *APPLIES))
"""What changes rows by their ids."""
WRITERS = BY_ROWS | ASSIGNS.keys()


@dataclass(frozen=True, eq=False)
class Write:
    """One change of a variable.

    Attributes:
        node: the stock node.
        operation: what a program does with the value: "scatter_add" or another scatter, "assign",
            or "add" or "sub" before an "assign".
        variable: where the handle comes from.
        handle: as the op has it.
        value: what is assigned, added or subtracted.
        ids: of the rows that change; None: all change.
        needs_distinct: whether it is so only if no id is repeated.
    """

    node: str
    operation: str
    variable: Tensor
    handle: Tensor
    value: Expression
    ids: Tensor | None = None
    needs_distinct: bool = False


def match_writes(node: Node, expressions: Expressions) -> tuple[Write, ...] | NoMatch:
    """Explains an op that changes variables."""
    op, name, inputs = node.op, node.name, node.inputs
    if op in APPLIES:
        return _applied(node, expressions)
    variable, handle = inputs[0].origin.tensor, inputs[0].resolved.tensor
    if op in SCATTERS:
        value, ids = expressions.entries(inputs[2]), source_ids(inputs[1])
        if isinstance(value, NoMatch):
            return value
        return (Write(name, SCATTERS[op], variable, handle, value, ids),)
    if op in ASSIGNS:
        value = expressions.rows(inputs[1])
        if isinstance(value, NoMatch):
            return value
        return (Write(name, ASSIGNS[op], variable, handle, value),)
    return NoMatch(f"the variable is also changed by {name} ({op})", name)


def changed_handles(node: Node) -> tuple[Value, ...]:
    """Returns the handles of the variables that an op changes."""
    formula = APPLIES.get(node.op)
    return node.inputs[: 1 if formula is None else formula.variables]


def _applied(node: Node, expressions: Expressions) -> tuple[Write, ...] | NoMatch:
    """Explains an op that reads and changes rows of a table and of its slots."""
    op, name, inputs = node.op, node.name, node.inputs
    formula = APPLIES[op]
    if not has_bits_of(op, expressions.dtype, expressions.shape[1] or 0):
        return NoMatch(f"{op} rounds in another way here", name)
    updates_slots = node.attr("update_slots")
    if updates_slots is not None and not updates_slots.b:
        return NoMatch(f"{op} leaves its slots", name)
    handles = inputs[: formula.variables]
    if len({handle.origin for handle in handles}) < len(handles):
        return NoMatch("one variable is changed twice", name)
    grad, ids = expressions.entries(inputs[-2]), source_ids(inputs[-1])
    known: dict[str, Expression | NoMatch] = {"x0": grad}
    for index, handle in enumerate(handles):
        # What the op reads is read by the program: no node does so.
        read = expressions.read(handle, node.output())
        known[f"v{index}"] = read if isinstance(read, NoMatch) else replace(read, nodes=())
    for index, number in enumerate(inputs[formula.variables : -2]):
        known[f"s{index}"] = scalar(number)
    failure = next((value for value in known.values() if isinstance(value, NoMatch)), None)
    if failure is not None:
        return failure
    values = {key: value for key, value in known.items() if isinstance(value, Expression)}
    writes = []
    for line in parse(formula.program).instructions:
        args = tuple(values[arg] for arg in line.operands)
        if line.is_write:
            handle = handles[line.target]
            variable, resolved = handle.origin.tensor, handle.resolved.tensor
            writes.append(Write(name, line.op, variable, resolved, args[0], ids, True))
        else:
            taken = ids if line.op == "take" else None
            values[line.name] = Expression(Kind.ENTRIES, line.op, Tensor(name), args, ids=taken)
    return tuple(writes)


def variables_of(write: Write) -> set[Tensor]:
    """Returns the variable that is changed and those that the change is computed from."""
    read = {v.variable for v in write.value.walk() if v.variable is not None}
    return {write.variable, *read}


def ids_of(write: Write) -> set[Tensor]:
    """Returns the ids of all entries that a change is computed from."""
    ids = {value.ids for value in write.value.walk() if value.ids is not None}
    return ids if write.ids is None else {*ids, write.ids}


def has_entries(write: Write) -> bool:
    """Whether a change is computed from rows of a gradient."""
    return any(value.kind is Kind.ENTRIES for value in write.value.walk())
