"""A whole graph and its library: the views of its parts, and the graph with edits applied."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.framework import function_pb2, graph_pb2

from fusion.passes.edit import GraphEdit
from fusion.passes.graph_view import GraphView
from fusion.passes.signatures import OpSignatures


def bodies(graph_def: graph_pb2.GraphDef, preserved: frozenset[str]) -> Iterator[GraphView]:
    """Yields the views of the main graph, with nodes that outsiders fetch, and of each function."""
    signatures = OpSignatures(graph_def.library.function)
    yield GraphView(graph_def.node, signatures, preserved)
    for definition in graph_def.library.function:
        yield GraphView.of_function(definition, signatures)


def rewritten(graph_def: graph_pb2.GraphDef, edits: dict[str, GraphEdit]) -> graph_pb2.GraphDef:
    """Returns the graph with the edits by function name ("" is the main graph) applied."""
    result = graph_pb2.GraphDef()
    for described, value in graph_def.ListFields():
        if described.name in ("node", "library"):
            continue
        if described.message_type is not None:
            getattr(result, described.name).CopyFrom(value)
        else:
            setattr(result, described.name, value)
    result.node.extend(edits[""].build() if "" in edits else graph_def.node)
    library = graph_def.library
    if graph_def.HasField("library"):
        result.library.function.extend(
            _rewritten_function(function, edits[function.signature.name])
            if function.signature.name in edits
            else function
            for function in library.function
        )
        result.library.gradient.extend(library.gradient)
        result.library.registered_gradients.extend(library.registered_gradients)
    return result


def _rewritten_function(
    definition: function_pb2.FunctionDef, edit: GraphEdit
) -> function_pb2.FunctionDef:
    nodes = edit.build()
    rewritten = function_pb2.FunctionDef()
    rewritten.CopyFrom(definition)
    del rewritten.node_def[:]
    rewritten.node_def.extend(nodes)
    for key, text in definition.ret.items():
        rewritten.ret[key] = edit.returned(text)
    _rename_control_outputs(rewritten, edit)
    return rewritten


def _rename_control_outputs(definition: function_pb2.FunctionDef, edit: GraphEdit) -> None:
    """Lets control outputs stand for what nodes became; TensorFlow takes each node only once."""
    kept: dict[str, str] = {}
    for output in definition.signature.control_output:
        kept.setdefault(edit.successor(definition.control_ret[output]), output)
    definition.signature.control_output[:] = kept.values()
    definition.control_ret.clear()
    definition.control_ret.update({output: node for node, output in kept.items()})
