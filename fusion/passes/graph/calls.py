"""Which library functions a node refers to, and which it calls with which of its inputs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2

from fusion.passes.graph.reach import reached

_FUNCTION_ATTRS = ("f", "then_branch", "else_branch", "body", "branches")
_SELECTING = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])

#: Those that give all their inputs to the functions that they call, but for the one that selects.
CALLS = _SELECTING | {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"}


def called(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Yields the op's name, which may be a function's, and every function in an attribute."""
    yield node.op
    for value in node.attr.values():
        yield from _functions_in(value)


def _functions_in(value: attr_value_pb2.AttrValue) -> Iterator[str]:
    if value.HasField("func"):
        yield value.func.name
    elif value.HasField("list"):
        yield from (func.name for func in value.list.func)


def callees(node: node_def_pb2.NodeDef, functions: Container[str]) -> list[str]:
    """Returns the names of those `functions` that `node` passes its inputs to.

    Calls by op name or attribute f, both branches of conditionals, and the bodies of loops.
    """
    if node.op in functions:
        return [node.op]
    names: list[str] = []
    for key in _FUNCTION_ATTRS:
        value = node.attr.get(key)
        if value is not None:
            names += [f.name for f in (value.func, *value.list.func) if f.name]
    return [name for name in names if name in functions]


def first_argument(node: node_def_pb2.NodeDef) -> int:
    """Returns the index of the input that becomes the callees' first argument."""
    return 1 if node.op in _SELECTING else 0


def reached_functions(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """Returns the library functions that the main graph runs, at any depth."""
    return functions_run_by(graph_def.node, graph_def.library)


def functions_run_by(
    nodes: Iterable[node_def_pb2.NodeDef], library: function_pb2.FunctionDefLibrary
) -> frozenset[str]:
    """Returns the library functions that nodes run, at any depth."""
    functions = {f.signature.name: f for f in library.function}

    def calls(body: Iterable[node_def_pb2.NodeDef]) -> list[str]:
        return [name for node in body for name in called(node) if name in functions]

    return frozenset(reached(calls(nodes), lambda name: calls(functions[name].node_def)))
