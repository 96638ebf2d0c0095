"""Which tensors are the same in all runs: handles of static hash tables, and scalar constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.handles import shared_name
from fusion.passes.graph.calls import CALLS, called, callees, first_argument
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView

#: What makes such a table. TensorFlow refuses to insert into one, and to remove from it.
STATIC_TABLE = "HashTableV2"

#: A function's argument.
_Argument = tuple[str, str]
_LOOPS = frozenset({"While", "StatelessWhile"})
_FOLLOWED = frozenset(
    {types_pb2.DT_RESOURCE, types_pb2.DT_STRING, types_pb2.DT_INT32, types_pb2.DT_INT64}
)

#: What arguments are bound to outside of the graph: a table's name, a constant of the main graph.
Bound = str | Tensor | None


class StaticTables:
    """Follows tables and scalars from the main graph to the functions that it gives them to.

    Args:
        views: the main graph and its functions.
        bound: what arguments are bound to outside of the graph, None for something else.
    """

    def __init__(self, views: Iterable[GraphView], bound: Mapping[_Argument, Bound]) -> None:
        self._views = {view.function: view for view in views}
        # None: something else, or not known.
        self._sources: dict[_Argument, set[str | None]] = {}
        for argument, value in bound.items():
            self._sources.setdefault(argument, set()).update(self._outside(value))
        functions = self._views.keys() - {""}
        calls = [*self._calls(functions)]
        news = True
        while news:
            news = False
            for argument, view, tensor in calls:
                before = self._sources.setdefault(argument, set())
                added = {None} if tensor is None else self._of(view, tensor)
                news |= not added <= before
                before |= added

    def source(self, view: GraphView, tensor: Tensor) -> str | None:
        """Returns what a tensor is in all runs: a table or a scalar; None if that is not known.

        Two tensors with the same text are the same table, or scalars of equal dtypes and values.
        """
        sources = self._of(view, tensor)
        return next(iter(sources)) if len(sources) == 1 else None

    def _outside(self, value: Bound) -> set[str | None]:
        if isinstance(value, Tensor):
            return self._of(self._views[""], value) if "" in self._views else {None}
        return {None if value is None else _table(value)}

    def _of(self, view: GraphView, tensor: Tensor) -> set[str | None]:
        """Returns what is known to come from a tensor so far."""
        tensor = view.resolve(tensor)
        op = view.op(tensor.node)
        if op == ARG_OP:
            return self._sources.get((view.function, tensor.node), set())
        if op == "Const":
            return {_scalar(view, tensor)}
        if not view.function and op == STATIC_TABLE:
            return {_table(shared_name(view, tensor.node))}
        return {None}

    def _calls(
        self, functions: Iterable[str]
    ) -> Iterator[tuple[_Argument, GraphView, Tensor | None]]:
        """Yields arguments, with what calls give them; None if that is not known.

        Ops that run functions in another way than a call, as those of tf.data do, may give them
        anything, and so do loops.
        """
        functions = frozenset(functions)
        arguments = {name: [*_arguments(self._views[name])] for name in functions}
        for view in self._views.values():
            for name, node in view.nodes.items():
                given = set[str]()
                if (node.op in CALLS or node.op in functions) and node.op not in _LOOPS:
                    given.update(callees(node, functions))
                    inputs = view.inputs(name)[first_argument(node) :]
                    for callee in given:
                        for index, argument in arguments[callee]:
                            tensor = inputs[index] if index < len(inputs) else None
                            yield (callee, argument), view, tensor
                for other in functions.intersection(called(node)) - given:
                    for _, argument in arguments[other]:
                        yield (other, argument), view, None


def _arguments(view: GraphView) -> Iterator[tuple[int, str]]:
    """Yields the arguments of a function that are followed, with their indices."""
    arguments = (name for name, node in view.nodes.items() if node.op == ARG_OP)
    for index, name in enumerate(arguments):
        if view.dtype(Tensor(name)) in _FOLLOWED:
            yield index, name


def _table(name: str) -> str:
    return f"table {name}"


def _scalar(view: GraphView, tensor: Tensor) -> str | None:
    """Returns a constant without dimensions as text, None for another one."""
    value = view.constant(tensor) if view.shape(tensor) == () else None
    return None if value is None else f"{view.dtype(tensor)} {np.asarray(value).item()!r}"
