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
_DEEPEST = 4


class Kind(Enum):
    """What a value is a matrix of."""

    ROWS = "rows"
    ENTRIES = "entries"
    SCALAR = "scalar"


@dataclass(frozen=True, eq=False)
class Value:
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
    args: tuple[Value, ...] = ()
    handle: Tensor | None = None
    variable: Tensor | None = None
    ids: Tensor | None = None
    nodes: tuple[str, ...] = ()

    def walk(self) -> Iterator[Value]:
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
        view: the graph.
        shape: [rows, D] of the table.
        dtype: its dtype.
    """

    view: GraphView
    shape: Shape
    dtype: int
    _known: dict[tuple[Tensor, Kind], Value | NoMatch] = field(default_factory=dict)

    def rows(self, tensor: Tensor) -> Value | NoMatch:
        """Explains a matrix of the shape of the table."""
        return self._explained(tensor, Kind.ROWS)

    def entries(self, tensor: Tensor) -> Value | NoMatch:
        """Explains a matrix of one row for each id."""
        return self._explained(tensor, Kind.ENTRIES)

    def ids(self, tensor: Tensor) -> Tensor:
        """Where the ids of entries come from, through casts and the branches of a quotient."""
        for _ in range(2):
            source, passed = pass_casts(self.view, tensor, widening=True)
            if not self.view.preserved.isdisjoint(passed):
                return tensor
            tensor = merged_ids(self.view, source)
        return tensor

    def _source(self, tensor: Tensor) -> Tensor:
        """Where a tensor comes from, or what on the way may be fed."""
        named = (name for name in self.view.aliases(tensor) if name in self.view.preserved)
        return Tensor(name) if (name := next(named, "")) else self.view.resolve(tensor)

    def _explained(self, tensor: Tensor, kind: Kind) -> Value | NoMatch:
        source = self._source(tensor)
        key = (source, kind)
        if key not in self._known:
            # What needs itself is no expression.
            self._known[key] = NoMatch("a value is computed from itself", source.node)
            find = self._rows if kind is Kind.ROWS else self._entries
            self._known[key] = find(source)
        return self._known[key]

    def _rows(self, source: Tensor) -> Value | NoMatch:
        view, op = self.view, self.view.op(source.node)
        if source.node in view.preserved:
            return NoMatch("a value of the update is named outside the graph", source.node)
        if op == "ReadVariableOp":
            return self.read(view.inputs(source.node)[0], source)
        if op == "UnsortedSegmentSum":
            return self._sum(source)
        return self._elementwise(source, Kind.ROWS)

    def read(self, handle: Tensor, source: Tensor) -> Value | NoMatch:
        """A variable of the table's shape, as a node reads it."""
        view = self.view
        if view.variable_shape(handle) != self.shape:
            return NoMatch("a variable of another shape is read", source.node)
        return Value(
            Kind.ROWS,
            "read",
            source,
            handle=view.resolve(handle),
            variable=view.origin(handle),
            nodes=(source.node,),
        )

    def _sum(self, source: Tensor) -> Value | NoMatch:
        values, ids, count = self.view.inputs(source.node)
        if summed_rows(self.view, count) != self.shape[0]:
            return NoMatch("entries are summed up for another number of rows", source.node)
        value = self.entries(values)
        if isinstance(value, NoMatch):
            return value
        return Value(Kind.ROWS, "sum", source, (value,), ids=self.ids(ids), nodes=(source.node,))

    def _entries(self, source: Tensor) -> Value | NoMatch:
        view, op = self.view, self.view.op(source.node)
        if source.node in view.preserved:
            return self._input(source)
        quotient = merged_quotient(view, source)
        if quotient is not None:
            dividend, divisor = self.entries(quotient.dividend), self.rows(quotient.divisor)
            if isinstance(dividend, NoMatch) or isinstance(divisor, NoMatch):
                return NoMatch("a sparse quotient is not understood", source.node)
            ids = self.ids(quotient.ids)
            taken = Value(Kind.ENTRIES, "take", source, (divisor,), ids=ids)
            return Value(
                Kind.ENTRIES, "div", source, (dividend, taken), ids=ids, nodes=quotient.nodes
            )
        if op == "ResourceGather" and not view.int_attr(source.node, "batch_dims"):
            handle, ids = view.inputs(source.node)
            read = self.read(handle, source)
            if not isinstance(read, NoMatch) and view.shape(source) != self.shape:
                return Value(Kind.ENTRIES, "take", source, (read,), ids=self.ids(ids))
        if is_row_gather(view, source.node):
            table, ids = view.inputs(source.node)[:2]
            rows = self.rows(table)
            if not isinstance(rows, NoMatch):
                return Value(
                    Kind.ENTRIES, "take", source, (rows,), ids=self.ids(ids), nodes=(source.node,)
                )
        value = self._elementwise(source, Kind.ENTRIES)
        if isinstance(value, NoMatch) and op in ESTIMATED:
            value = self._outside(source)
        return value if not isinstance(value, NoMatch) else self._input(source)

    def _outside(self, source: Tensor) -> Value | NoMatch:
        """Entries that a stock op goes on computing from what the program takes out of rows."""
        value = self.entries(self.view.inputs(source.node)[0])
        if isinstance(value, NoMatch) or not any(v.op == "take" for v in value.walk()):
            return NoMatch("an op is not fused into an update", source.node)
        return Value(Kind.ENTRIES, "outside", source, (value,))

    def _input(self, source: Tensor) -> Value | NoMatch:
        """Entries that the program is given."""
        shape = self.view.shape(source)
        if shape is None or len(shape) != 2 or shape[1] not in (self.shape[1], None):
            return NoMatch("it is not known whether updates are a row for each id", source.node)
        return Value(Kind.ENTRIES, "input", source)

    def _elementwise(self, source: Tensor, kind: Kind) -> Value | NoMatch:
        view, name = self.view, source.node
        op = view.op(name)
        if op == "_UnaryOpsComposition":
            return self._composition(source, kind)
        if op == "Const":
            return NoMatch("a constant matrix takes part in the update", name)
        operation = self._operation(op)
        if operation is None:
            return NoMatch(f"{op} is not fused into an update", name)
        if op == "AddN" and len(view.inputs(name)) != 2:
            return NoMatch("a sum of more than two terms is not fused into an update", name)
        args = [self._operand(tensor, kind) for tensor in view.inputs(name)]
        for arg in args:
            if isinstance(arg, NoMatch):
                return arg
        values = tuple(arg for arg in args if isinstance(arg, Value))
        if all(value.kind is Kind.SCALAR for value in values):
            return NoMatch("one number stands for all rows", name)
        if kind is Kind.ENTRIES and not self._are_alike(values):
            return NoMatch("one row may stand for all ids", name)
        return Value(kind, operation, source, values, nodes=(name,))

    def _operation(self, op: str) -> str | None:
        """What a program calls a stock op; None if there is none with the same bits."""
        if op in ESTIMATED:
            is_same = has_bits_of(op, self.dtype, self.shape[1] or 0)
            return ESTIMATED[op] if is_same else None
        return (BINARY | UNARY).get(op)

    def _are_alike(self, values: Iterable[Value]) -> bool:
        """Whether operands surely have a row for each id, or all are made of the same."""
        matrices = [value for value in values if value.kind is Kind.ENTRIES]
        sources = [{v.source for v in value.walk() if v.op in _SOURCES} for value in matrices]
        if all(source == sources[0] for source in sources):
            return True
        sides = [v for value in matrices for v in value.walk() if v.kind is Kind.ENTRIES]
        taken = [{value.ids} for value in sides if value.op == "take"]
        given = {value.source for value in sides if value.op == "input"}
        added = [set(self._ids_that_add(source, _DEEPEST)) for source in given]
        return bool(set.intersection(*taken, *added))

    def _ids_that_add(self, tensor: Tensor, depth: int) -> Iterator[Tensor | None]:
        """Yields the ids by which stock ops add what is computed from this matrix alone."""
        view = self.view
        for use in view.tensor_uses(tensor):
            op = view.op(use.node)
            if (op, use.position) in _ADDS:
                yield self.ids(view.inputs(use.node)[1])
            others = [t for t in view.inputs(use.node) if view.resolve(t) != tensor]
            is_alone = all(view.shape(other) == () for other in others)
            if depth and is_alone and (op in BINARY or op in UNARY or op in ALIAS_OPS):
                yield from self._ids_that_add(Tensor(use.node), depth - 1)

    def _composition(self, source: Tensor, kind: Kind) -> Value | NoMatch:
        """Explains what Grappler makes of several ops of one operand."""
        view, name = self.view, source.node
        attr = view.attr(name, "op_names")
        ops = [op.decode() for op in attr.list.s] if attr is not None else []
        unknown = next((op for op in ops if op not in UNARY), None)
        if unknown is not None:
            return NoMatch(f"{unknown} is not fused into an update", name)
        value = self._explained(view.inputs(name)[0], kind)
        for op in ops:
            if isinstance(value, NoMatch):
                return value
            value = Value(kind, UNARY[op], source, (value,), nodes=(name,))
        return value

    def _operand(self, tensor: Tensor, kind: Kind) -> Value | NoMatch:
        if self.view.shape(tensor) == ():
            return self.scalar(tensor)
        number = self._repeated(tensor) if kind is Kind.ROWS else None
        return self._explained(tensor, kind) if number is None else number

    def _repeated(self, tensor: Tensor) -> Value | None:
        """The number that all elements of a matrix of the table's shape are; None if it is none."""
        view, source = self.view, self._source(tensor)
        name, op = source.node, view.op(source.node)
        if name in view.preserved:
            return None
        if op == "Const":
            matrix = view.constant(source)
            is_one = matrix is not None and matrix.shape == self.shape and _is_one_number(matrix)
            return Value(Kind.SCALAR, "input", source) if is_one else None
        if op not in _REPEATS:
            return None
        one, sizes = (view.inputs(name)[index] for index in _REPEATS[op])
        target, shape = view.constant(sizes), view.shape(one)
        if target is None or tuple(target) != self.shape or shape is None or {*shape} - {1}:
            return None
        return replace(self.scalar(one), nodes=(name,))

    def scalar(self, tensor: Tensor) -> Value:
        """A number."""
        return Value(Kind.SCALAR, "input", self._source(tensor))


def _is_one_number(matrix: npt.NDArray[Any]) -> bool:
    """Whether all elements have the same bits."""
    return matrix.size > 0 and matrix.tobytes() == matrix.flat[0].tobytes() * matrix.size
