"""Which unknown sizes of shapes are equal, as TensorFlow infers it.

Grappler runs the shape functions of a GraphDef and gives each unknown size a symbol, by which two
equal ones are known to be equal. It is asked about the nodes right behind the tensors alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
from tensorflow.core.framework import attr_value_pb2, graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.tensor import ARG_OP, BRANCH_OPS, Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import tensor_util

Symbolic = tuple[int, ...]
"""Sizes of a shape; those below 0 stand for unknown ones, and equal ones are equal."""

#: So many nodes are asked about at most, nearest first.
_MAX_NODES = 128
#: Constants of more elements are as good as their shape.
_MAX_ELEMENTS = 64
_LOOP_OPS = BRANCH_OPS | {"Exit", "RefExit", "Merge", "RefMerge", "NextIteration", "LoopCond"}
_INPUTS = frozenset({ARG_OP, "Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})
_OPAQUE = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})
_FIRST_REF = 100
#: From here on downwards there are symbols for sizes that Grappler gives none.
_FIRST_FRESH = -(1 << 40)


def symbolic_shapes(
    view: GraphView, tensors: tuple[Tensor, ...], vectors: tuple[Tensor, ...] = ()
) -> tuple[Symbolic | None, ...]:
    """Returns the shapes of tensors, and then those that integer vectors hold.

    None stands for an unknown rank. Symbols are those of one call.
    """
    key = (tensors, vectors)
    if key not in view.inferred:
        view.inferred[key] = _Cone(view).shapes(tensors, vectors)
    return view.inferred[key]


class _Cone:
    """The nodes that tensors are made of, as a graph of its own."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.graph = graph_pb2.GraphDef()
        self.names: dict[str, str] = {}
        self.leaves: dict[Tensor, str] = {}

    def shapes(
        self, tensors: tuple[Tensor, ...], vectors: tuple[Tensor, ...]
    ) -> tuple[Symbolic | None, ...]:
        """See `symbolic_shapes`."""
        nothing: tuple[Symbolic | None, ...] = (None,) * len(tensors + vectors)
        self._choose(tensor.node for tensor in tensors + vectors)
        try:
            for name in self.names:
                self._copy(name)
            names = [self._text(tensor) for tensor in tensors]
            names += [self._of_size(vector) for vector in vectors]
        except _Unknown:
            return nothing
        try:
            properties = _grappler_shapes(self.graph)
        except Exception:  # the shape functions of a graph that makes no sense raise all kinds
            return nothing
        fresh = count(_FIRST_FRESH, -1)
        return tuple(_shape(properties, text, fresh) for text in names)

    def _choose(self, roots: Iterable[str]) -> None:
        """Chooses the nodes to copy, nearest first; what else they read becomes a leaf."""
        waiting = deque(dict.fromkeys(roots))
        while waiting and len(self.names) < _MAX_NODES:
            name = waiting.popleft()
            if name not in self.names and not self._is_leaf(name):
                self.names[name] = f"n{len(self.names)}"
                waiting.extend(tensor.node for tensor in self.view.inputs(name))

    def _is_leaf(self, name: str) -> bool:
        """Whether nothing is to be learnt from what is behind a node."""
        view, op = self.view, self.view.op(name)
        if not op or op in _INPUTS or op in _LOOP_OPS or view.signatures.is_function(op):
            return True
        if op == "Const":
            shape = view.shape(Tensor(name))
            return shape is not None and math.prod(n or 0 for n in shape) > _MAX_ELEMENTS
        if any(_has_function(attr) for attr in view.nodes[name].attr.values()):
            return True
        made = view.signatures.output_types(view.nodes[name])
        read = [self.view.dtype(tensor) for tensor in view.inputs(name)]
        if not made or any(not dtype or dtype > _FIRST_REF for dtype in (*made, *read)):
            return True
        if not _OPAQUE.isdisjoint(made):
            return True
        # The view knows the shapes of variables and of what datasets give.
        return not _OPAQUE.isdisjoint(read) and view.shape(Tensor(name)) is not None

    def _copy(self, name: str) -> None:
        source = self.view.nodes[name]
        inputs = [self._text(tensor) for tensor in self.view.inputs(name)]
        node = self.graph.node.add(name=self.names[name], op=source.op, input=inputs)
        for key, value in source.attr.items():
            if not key.startswith("_"):
                node.attr[key].CopyFrom(value)

    def _text(self, tensor: Tensor) -> str:
        if tensor.node in self.names:
            return f"{self.names[tensor.node]}:{tensor.index}"
        if tensor not in self.leaves:
            self.leaves[tensor] = self._leaf(tensor)
        return self.leaves[tensor]

    def _leaf(self, tensor: Tensor) -> str:
        """Adds a tensor with only a dtype and a shape."""
        dtype, shape = self.view.dtype(tensor) % _FIRST_REF, self.view.shape(tensor)
        if not dtype:
            raise _Unknown
        name = f"leaf{len(self.leaves)}"
        placeholder = self.graph.node.add(name=name, op="Placeholder")
        placeholder.attr["dtype"].type = dtype
        placeholder.attr["shape"].shape.unknown_rank = True
        # Grappler does not believe a placeholder's shape: it could be fed anything.
        node = self.graph.node.add(name=f"{name}/shape", op="EnsureShape", input=[name])
        node.attr["T"].type = dtype
        if shape is None:
            node.attr["shape"].shape.unknown_rank = True
        for size in shape or ():
            node.attr["shape"].shape.dim.add(size=-1 if size is None else size)
        return node.name

    def _of_size(self, vector: Tensor) -> str:
        """Adds a tensor of the shape that a vector holds."""
        zero = self.graph.node.add(name=f"zero{len(self.graph.node)}", op="Const")
        zero.attr["dtype"].type = types_pb2.DT_FLOAT
        zero.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(np.float32(0)))
        inputs = [self._text(vector), zero.name]
        node = self.graph.node.add(name=f"filled{len(self.graph.node)}", op="Fill", input=inputs)
        node.attr["T"].type = types_pb2.DT_FLOAT
        node.attr["index_type"].type = self.view.dtype(vector)
        return node.name


class _Unknown(Exception):
    """A tensor whose dtype is not known."""


def _has_function(attr: attr_value_pb2.AttrValue) -> bool:
    return attr.HasField("func") or bool(attr.HasField("list") and attr.list.func)


def _grappler_shapes(graph: graph_pb2.GraphDef) -> dict[str, list[Any]]:
    """The properties of the outputs of each node."""
    from fusion.runtime.tensorflow.private import item

    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    # An item has to fetch something, which changes no shape.
    meta_graph.collection_def["train_op"].node_list.value.append(graph.node[-1].name)
    properties: dict[str, list[Any]] = item.Item(meta_graph).GetOpProperties()
    return properties


def _shape(properties: dict[str, list[Any]], text: str, fresh: Iterator[int]) -> Symbolic | None:
    name, _, index = text.partition(":")
    outputs = properties.get(name, ())
    output = int(index or 0)
    if output >= len(outputs) or outputs[output].shape.unknown_rank:
        return None
    return tuple(next(fresh) if dim.size == -1 else dim.size for dim in outputs[output].shape.dim)
