"""What the candidates' own part of a signature of requests costs alone.

user -> A -> a      of which a is a constant now:      a
item -> B(a, item) -> scores                           item -> B(a, item) -> scores
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from benchmarks.calls import Arrays, Call, Held

_OF_REQUEST, _OF_CANDIDATES = "request", "candidates"


def own_part(signature: Any, request: Arrays, candidates: Held) -> Call:
    """A call of what is left of a signature where all that depends on the request alone is known.

    Variables are read, and rows of the request that candidates need are repeated, as before.

    Args:
        signature: a ConcreteFunction that takes a request once, and returns one tensor.
        request: its inputs that describe the request.
        candidates: variables that hold the others.
    """
    (wanted,) = signature.outputs
    graph = signature.graph.as_graph_def()
    depends = _dependence(signature.graph, request)
    alone = {name for name, on in depends.items() if on == {_OF_REQUEST}}
    border = _border(signature.graph, alone, wanted)
    captured = {inner.name: outer for outer, inner in signature.graph.captures}

    @tf.function(autograph=False)
    def of_request() -> list[tf.Tensor]:
        user = {f"{name}:0": tf.constant(array) for name, array in request.items()}
        return _imported(graph, _here(captured) | user, border)

    found = {name: one.numpy() for name, one in zip(border, of_request(), strict=True)}

    @tf.function(autograph=False)
    def call() -> tf.Tensor:
        items = {f"{name}:0": tf.convert_to_tensor(value) for name, value in candidates.items()}
        constants = {name: tf.constant(array) for name, array in found.items()}
        (result,) = _imported(graph, _here(captured) | items | constants, [wanted.name])
        return result

    return call


def _here(tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Tensors from outside in the graph that is being made."""
    graph = tf.compat.v1.get_default_graph()
    return {name: graph.capture(tensor) for name, tensor in tensors.items()}


def _dependence(graph: Any, request: Mapping[str, Any]) -> dict[str, set[str]]:
    """What each node depends on; what reads variables alone, on nothing."""
    captured = {inner.op.name for _, inner in graph.captures}
    depends = dict[str, set[str]]()
    for op in graph.get_operations():
        if op.type == "Placeholder" and op.name not in captured:
            depends[op.name] = {_OF_REQUEST if op.name in request else _OF_CANDIDATES}
        else:
            before = [tensor.op for tensor in op.inputs]
            depends[op.name] = set[str]().union(*(depends[one.name] for one in before))
    return depends


def _border(graph: Any, alone: set[str], wanted: Any) -> list[str]:
    """The tensors that depend on the request alone, and that other nodes read."""
    read = [one for op in graph.get_operations() if op.name not in alone for one in op.inputs]
    return [*dict.fromkeys(one.name for one in (*read, wanted) if one.op.name in alone)]


def _part(graph: graph_pb2.GraphDef, wanted: list[str], known: set[str]) -> graph_pb2.GraphDef:
    """The nodes that are needed for some tensors where others are known."""
    nodes = {node.name: node for node in graph.node}
    part = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
    open_, seen = [name.partition(":")[0] for name in wanted if name not in known], set[str]()
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        node = part.node.add()
        node.CopyFrom(nodes[name])
        node.attr.pop("_class", None)
        # What has to come first, as assertions, is no part of what a call gives.
        node.input[:] = [one for one in node.input if not one.startswith("^")]
        needed = [_full(one) for one in node.input]
        open_ += [one.partition(":")[0] for one in needed if one not in known]
    return part


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _imported(
    graph: graph_pb2.GraphDef, known: Mapping[str, tf.Tensor], wanted: list[str]
) -> list[tf.Tensor]:
    """Tensors of another graph in the one that is being made, where some are known."""
    asked = [name for name in wanted if name not in known]
    part = _part(graph, asked, {*known})
    read = {_full(one) for node in part.node for one in node.input}
    inputs = {name: value for name, value in known.items() if name in read}
    found = tf.graph_util.import_graph_def(part, inputs, asked) if asked else []
    made = dict(zip(asked, found, strict=True))
    return [known[name] if name in known else made[name] for name in wanted]
