"""Which variables are changed row by row, somewhere in a graph or its functions.

Such a variable goes in and out of copy-on-read mode if it is also read whole, and each change of
mode may copy it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fusion.passes.calls import callees, first_argument
from fusion.passes.graph_view import GraphView
from fusion.passes.handles import shared_name
from fusion.passes.tensor import ARG_OP, Tensor
from fusion.passes.variables import VARIABLE_OPS, Variable

_WRITER = re.compile("(Resource)?(Scatter|SparseApply|StridedSliceAssign)")

#: A function's argument or another tensor by its function and node; a variable as ("", name).
_Key = tuple[str, str]


class SparseWriters:
    """Follows handles from callers to callees, where they are all one variable.

    Args:
        views: the main graph and its functions.
        variables: those behind arguments of functions, as far as they are known from elsewhere.
    """

    def __init__(
        self, views: Iterable[GraphView], variables: Mapping[tuple[str, str], Variable]
    ) -> None:
        self._views = {view.function: view for view in views}
        self._parents: dict[_Key, _Key] = {}
        writers = [
            (view, name)
            for view in self._views.values()
            for op in view.ops
            if _WRITER.match(op) and view.signatures.is_stateful(op)
            for name in view.named(op)
        ]
        if writers:
            for argument, variable in variables.items():
                self._join(argument, ("", variable.name))
            self._follow_calls()
        self._written = {
            self._root(self._key(view, tensor))
            for view, name in writers
            for tensor in view.inputs(name)
        }

    def change(self, view: GraphView, table: Tensor) -> bool:
        """Whether rows of the table, a handle or what is read of one, are written somewhere."""
        if not self._written:
            return False
        source = view.read_handle(table) or view.resolve(table)
        return self._root(self._key(view, source)) in self._written

    def _follow_calls(self) -> None:
        functions = self._views.keys() - {""}
        for view in self._views.values():
            for node in view.nodes.values():
                for callee in callees(node, functions):
                    arguments = (
                        n.name for n in self._views[callee].nodes.values() if n.op == ARG_OP
                    )
                    given = view.inputs(node.name)[first_argument(node) :]
                    for argument, tensor in zip(arguments, given, strict=False):
                        self._join((callee, argument), self._key(view, tensor))

    def _key(self, view: GraphView, tensor: Tensor) -> _Key:
        node = view.nodes.get(view.origin(tensor).node)
        if node is None or node.op not in VARIABLE_OPS:
            return (view.function or "main", view.origin(tensor).node)
        return ("", shared_name(view, node.name))

    def _join(self, one: _Key, other: _Key) -> None:
        self._parents[self._root(one)] = self._root(other)

    def _root(self, key: _Key) -> _Key:
        while (parent := self._parents.get(key, key)) != key:
            key = parent
        return key
