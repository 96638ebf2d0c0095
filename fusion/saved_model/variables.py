"""What a SavedModel's object graph says about the variables behind function arguments."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.variables import Variable, VariableSearch


def variable_search(meta: meta_graph_pb2.MetaGraphDef) -> VariableSearch:
    """Returns the search over the meta graph, with what its object graph binds."""
    return VariableSearch(meta.graph_def, _bound(meta))


def _bound(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, Variable]]:
    """Yields the variables that the object graph binds to the last arguments of functions."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    objects = meta.object_graph_def.nodes
    for name, saved in meta.object_graph_def.concrete_functions.items():
        bound = list(saved.bound_inputs)
        if name not in functions or not bound:
            continue
        arguments = functions[name].signature.input_arg[-len(bound) :]
        for argument, number in zip(arguments, bound, strict=False):
            node = objects[number] if 0 <= number < len(objects) else None
            if node is not None and node.WhichOneof("kind") == "variable":
                shape = tuple(d.size if d.size >= 0 else None for d in node.variable.shape.dim)
                yield name, argument.name, Variable(node.variable.name, shape)
