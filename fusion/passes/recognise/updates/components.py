"""Which variables of a graph an optimizer updates together: a table and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import Expressions
from fusion.passes.recognise.updates.writes import (
    ASSIGNS,
    SCATTERS,
    Write,
    has_entries,
    match_write,
    variables_of,
)
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import UPDATE_DTYPES

_DTYPES = {DTYPES[name].enum for name in UPDATE_DTYPES}
_HALVES = {types_pb2.DT_HALF: "float16", types_pb2.DT_BFLOAT16: "bfloat16"}
#: So many nodes are looked at for a sum of entries.
_MOST_NODES = 64


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
    changes = {
        name: view.origin(view.inputs(name)[0])
        for name in view.named(*SCATTERS, *ASSIGNS)
        if view.type_attr(name, "dtype") in _DTYPES
    }
    groups = _Groups()
    matched: dict[str, Write | NoMatch] = {}
    expressions: dict[tuple[Shape, int], Expressions] = {}
    for name, variable in changes.items():
        shape, dtype = view.variable_shape(variable), view.type_attr(name, "dtype")
        if shape is None or len(shape) != 2 or None in shape:
            continue
        known = expressions.setdefault((shape, dtype), Expressions(view, shape, dtype))
        write = matched[name] = match_write(view, name, known)
        groups.join(variable, *(variables_of(write) if isinstance(write, Write) else ()))
    yield from _of_other_tables(view)
    for variables in groups.all():
        found = [matched[name] for name, v in changes.items() if v in variables and name in matched]
        names = [name for name, v in changes.items() if v in variables and name in matched]
        writes = tuple(write for write in found if isinstance(write, Write))
        rows, dim = view.variable_shape(variables[0]) or (0, 0)
        sums = (n for n in names if isinstance(matched[n], NoMatch) and _sums(view, n, (rows, dim)))
        is_by_rows = not SCATTERS.keys().isdisjoint(map(view.op, names))
        if not any(map(has_entries, writes)) and not is_by_rows and not any(sums):
            continue
        yield Component(
            variables=variables,
            writes=writes,
            failures=tuple(failure for failure in found if isinstance(failure, NoMatch)),
            shape=(rows or 0, dim or 0),
            dtype=view.type_attr(names[0], "dtype"),
        )


def _of_other_tables(view: GraphView) -> Iterator[Component]:
    """Yields the changes of rows of tables that are not looked at."""
    for name in view.named(*SCATTERS):
        variable, dtype = view.origin(view.inputs(name)[0]), view.type_attr(name, "dtype")
        shape = view.variable_shape(variable)
        is_known = shape is not None and None not in shape
        if dtype in _HALVES:
            reason = f"updates of tables of {_HALVES[dtype]} stay as they are"
        elif dtype in _DTYPES and not is_known:
            reason = "the static shape of the table is not known"
        else:
            continue
        yield Component((variable,), (), (NoMatch(reason, name),), (0, 0), dtype)


def _sums(view: GraphView, write: str, shape: Shape) -> bool:
    """Whether a variable of this shape is changed by something that has summed up rows."""
    stack, seen = [view.resolve(view.inputs(write)[1])], set[str]()
    while stack and len(seen) < _MOST_NODES:
        tensor = stack.pop()
        sizes = view.shape(tensor)
        if tensor.node in seen or (sizes is not None and len(sizes) != len(shape)):
            continue
        if any(size not in (None, of) for size, of in zip(sizes or (), shape, strict=False)):
            continue
        if view.op(tensor.node) == "UnsortedSegmentSum":
            return True
        seen.add(tensor.node)
        stack += map(view.resolve, view.inputs(tensor.node))
    return False


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
