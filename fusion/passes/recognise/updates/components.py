"""Which variables of a graph an optimizer updates together: a table and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.stock_bits import APPLIES
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Node, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import Expressions
from fusion.passes.recognise.updates.writes import (
    BY_ROWS,
    WRITERS,
    Write,
    changed_handles,
    has_entries,
    match_writes,
    variables_of,
)
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import UPDATE_DTYPES

_DTYPES = {DTYPES[name].enum for name in UPDATE_DTYPES}
_HALVES = {types_pb2.DT_HALF: "float16", types_pb2.DT_BFLOAT16: "bfloat16"}
#: So many nodes are looked at for a sum of entries.
_MAX_NODES = 64


@dataclass(frozen=True)
class Component:
    """Matrices of one shape that are computed from each other in a step.

    Attributes:
        variables: where their handles come from.
        writes: all that changes them, as far as it was explained.
        failures: why other changes were not, in file order.
        shape: of each matrix.
        dtype: of each matrix.
    """

    variables: tuple[Tensor, ...]
    writes: tuple[Write, ...]
    failures: tuple[NoMatch, ...]
    shape: tuple[int, int]
    dtype: int


def components(view: GraphView) -> Iterator[Component]:
    """Yields those in which rows of a gradient take part, or rows alone are changed."""
    groups = _Groups()
    matched: dict[Node, tuple[Write, ...] | NoMatch] = {}
    changed: dict[Node, Tensor] = {}
    expressions: dict[tuple[Shape, int], Expressions] = {}
    for node in named(view, *WRITERS):
        dtype, variables = _dtype(node), [handle.origin for handle in changed_handles(node)]
        shape = variables[0].variable_shape
        if dtype not in _DTYPES or shape is None or len(shape) != 2 or None in shape:
            continue
        known = expressions.setdefault((shape, dtype), Expressions(shape, dtype))
        writes = match_writes(node, known)
        matched[node], changed[node] = writes, variables[0].tensor
        read = () if isinstance(writes, NoMatch) else (variables_of(write) for write in writes)
        groups.join(*(variable.tensor for variable in variables), *chain(*read))
    yield from _of_other_tables(view)
    for group in groups.all():
        nodes = [node for node, variable in changed.items() if variable in group]
        failures = {node: match for node in nodes if isinstance(match := matched[node], NoMatch)}
        explained = (match for node in nodes if not isinstance(match := matched[node], NoMatch))
        writes = tuple(chain(*explained))
        rows, dim = view.variable_shape(group[0]) or (0, 0)
        sums = (node for node in failures if _sums(node, (rows, dim)))
        is_by_rows = any(node.op in BY_ROWS for node in nodes)
        if not any(map(has_entries, writes)) and not is_by_rows and not any(sums):
            continue
        yield Component(
            variables=group,
            writes=writes,
            failures=tuple(failures.values()),
            shape=(rows or 0, dim or 0),
            dtype=_dtype(nodes[0]),
        )


def _of_other_tables(view: GraphView) -> Iterator[Component]:
    """Yields the changes of rows of tables that are not looked at."""
    for node in named(view, *BY_ROWS):
        variable, dtype = node.input(0).origin, _dtype(node)
        shape = variable.variable_shape
        is_known = shape is not None and None not in shape
        if dtype in _HALVES:
            reason = f"updates of tables of {_HALVES[dtype]} stay as they are"
        elif dtype in _DTYPES and not is_known:
            reason = "the static shape of the table is not known"
        else:
            continue
        yield Component((variable.tensor,), (), (NoMatch(reason, node.name),), (0, 0), dtype)


def _dtype(node: Node) -> int:
    """Of the variables that a node changes."""
    return node.type_attr("T" if node.op in APPLIES else "dtype")


def _sums(write: Node, shape: Shape) -> bool:
    """Whether a variable of this shape is changed by something that has summed up rows."""
    stack, seen = [write.input(1).resolved], set[Node]()
    while stack and len(seen) < _MAX_NODES:
        value = stack.pop()
        node = value.producer
        if node in seen or not _may_be_of(value.shape, shape):
            continue
        if node.op == "UnsortedSegmentSum":
            return True
        seen.add(node)
        stack += (operand.resolved for operand in node.inputs)
    return False


def _may_be_of(sizes: Shape | None, shape: Shape) -> bool:
    """Whether a tensor may have the elements of a matrix.

    Keras up to 3.15 squeezes that of a single row to a vector, and adds it as a bias.
    """
    if sizes is not None and len(sizes) == 1 and shape[0] == 1:
        sizes = (1, *sizes)
    if sizes is None or len(sizes) != len(shape):
        return sizes is None
    return all(size in (None, of) for size, of in zip(sizes, shape, strict=True))


class _Groups:
    """Variables that belong together."""

    def __init__(self) -> None:
        self._parents: dict[Tensor, Tensor] = {}

    def join(self, *variables: Tensor) -> None:
        """Puts variables into one group."""
        first = self._root(variables[0])
        for variable in variables:
            self._parents[self._root(variable)] = first

    def all(self) -> list[tuple[Tensor, ...]]:
        """Returns the groups, in the order in which they were met."""
        groups: dict[Tensor, list[Tensor]] = {}
        for variable in self._parents:
            groups.setdefault(self._root(variable), []).append(variable)
        return [tuple(group) for group in groups.values()]

    def _root(self, variable: Tensor) -> Tensor:
        self._parents.setdefault(variable, variable)
        while (parent := self._parents[variable]) != variable:
            variable = parent
        return variable
