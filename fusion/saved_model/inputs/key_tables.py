"""The sources of the keys of a graph's tables, which map words or integers to numbers.

A table is filled by an op of its graph: from a constant, from the lines of a file, or from the
checkpoint. In graphs of TensorFlow 1 that op is in the main graph. In those of TensorFlow 2 it is
in a function, which the main graph calls with the table and with what it is filled from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.calls import called, callees, first_argument
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView

_TABLE = re.compile("(Anonymous)?(Mutable)?(Dense)?HashTable(OfTensors)?(V2)?")
_FROM_FILE = frozenset(["InitializeTableFromTextFile", "InitializeTableFromTextFileV2"])
_FILLING = _FROM_FILE | {
    *("InitializeTable", "InitializeTableV2", "LookupTableImport", "LookupTableImportV2"),
    *("LookupTableInsert", "LookupTableInsertV2"),
}
_RESTORES = frozenset(["Restore", "RestoreV2"])
_SOURCES = _RESTORES | {"Const", "Placeholder"}
"""Of these a file's name may be a placeholder's."""

_READS, _WRITES = frozenset(["ReadVariableOp"]), frozenset(["AssignVariableOp"])
_CARRYING = frozenset(["Cast", "Reshape", "EnsureShape"])
_MAX_DEPTH = 40


class Origin(NamedTuple):
    """The node that makes a value.

    Attributes:
        node: the node that makes it.
        output: which of its outputs it is.
        names: of what is read from a checkpoint, the node with the names of all that is.
    """

    node: node_def_pb2.NodeDef
    output: int = 0
    names: node_def_pb2.NodeDef | None = None


class Filling(NamedTuple):
    """The source of a table's keys.

    Attributes:
        table: the table.
        source: its keys, or the name of a file.
        file: the op that reads that file; None of other keys.
        reserved: what stands for no key in a dense table.
    """

    table: node_def_pb2.NodeDef
    source: Origin
    file: node_def_pb2.NodeDef | None
    reserved: tuple[Origin, ...] = ()


def table_of_keys(function: str, node: node_def_pb2.NodeDef) -> str | None:
    """Returns the name of the table that a node of a function makes, None if it makes none."""
    if not _TABLE.fullmatch(node.op):
        return None
    shared = node.attr["shared_name"].s if "shared_name" in node.attr else b""
    return shared.decode(errors="replace") or f"{function}/{node.name}"


def fillings(meta: meta_graph_pb2.MetaGraphDef) -> dict[str, Filling]:
    """Returns the sources of the tables' keys in a meta graph, by table name."""
    result: dict[str, Filling] = {}
    for name, filling in _Search(meta).main():
        result.setdefault(name, filling)
    return result


@dataclass(frozen=True)
class _Frame:
    """The main graph, or a function with the values that it is called with."""

    view: GraphView
    arguments: Mapping[str, tuple[_Frame, Tensor]] = field(default_factory=dict)
    depth: int = 0


class _Search:
    """Searches the calls that fill tables."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef) -> None:
        library = meta.graph_def.library.function
        self._functions = {function.signature.name: function for function in library}
        self._signatures = OpSignatures(library)
        self._views: dict[str, GraphView] = {}
        self._main = _Frame(GraphView(meta.graph_def.node, self._signatures))
        self._filling = self._those_that_fill()

    def main(self) -> Iterator[tuple[str, Filling]]:
        """Yields the name of each table, and the source of its keys."""
        yield from self._of(self._main)

    def _those_that_fill(self) -> set[str]:
        """The functions that fill tables, or call such ones."""
        callers: dict[str, list[str]] = {}
        filling: list[str] = []
        for name, function in self._functions.items():
            if any(node.op in _FILLING for node in function.node_def):
                filling.append(name)
            for callee in {callee for node in function.node_def for callee in called(node)}:
                callers.setdefault(callee, []).append(name)
        result: set[str] = set()
        while filling:
            name = filling.pop()
            if name not in result:
                result.add(name)
                filling += callers.get(name, ())
        return result

    def _of(self, frame: _Frame) -> Iterator[tuple[str, Filling]]:
        for node in frame.view.nodes.values():
            inputs = frame.view.inputs(node.name)
            if node.op in _FILLING and len(inputs) > 1:
                table, home = self._origin(frame, inputs[0])
                source, _ = self._origin(frame, inputs[1])
                name = None if table is None else table_of_keys(home.view.function, table.node)
                if name is None or table is None or source is None:
                    continue
                if source.node.op in _SOURCES:
                    file = node if node.op in _FROM_FILE else None
                    ends = (self._origin(home, t)[0] for t in home.view.inputs(table.node.name))
                    yield name, Filling(table.node, source, file, tuple(filter(None, ends)))
            elif frame.depth < _MAX_DEPTH:
                for callee in callees(node, self._filling):
                    yield from self._of(self._called(frame, node, callee))

    def _called(self, frame: _Frame, node: node_def_pb2.NodeDef, callee: str) -> _Frame:
        function = self._functions[callee]
        if callee not in self._views:
            self._views[callee] = GraphView.of_function(function, self._signatures)
        names = (argument.name for argument in function.signature.input_arg)
        values = frame.view.inputs(node.name)[first_argument(node) :]
        arguments = {n: (frame, value) for n, value in zip(names, values, strict=False)}
        return _Frame(self._views[callee], arguments, frame.depth + 1)

    def _origin(self, frame: _Frame, tensor: Tensor) -> tuple[Origin | None, _Frame]:
        """Returns the origin of a value, and the graph or function that has it."""
        for _ in range(_MAX_DEPTH):
            tensor = frame.view.resolve(tensor)
            node = frame.view.nodes.get(tensor.node)
            if node is None:
                break
            inputs = frame.view.inputs(node.name)
            if node.op == ARG_OP:
                if node.name not in frame.arguments:
                    break
                frame, tensor = frame.arguments[node.name]
            elif node.op in _CARRYING | _READS and not inputs:
                break
            elif node.op in _CARRYING:
                tensor = inputs[0]
            elif node.op in _READS:
                frame, tensor = self._assigned(frame, inputs[0])
            elif names := callees(node, self._functions):
                function = self._functions[names[0]]
                results = [function.ret.get(one.name, "") for one in function.signature.output_arg]
                if tensor.index >= len(results):
                    break
                frame = self._called(frame, node, names[0])
                tensor = frame.view.tensor(results[tensor.index])
            else:
                names_of = None
                if node.op in _RESTORES and len(inputs) > 1:
                    known, _ = self._origin(frame, inputs[1])
                    names_of = None if known is None else known.node
                return Origin(node, tensor.index, names_of), frame
        return None, frame

    def _assigned(self, frame: _Frame, handle: Tensor) -> tuple[_Frame, Tensor]:
        """The value that the main graph assigns to a variable, such as the path of a file."""
        for _ in range(_MAX_DEPTH):
            handle = frame.view.resolve(handle)
            if frame.view.op(handle.node) != ARG_OP or handle.node not in frame.arguments:
                break
            frame, handle = frame.arguments[handle.node]
        view = self._main.view
        if frame.view is view:
            for use in view.uses(handle.node):
                inputs = view.inputs(use.node)
                if view.op(use.node) in _WRITES and use.position == 0 and len(inputs) > 1:
                    return self._main, inputs[1]
        return frame, Tensor("")
