"""The variables behind function arguments, so that reports name tables as the user does.

In a library function a table is an argument with a made-up name. Which variable it is follows from
the calls, starting at the main graph and at the functions whose arguments are known from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.calls import callees, first_argument
from fusion.passes.graph_view import GraphView
from fusion.passes.signatures import OpSignatures
from fusion.passes.spec import TableSpec
from fusion.passes.tensor import Shape, Tensor

VARIABLE_OPS = frozenset(["VarHandleOp", "VariableV2", "Variable"])


class Variable(NamedTuple):
    """A variable by its name and static shape, None where unknown."""

    name: str
    shape: Shape


def named_table(
    view: GraphView, table: TableSpec, known: Mapping[tuple[str, str], Variable]
) -> TableSpec | None:
    """Returns `table` with the name of the variables behind arguments, if all are known."""
    found = [known.get((view.function, _handle(view, one.tensor).node)) for one in table.shards]
    names = [variable.name for variable in found if variable is not None]
    return replace(table, name=shards_name(names)) if len(names) == len(found) else None


def _handle(view: GraphView, tensor: Tensor) -> Tensor:
    """Returns the handle of a table: through a read, what that reads."""
    if tensor.node in view.nodes:
        tensor = view.origin(tensor)
        if (handle := view.read_handle(tensor)) is not None:
            tensor = view.origin(handle)
    return tensor


def shards_name(variables: Sequence[str]) -> str:
    """Returns the name of a table whose shards are variables of these names."""
    return variables[0] if len(variables) == 1 else variables[0].removesuffix("/part_0")


class VariableSearch:
    """Hands variables down from callers to callees until nothing new is learned.

    Args:
        graph_def: the main graph and its library.
        bound: (function, argument, variable) known from elsewhere.
    """

    def __init__(
        self, graph_def: graph_pb2.GraphDef, bound: Iterable[tuple[str, str, Variable]] = ()
    ) -> None:
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        signatures = OpSignatures(self._functions.values())
        self._views = {
            name: GraphView.of_function(f, signatures) for name, f in self._functions.items()
        }
        self._views[""] = GraphView(graph_def.node, signatures)
        # None: callers disagree.
        self._known: dict[tuple[str, str], Variable | None] = {}
        for function, argument, variable in bound:
            self._learn(function, argument, variable)
        self._follow_calls()

    @property
    def known(self) -> dict[tuple[str, str], Variable]:
        """The variable behind (function, argument), where all callers agree on one."""
        return {key: variable for key, variable in self._known.items() if variable is not None}

    def behind(self, function: str, tensor: Tensor) -> Variable | None:
        """Returns the variable behind a table: through a read, the one of its handle."""
        return self._known.get((function, _handle(self._views[function], tensor).node))

    def _follow_calls(self) -> None:
        """Visits each function again whenever one of its arguments became known."""
        pending = list(self._views)
        while pending:
            caller = pending.pop()
            for node in self._views[caller].nodes.values():
                for callee in callees(node, self._functions):
                    if self._pass_on(caller, node, callee):
                        pending.append(callee)

    def _pass_on(self, caller: str, node: node_def_pb2.NodeDef, callee: str) -> bool:
        view = self._views[caller]
        inputs = view.inputs(node.name)[first_argument(node) :]
        news = False
        for argument, tensor in zip(
            self._functions[callee].signature.input_arg, inputs, strict=False
        ):
            variable = self._variable(caller, view, view.resolve(tensor))
            if variable is not None:
                news |= self._learn(callee, argument.name, variable)
        return news

    def _variable(self, caller: str, view: GraphView, tensor: Tensor) -> Variable | None:
        if (known := self._known.get((caller, tensor.node))) is not None:
            return known
        node = view.nodes.get(tensor.node)
        if caller or node is None or node.op not in VARIABLE_OPS:
            return None
        dims = node.attr["shape"].shape.dim if "shape" in node.attr else ()
        return Variable(node.name, tuple(d.size if d.size >= 0 else None for d in dims))

    def _learn(self, function: str, argument: str, variable: Variable) -> bool:
        """Notes a variable; returns whether this changed what is known."""
        key = (function, argument)
        if key not in self._known:
            self._known[key] = variable
            return True
        before = self._known[key]
        if before is not None and before.name != variable.name:
            self._known[key] = None
        return False
