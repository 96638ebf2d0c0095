"""Ranks that TensorFlow does not know, and that what reads tensors asks for.

The values of a RaggedTensor from an iterator may have any rank to the graph, as in Keras's `fit`.
What is added up of their rows has one axis more; if a product of matrices reads that, values are
known to be vectors: of others stock fails, and so do the fused ops.
"""

from __future__ import annotations

from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.view import GraphView

_PRODUCTS = frozenset({"MatMul", "_FusedMatMul"})
_KEEPING = ALIAS_OPS | {"Cast", "ConcatV2"}
"""Ops whose result has the rank of all of their inputs, but for the axis."""


def is_multiplied(view: GraphView, tensor: Tensor) -> bool:
    """Whether a product of two matrices reads a tensor, or what is joined of it and others."""
    stack, seen = [tensor], {tensor}
    while stack:
        for use in view.tensor_uses(stack.pop()):
            name, op = use.node, view.op(use.node)
            # Of what waits for something else, it is not known whether it runs.
            if use.position < 0 or view.controls(name) or not view.is_live(name):
                continue
            if op in _PRODUCTS and use.position < 2:
                return True
            is_axis = op == "ConcatV2" and use.position == len(view.inputs(name)) - 1
            if op in _KEEPING and not is_axis and Tensor(name) not in seen:
                seen.add(Tensor(name))
                stack.append(Tensor(name))
    return False
