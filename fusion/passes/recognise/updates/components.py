"""Which variables of a graph an optimizer updates together: a table and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    for variables in groups.all():
        found = [matched[name] for name, v in changes.items() if v in variables and name in matched]
        names = [name for name, v in changes.items() if v in variables and name in matched]
        writes = tuple(write for write in found if isinstance(write, Write))
        if not any(map(has_entries, writes)) and SCATTERS.keys().isdisjoint(map(view.op, names)):
            continue
        rows, dim = view.variable_shape(variables[0]) or (0, 0)
        yield Component(
            variables=variables,
            writes=writes,
            failures=tuple(failure for failure in found if isinstance(failure, NoMatch)),
            shape=(rows or 0, dim or 0),
            dtype=view.type_attr(names[0], "dtype"),
        )


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
