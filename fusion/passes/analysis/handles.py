"""Which handles are one variable: in the main graph, and in the functions that it is given to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fusion.passes.graph.calls import callees, first_argument
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView

VARIABLE_OPS = frozenset(["VarHandleOp", "VariableV2", "Variable"])

#: A function's argument or another tensor by its function and node; a variable as ("", name).
Place = tuple[str, str]

_MAIN = "main"


class Handles:
    """Follows handles from callers to callees, where they are all one variable.

    Args:
        views: the main graph and its functions.
        variables: the names of those behind arguments of functions, by (function, argument), as far
            as they are known from elsewhere.
    """

    def __init__(self, views: Iterable[GraphView], variables: Mapping[Place, str]) -> None:
        self._views = {view.function: view for view in views}
        self._parents: dict[Place, Place] = {}
        for argument, name in variables.items():
            self._join(argument, ("", name))
        self._follow_calls()

    def first(self, view: GraphView, handle: Tensor) -> Place:
        """Returns the place that stands for all those of the variable behind a handle."""
        return self._root(self._place(view, handle))

    def of_variable(self, name: str) -> Place:
        """Returns the place that stands for all those of a variable, by its shared name."""
        return self._root(("", name))

    def _follow_calls(self) -> None:
        functions = self._views.keys() - {""}
        for view in self._views.values():
            for node in view.nodes.values():
                for callee in callees(node, functions):
                    arguments = (
                        n.name for n in self._views[callee].nodes.values() if n.op == ARG_OP
                    )
                    inputs = view.inputs(node.name)[first_argument(node) :]
                    for argument, tensor in zip(arguments, inputs, strict=False):
                        self._join((callee, argument), self._place(view, tensor))

    def _place(self, view: GraphView, handle: Tensor) -> Place:
        origin = view.origin(handle)
        node = view.nodes.get(origin.node)
        if node is None or node.op not in VARIABLE_OPS:
            return (view.function or _MAIN, origin.node)
        return ("", shared_name(view, node.name))

    def _join(self, place: Place, other: Place) -> None:
        self._parents[self._root(place)] = self._root(other)

    def _root(self, place: Place) -> Place:
        while (parent := self._parents.get(place, place)) != place:
            place = parent
        return place


def shared_name(view: GraphView, name: str) -> str:
    """Returns the name by which the handles of one variable know it."""
    return view.text_attr(name, "shared_name") or name
