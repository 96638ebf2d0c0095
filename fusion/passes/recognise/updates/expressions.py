"""The arithmetic of an optimizer: what is written to a table and to the variables beside it.

Grappler rearranges this arithmetic before any pass sees it (`x / sqrt(y)` becomes `x * rsqrt(y)`,
`x / 2` becomes `x * 0.5`, scalars are multiplied first), and differently from graph to graph. So
what is recognised is no formula but the elementwise ops themselves, whichever there are.

Two kinds of matrices occur: *rows*, of the shape of the table, and *entries*, one row for each id
of the gradient. UnsortedSegmentSum makes rows of entries, a gather entries of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy.typing as npt

from fusion.passes.analysis.stock_bits import RSQRT, has_bits_of
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import ALIAS_OPS, Shape, Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.division import merged_ids, merged_quotient, summed_rows

BINARY = {
    "Add": "add",
    "AddV2": "add",
    "AddN": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "Maximum": "max",
    "Minimum": "min",
}
UNARY = {"Neg": "neg", "Square": "square", "Sqrt": "sqrt", "Abs": "abs", "Sign": "sign"}
"""Elementwise ops whose results are the same however a tensor is cut, and their names."""
ESTIMATED = {RSQRT: "rsqrt"}
"""Those that TensorFlow computes in another way at the end of a tensor, and their names."""


#: What adds up rows, and as which input: as many as there are ids.
_ADDS = {("UnsortedSegmentSum", 0), ("ResourceScatterAdd", 2), ("ResourceScatterSub", 2)}
#: Values that have rows from elsewhere.
_SOURCES = frozenset({"input", "take", "outside"})
#: Ops that may make a matrix of one number, and which inputs that and its sizes are.
_REPEATS = {"Fill": (1, 0), "Tile": (0, 1), "BroadcastTo": (0, 1)}
#: So many ops deep these are sought.
_MAX_DEPTH = 4


class Kind(Enum):
    """What a value is a matrix of."""

    ROWS = "rows"
    ENTRIES = "entries"
    SCALAR = "scalar"


@dataclass(frozen=True, eq=False)
class Expression:
    """A tensor that an optimizer computes with.

    Attributes:
        kind: see above.
        op: what a program calls the op that computes it; "read" of a variable, "input" for what
            the program is given, "outside" for what a stock op makes of an argument.
        source: where the graph has it.
        args: what it is computed from.
        handle: of the variable that is read, as the node has it.
        variable: where that comes from.
        ids: of the rows that are summed up or taken.
        nodes: those that compute it, without what its args need.
    """

    kind: Kind
    op: str
    source: Tensor
    args: tuple[Expression, ...] = ()
    handle: Tensor | None = None
    variable: Tensor | None = None
    ids: Tensor | None = None
    nodes: tuple[str, ...] = ()

    def walk(self) -> Iterator[Expression]:
        """Yields this and all that it is computed from, each once."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            value = stack.pop()
            if id(value) not in seen:
                seen.add(id(value))
                yield value
                stack += value.args


