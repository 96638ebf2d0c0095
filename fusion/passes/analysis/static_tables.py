"""Which handles are of hash tables that never change once they are initialized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


class StaticTables:
    """Follows handles of tables from the main graph to the functions that it gives them to.

    Args:
        views: the main graph and its functions.
        bound: the names of the tables that arguments are bound to outside of the graph, None for
            those that are bound to something else.
    """

    def __init__(self, views: Iterable[GraphView], bound: Mapping[_Argument, str | None]) -> None:
        self._views = {view.function: view for view in views}
        # None: something that is no table of the main graph, or not known to be one.
        self._sources: dict[_Argument, set[str | None]] = {}
        for argument, name in bound.items():
            self._sources.setdefault(argument, set()).add(name)
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

    def name(self, view: GraphView, handle: Tensor) -> str | None:
        """Returns the shared name of a table, the same in all runs; None if it is not known."""
        names = self._of(view, handle)
        return next(iter(names)) if len(names) == 1 else None

    def _of(self, view: GraphView, handle: Tensor) -> set[str | None]:
        """Returns what is known to come from a handle so far."""
        source = view.resolve(handle).node
        if view.op(source) == ARG_OP:
            return self._sources.get((view.function, source), set())
        if not view.function and view.op(source) == STATIC_TABLE:
            return {shared_name(view, source)}
        return {None}

    def _calls(
        self, functions: Iterable[str]
    ) -> Iterator[tuple[_Argument, GraphView, Tensor | None]]:
        """Yields arguments that are handles, with what calls give them; None if that is not known.

        Ops that run functions in another way than a call, as those of tf.data do, may give them
        anything, and so do loops.
        """
        functions = frozenset(functions)
        handles = {name: [*_handles(self._views[name])] for name in functions}
        for view in self._views.values():
            for name, node in view.nodes.items():
                given = set[str]()
                if (node.op in CALLS or node.op in functions) and node.op not in _LOOPS:
                    given.update(callees(node, functions))
                    inputs = view.inputs(name)[first_argument(node) :]
                    for callee in given:
                        for index, argument in handles[callee]:
                            tensor = inputs[index] if index < len(inputs) else None
                            yield (callee, argument), view, tensor
                for other in functions.intersection(called(node)) - given:
                    for _, argument in handles[other]:
                        yield (other, argument), view, None


def _handles(view: GraphView) -> Iterator[tuple[int, str]]:
    """Yields the arguments of a function that are handles, with their indices."""
    arguments = (name for name, node in view.nodes.items() if node.op == ARG_OP)
    for index, name in enumerate(arguments):
        if view.dtype(Tensor(name)) == types_pb2.DT_RESOURCE:
            yield index, name
