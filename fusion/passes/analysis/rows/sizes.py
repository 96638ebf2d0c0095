"""Static shapes of a graph with a number of rows that no other size is.

TensorFlow's shape functions are asked, for a batch of a prime number of rows. What is a multiple of
it counts rows. Two primes are tried (`walk`): a size that only looks like rows gives other facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import graph_pb2, tensor_shape_pb2, types_pb2

from fusion.passes.analysis.symbolic_shapes import ShapeMath
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView

_DTYPES = {types_pb2.DT_INT32: np.int32, types_pb2.DT_INT64: np.int64}
UNSHAPED = "unshaped"
"""Behind the name of a node whose result gets another shape."""


def fixed_integers(view: GraphView, tensor: Tensor) -> npt.NDArray[Any] | None:
    """Returns integers that follow from sizes of which none is the number of rows, or None.

    Args:
        view: the graph whose batches have any number of rows.
        tensor: the only output of its node.
    """
    found = view.integers(tensor)
    dtype, shape = _DTYPES.get(view.dtype(tensor)), view.shape(tensor)
    if found is not None or dtype is None or shape is None or len(shape) > 1:
        return found
    math, value = ShapeMath(), Value(view, tensor)
    elements = math.vector(value) if shape else (math.scalar(value),)
    if elements is None or not all(isinstance(one, int) for one in elements):
        return None
    return np.array(elements, dtype).reshape([-1] if shape else [])


def sized(
    view: GraphView, graph: graph_pb2.GraphDef, shapes: Mapping[Tensor, Shape], leaves: set[Tensor]
) -> GraphView:
    """Returns a view of a graph in which tensors have other shapes.

    Args:
        view: the graph as it is.
        graph: the same.
        shapes: the shapes that some tensors have; each is the only output of its node.
        leaves: those of them about whose producers TensorFlow need not be asked.
    """
    result = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
    for node in graph.node:
        tensor = Tensor(node.name)
        copy = result.node.add()
        copy.CopyFrom(node)
        copy.attr.pop("_output_shapes", None)
        if tensor not in shapes:
            continue
        if node.op == "Placeholder":
            _set_shape(copy.attr["shape"].shape, shapes[tensor])
            continue
        dtype = view.dtype(tensor)
        if tensor in leaves:
            copy.Clear()
            copy.name, copy.op = node.name, "Placeholder"
            copy.attr["dtype"].type = dtype
        else:
            copy.name = f"{node.name}/{UNSHAPED}"
            copy = result.node.add(name=node.name, op="EnsureShape", input=[copy.name])
            copy.attr["T"].type = dtype
        _set_shape(copy.attr["shape"].shape, shapes[tensor])
    return GraphView.of_graph(result)


def unshaped(view: GraphView, name: str) -> str:
    """Returns the node of a sized graph that computes what a node of the graph does."""
    computes = f"{name}/{UNSHAPED}"
    return computes if computes in view.nodes else name


def shaped(name: str) -> str:
    """Returns the node of the graph whose results a node of the sized graph computes."""
    return name.removesuffix(f"/{UNSHAPED}")


def _set_shape(proto: tensor_shape_pb2.TensorShapeProto, shape: Shape) -> None:
    proto.Clear()
    for size in shape:
        proto.dim.add(size=-1 if size is None else size)
