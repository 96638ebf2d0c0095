"""Small steps that recur in all kinds of stock graphs."""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.schema.attributes import ID_TYPES


def is_row_gather(view: GraphView, name: str) -> bool:
    """Whether the node is a plain gather along axis 0: `inputs[0][inputs[1]]`."""
    op = view.op(name)
    if op == "Gather":
        return True
    if op != "GatherV2" or view.int_attr(name, "batch_dims"):
        return False
    axis = view.constant(view.inputs(name)[2])
    return axis is not None and axis.ndim == 0 and int(axis) == 0


def is_integer_cast(view: GraphView, name: str) -> bool:
    """Whether the node casts between integer dtypes."""
    if view.op(name) != "Cast":
        return False
    return all(view.type_attr(name, key) in ID_TYPES for key in ("SrcT", "DstT"))


def pass_casts(
    view: GraphView, tensor: Tensor, *, widening: bool = False
) -> tuple[Tensor, tuple[str, ...]]:
    """Returns where integers come from behind aliases and casts, and the nodes passed.

    Args:
        view: the graph.
        tensor: the integers.
        widening: whether to pass no casts but those from int32 to int64, which lose no digits.
    """
    passed = view.aliases(tensor)
    tensor = view.resolve(tensor)
    while is_integer_cast(view, tensor.node) and not view.controls(tensor.node):
        if widening and view.type_attr(tensor.node, "DstT") != types_pb2.DT_INT64:
            break
        inner = view.inputs(tensor.node)[0]
        passed += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    return tensor, passed


def compares_with(view: GraphView, test: Tensor, number: int) -> bool:
    """Whether the second operand of a comparison is a scalar constant of this value."""
    value = view.constant(view.inputs(test.node)[1])
    return value is not None and value.ndim == 0 and bool(value == number)
