"""Small steps that recur in all kinds of stock graphs."""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.values import Node, Value
from fusion.schema.attributes import ID_TYPES


def is_row_gather(node: Node) -> bool:
    """Whether the node is a plain gather along axis 0: `inputs[0][inputs[1]]`."""
    op = node.op
    if op == "Gather":
        return True
    return op == "GatherV2" and not node.int_attr("batch_dims") and node.input(2).scalar == 0


def is_integer_cast(node: Node) -> bool:
    """Whether the node casts between integer dtypes."""
    return node.op == "Cast" and all(node.type_attr(key) in ID_TYPES for key in ("SrcT", "DstT"))


def pass_casts(value: Value, *, widening: bool = False) -> tuple[Value, tuple[str, ...]]:
    """Returns where integers come from behind aliases and casts, and the nodes passed.

    Args:
        value: the integers.
        widening: whether to pass no casts but those from int32 to int64, which lose no digits.
    """
    view, tensor = value
    passed, tensor = view.aliases(tensor), view.resolve(tensor)
    # Shapes are made of small steps, most of them none: here it is the view that is asked.
    while view.op(tensor.node) == "Cast" and _passes(Node(view, tensor.node), widening):
        (inner,) = view.inputs(tensor.node)
        passed += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    return Value(view, tensor), passed


def _passes(cast: Node, widening: bool) -> bool:
    if not is_integer_cast(cast) or cast.controls:
        return False
    return not widening or cast.type_attr("DstT") == types_pb2.DT_INT64


def compares_with(test: Node, number: int) -> bool:
    """Whether the second operand of a comparison is a scalar constant of this value."""
    return bool(test.input(1).scalar == number)
