"""What a SavedModel's object graph says about the variables behind function arguments."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.variables import Variable, VariableSearch


def variable_search(meta: meta_graph_pb2.MetaGraphDef) -> VariableSearch:
    """Returns the search over the meta graph, with what its object graph binds."""
    return VariableSearch(meta.graph_def, _bound(meta))


def bound_arguments(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, int]]:
    """Yields (function, argument, number of the object) of variables that functions are bound to.

    The object graph binds them to the last arguments.
    """
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    objects = meta.object_graph_def.nodes
    for name, saved in meta.object_graph_def.concrete_functions.items():
        bound = list(saved.bound_inputs)
        if name not in functions or not bound:
            continue
        arguments = functions[name].signature.input_arg[-len(bound) :]
        for argument, number in zip(arguments, bound, strict=False):
            is_object = 0 <= number < len(objects)
            if is_object and objects[number].WhichOneof("kind") == "variable":
                yield name, argument.name, number


def _bound(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, Variable]]:
    for function, argument, number in bound_arguments(meta):
        variable = meta.object_graph_def.nodes[number].variable
        shape = tuple(d.size if d.size >= 0 else None for d in variable.shape.dim)
        yield function, argument, Variable(variable.name, shape)
