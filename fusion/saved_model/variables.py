"""The variables behind function arguments, so that reports name tables as the user does.

In a library function a table is an argument with a made-up name. Which variable it is follows from
the calls, starting at the main graph, and from what the object graph binds to restored functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.report import ColumnReport, FusionReport
from fusion.passes.signatures import OpSignatures
from fusion.passes.static_shapes import Shape
from fusion.saved_model.calls import callees, first_argument

_VARIABLE_OPS = frozenset(["VarHandleOp", "VariableV2", "Variable"])


class Variable(NamedTuple):
    """A variable by its name and static shape, None where unknown."""

    name: str
    shape: Shape


def named_columns(report: FusionReport, meta: meta_graph_pb2.MetaGraphDef) -> FusionReport:
    """Returns `report` with the names and sizes of the variables behind function arguments."""
    search = _searched(meta)
    return replace(report, columns=tuple(_named(column, search) for column in report.columns))


def _named(column: ColumnReport, search: _Search) -> ColumnReport:
    if column.spec is None:
        return column
    table, shards, names = column.spec.table, [], []
    for shard in table.shards:
        source = search.source(column.function, shard.tensor)
        variable = search.known.get((column.function, source))
        if variable is None or len(variable.shape) != 2:
            return column
        rows, dim = variable.shape
        shards.append(replace(shard, rows=rows, dim=dim))
        names.append(variable.name)
    name = names[0] if len(names) == 1 else names[0].removesuffix("/part_0")
    table = replace(table, name=name, shards=tuple(shards))
    return replace(column, name=name, spec=replace(column.spec, table=table))


def argument_variables(meta: meta_graph_pb2.MetaGraphDef) -> dict[tuple[str, str], Variable]:
    """Returns the variable behind (function, argument), where all callers agree on one."""
    known = _searched(meta).known
    return {key: variable for key, variable in known.items() if variable is not None}


def _searched(meta: meta_graph_pb2.MetaGraphDef) -> _Search:
    search = _Search(meta)
    for function, saved in meta.object_graph_def.concrete_functions.items():
        search.bind_captures(function, list(saved.bound_inputs))
    search.follow_calls()
    return search


class _Search:
    """Hands variables down from callers to callees until nothing new is learned."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef) -> None:
        graph = meta.graph_def
        self._objects = meta.object_graph_def.nodes
        self._functions = {f.signature.name: f for f in graph.library.function}
        signatures = OpSignatures(self._functions.values())
        self._views = {
            name: GraphView.of_function(f, signatures) for name, f in self._functions.items()
        }
        self._views[""] = GraphView(graph.node, signatures)
        # None: callers disagree.
        self.known: dict[tuple[str, str], Variable | None] = {}

    def bind_captures(self, function: str, bound: list[int]) -> None:
        """Notes the variables that the object graph binds to the last arguments."""
        if function not in self._functions or not bound:
            return
        arguments = self._functions[function].signature.input_arg[-len(bound) :]
        for argument, number in zip(arguments, bound, strict=False):
            node = self._objects[number] if 0 <= number < len(self._objects) else None
            if node is not None and node.WhichOneof("kind") == "variable":
                shape = tuple(d.size if d.size >= 0 else None for d in node.variable.shape.dim)
                self._learn(function, argument.name, Variable(node.variable.name, shape))

    def source(self, function: str, tensor: Tensor) -> str:
        """Returns the node that a table comes from: behind a read, the variable's handle."""
        view = self._views[function]
        if tensor.node not in view.nodes:
            return tensor.node
        tensor = view.resolve(tensor)
        if view.op(tensor.node) == "ReadVariableOp":
            tensor = view.resolve(view.inputs(tensor.node)[0])
        return tensor.node

    def follow_calls(self) -> None:
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
        if (known := self.known.get((caller, tensor.node))) is not None:
            return known
        node = view.nodes.get(tensor.node)
        if caller or node is None or node.op not in _VARIABLE_OPS:
            return None
        dims = node.attr["shape"].shape.dim if "shape" in node.attr else ()
        return Variable(node.name, tuple(d.size if d.size >= 0 else None for d in dims))

    def _learn(self, function: str, argument: str, variable: Variable) -> bool:
        """Notes a variable; returns whether this changed what is known."""
        key = (function, argument)
        if key not in self.known:
            self.known[key] = variable
            return True
        before = self.known[key]
        if before is not None and before.name != variable.name:
            self.known[key] = None
        return False