@dataclass
class Expressions:
    """Explains tensors of one shape of tables.

    Attributes:
        shape: [rows, D] of the table.
        dtype: its dtype.
    """

    shape: Shape
    dtype: int
    _known: dict[tuple[Value, Kind], Expression | NoMatch] = field(default_factory=dict)

    def rows(self, value: Value) -> Expression | NoMatch:
        """Explains a matrix of the shape of the table."""
        return self._explained(value, Kind.ROWS)

    def entries(self, value: Value) -> Expression | NoMatch:
        """Explains a matrix of one row for each id."""
        return self._explained(value, Kind.ENTRIES)

    def _explained(self, value: Value, kind: Kind) -> Expression | NoMatch:
        source = _source(value)
        key = (source, kind)
        if key not in self._known:
            # What needs itself is no expression.
            self._known[key] = NoMatch("a value is computed from itself", source.node)
            find = self._rows if kind is Kind.ROWS else self._entries
            self._known[key] = find(source)
        return self._known[key]

    def _rows(self, source: Value) -> Expression | NoMatch:
        node = Node(source.view, source.node)
        if node.is_preserved:
            return NoMatch("a value of the update is named outside the graph", node.name)
        if node.op == "ReadVariableOp":
            return self.read(node.input(0), source)
        if node.op == "UnsortedSegmentSum":
            return self._sum(source)
        return self._elementwise(source, Kind.ROWS)

    def read(self, handle: Value, source: Value) -> Expression | NoMatch:
        """A variable of the table's shape, as a node reads it."""
        if handle.variable_shape != self.shape:
            return NoMatch("a variable of another shape is read", source.node)
        return Expression(
            Kind.ROWS,
            "read",
            source.tensor,
            handle=handle.resolved.tensor,
            variable=handle.origin.tensor,
            nodes=(source.node,),
        )

    def _sum(self, source: Value) -> Expression | NoMatch:
        values, ids, count = source.producer.inputs
        if summed_rows(count) != self.shape[0]:
            return NoMatch("entries are summed up for another number of rows", source.node)
        value = self.entries(values)
        if isinstance(value, NoMatch):
            return value
        nodes = (source.node,)
        return Expression(
            Kind.ROWS, "sum", source.tensor, (value,), ids=source_ids(ids), nodes=nodes
        )

    def _entries(self, source: Value) -> Expression | NoMatch:
        node = Node(source.view, source.node)
        if node.is_preserved:
            return self._input(source)
        quotient = merged_quotient(source)
        if quotient is not None:
            dividend, divisor = self.entries(quotient.dividend), self.rows(quotient.divisor)
            if isinstance(dividend, NoMatch) or isinstance(divisor, NoMatch):
                return NoMatch("a sparse quotient is not understood", node.name)
            taken = _taken(source, divisor, quotient.ids)
            args, nodes = (dividend, taken), quotient.nodes
            return Expression(Kind.ENTRIES, "div", source.tensor, args, ids=taken.ids, nodes=nodes)
        if node.op == "ResourceGather" and not node.int_attr("batch_dims"):
            handle, ids = node.inputs
            read = self.read(handle, source)
            if not isinstance(read, NoMatch) and source.shape != self.shape:
                return _taken(source, read, ids)
        if is_row_gather(node):
            table, ids = node.inputs[:2]
            rows = self.rows(table)
            if not isinstance(rows, NoMatch):
                return _taken(source, rows, ids, nodes=(node.name,))
        value = self._elementwise(source, Kind.ENTRIES)
        if isinstance(value, NoMatch) and node.op in ESTIMATED:
            value = self._outside(source)
        return value if not isinstance(value, NoMatch) else self._input(source)

    def _outside(self, source: Value) -> Expression | NoMatch:
        """Entries that a stock op goes on computing from what the program takes out of rows."""
        value = self.entries(source.producer.input(0))
        if isinstance(value, NoMatch) or not any(v.op == "take" for v in value.walk()):
            return NoMatch("an op is not fused into an update", source.node)
        return Expression(Kind.ENTRIES, "outside", source.tensor, (value,))

    def _input(self, source: Value) -> Expression | NoMatch:
        """Entries that the program is given."""
        shape = source.shape
        if shape is None or len(shape) != 2 or shape[1] not in (self.shape[1], None):
            return NoMatch("it is not known whether updates are a row for each id", source.node)
        return Expression(Kind.ENTRIES, "input", source.tensor)

    def _elementwise(self, source: Value, kind: Kind) -> Expression | NoMatch:
        node = source.producer
        op, name = node.op, node.name
        if op == "_UnaryOpsComposition":
            return self._composition(source, kind)
        if op == "Const":
            return NoMatch("a constant matrix takes part in the update", name)
        operation = self._operation(op)
        if operation is None:
            return NoMatch(f"{op} is not fused into an update", name)
        if op == "AddN" and node.input_count != 2:
            return NoMatch("a sum of more than two terms is not fused into an update", name)
        args = [self._operand(operand, kind) for operand in node.inputs]
        for arg in args:
            if isinstance(arg, NoMatch):
                return arg
        values = tuple(arg for arg in args if isinstance(arg, Expression))
        if all(value.kind is Kind.SCALAR for value in values):
            return NoMatch("one number stands for all rows", name)
        if kind is Kind.ENTRIES and not _are_alike(source.view, values):
            return NoMatch("one row may stand for all ids", name)
        return Expression(kind, operation, source.tensor, values, nodes=(name,))

    def _operation(self, op: str) -> str | None:
        """What a program calls a stock op; None if there is none with the same bits."""
        if op in ESTIMATED:
            is_same = has_bits_of(op, self.dtype, self.shape[1] or 0)
            return ESTIMATED[op] if is_same else None
        return (BINARY | UNARY).get(op)

    def _composition(self, source: Value, kind: Kind) -> Expression | NoMatch:
        """Explains what Grappler makes of several ops of one operand."""
        node = source.producer
        attr = node.attr("op_names")
        ops = [op.decode() for op in attr.list.s] if attr is not None else []
        unknown = next((op for op in ops if op not in UNARY), None)
        if unknown is not None:
            return NoMatch(f"{unknown} is not fused into an update", node.name)
        value = self._explained(node.input(0), kind)
        for op in ops:
            if isinstance(value, NoMatch):
                return value
            value = Expression(kind, UNARY[op], source.tensor, (value,), nodes=(node.name,))
        return value

    def _operand(self, value: Value, kind: Kind) -> Expression | NoMatch:
        if value.shape == ():
            return scalar(value)
        number = self._repeated(value) if kind is Kind.ROWS else None
        return self._explained(value, kind) if number is None else number

    def _repeated(self, value: Value) -> Expression | None:
        """The number that all elements of a matrix of the table's shape are; None if it is none."""
        source = _source(value)
        node = Node(source.view, source.node)
        if node.is_preserved:
            return None
        if node.op == "Const":
            matrix = source.constant
            is_one = matrix is not None and matrix.shape == self.shape and _is_one_number(matrix)
            return Expression(Kind.SCALAR, "input", source.tensor) if is_one else None
        if node.op not in _REPEATS:
            return None
        one, sizes = (node.input(index) for index in _REPEATS[node.op])
        target, shape = sizes.constant, one.shape
        if target is None or tuple(target) != self.shape or shape is None or {*shape} - {1}:
            return None
        return replace(scalar(one), nodes=(node.name,))


