"""GraphDefs and FunctionDefs as graphs of TensorFlow.

A node may have the shapes of its outputs beside it, as Python recorded them when the model was
saved. TensorFlow infers shapes itself when it imports a graph, and refuses one whose recorded
shapes contradict these. Yet it loads and runs such models: what is refused in a flat graph is never
compared where functions call each other. So recorded shapes that contradict are ignored here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.runtime.tensorflow.private import FuncGraph, function_def_to_graph

_SHAPES = "_output_shapes"


def imported_graph(graph_def: graph_pb2.GraphDef) -> tf.Graph:
    """Returns a GraphDef as a graph; without any recorded shapes if they contradict each other.

    Raises:
        ValueError, tf.errors.OpError: TensorFlow cannot import it.
    """
    try:
        return _imported(graph_def)
    except (ValueError, tf.errors.OpError):
        if not _has_shapes(graph_def.node):
            raise
    bare = graph_pb2.GraphDef()
    bare.CopyFrom(graph_def)
    _forget_shapes(bare.node)
    return _imported(bare)


def imported_function(
    definition: function_pb2.FunctionDef, structured_input_signature: Any = None
) -> FuncGraph:
    """Returns the body of a function of the default graph's; see `imported_graph`."""
    try:
        return function_def_to_graph(definition, structured_input_signature)
    except (ValueError, tf.errors.OpError):
        if not _has_shapes(definition.node_def):
            raise
    bare = function_pb2.FunctionDef()
    bare.CopyFrom(definition)
    _forget_shapes(bare.node_def)
    return function_def_to_graph(bare, structured_input_signature)


def forget_contradictions(graph_def: graph_pb2.GraphDef) -> None:
    """Removes recorded shapes, in place, so that TensorFlow imports the graph.

    TensorFlow's optimizer drops outputs of a function that nothing reads, and leaves the shapes of
    all of them at the call. If the others contradict each other, too, all are removed.
    """
    signatures = OpSignatures(graph_def.library.function)
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        for node in nodes:
            if _SHAPES in node.attr:
                outputs = signatures.outputs(node)
                recorded = len(node.attr[_SHAPES].list.shape)
                if outputs is not None and recorded != len(outputs):
                    del node.attr[_SHAPES]
    if _has_shapes(graph_def.node):
        try:
            _imported(graph_def)
        except (ValueError, tf.errors.OpError):
            _forget_shapes(graph_def.node)


def _imported(graph_def: graph_pb2.GraphDef) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    return graph


def _has_shapes(nodes: Any) -> bool:
    return any(_SHAPES in node.attr for node in nodes)


def _forget_shapes(nodes: Any) -> None:
    for node in nodes:
        node.attr.pop(_SHAPES, None)