def source_ids(ids: Value) -> Tensor:
    """Where the ids of entries come from, through casts and the branches of a quotient."""
    for _ in range(2):
        source, passed = pass_casts(ids, widening=True)
        if not ids.view.preserved.isdisjoint(passed):
            return ids.tensor
        ids = merged_ids(source)
    return ids.tensor


def scalar(value: Value) -> Expression:
    """A number."""
    return Expression(Kind.SCALAR, "input", _source(value).tensor)


def _source(value: Value) -> Value:
    """Where a tensor comes from, or what on the way may be fed."""
    named = (name for name in value.aliases if name in value.view.preserved)
    name = next(named, None)
    return value.resolved if name is None else Node(value.view, name).output()


def _taken(source: Value, rows: Expression, ids: Value, nodes: tuple[str, ...] = ()) -> Expression:
    """Rows by ids."""
    return Expression(
        Kind.ENTRIES, "take", source.tensor, (rows,), ids=source_ids(ids), nodes=nodes
    )


def _are_alike(view: GraphView, values: Iterable[Expression]) -> bool:
    """Whether operands surely have a row for each id, or all are made of the same."""
    matrices = [value for value in values if value.kind is Kind.ENTRIES]
    sources = [{v.source for v in value.walk() if v.op in _SOURCES} for value in matrices]
    if all(source == sources[0] for source in sources):
        return True
    sides = [v for value in matrices for v in value.walk() if v.kind is Kind.ENTRIES]
    taken = [{value.ids} for value in sides if value.op == "take"]
    inputs = {value.source for value in sides if value.op == "input"}
    added = [{*_ids_that_add(Value(view, source), _MAX_DEPTH)} for source in inputs]
    return bool(set.intersection(*taken, *added))


def _ids_that_add(value: Value, depth: int) -> Iterator[Tensor | None]:
    """Yields the ids by which stock ops add what is computed from this matrix alone."""
    for node, position, _ in value.uses:
        if (node.op, position) in _ADDS:
            yield source_ids(node.input(1))
        others = [operand for operand in node.inputs if operand.resolved != value]
        is_alone = all(other.shape == () for other in others)
        is_known = node.op in BINARY or node.op in UNARY or node.op in ALIAS_OPS
        if depth and is_alone and is_known:
            yield from _ids_that_add(node.output(), depth - 1)


def _is_one_number(matrix: npt.NDArray[Any]) -> bool:
    """Whether all elements have the same bits."""
    return matrix.size > 0 and matrix.tobytes() == matrix.flat[0].tobytes() * matrix.size
