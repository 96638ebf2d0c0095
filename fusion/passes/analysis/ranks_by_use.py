"""Ranks that TensorFlow does not know, and that what reads tensors asks for.

The values of a RaggedTensor from an iterator may have any rank to the graph, as in Keras's `fit`.
What is added up of their rows has one axis more; if a product of matrices reads that, values are
known to be vectors: of others stock fails, and so do the fused ops.
"""

from __future__ import annotations

from fusion.passes.graph.tensor import ALIAS_OPS
from fusion.passes.graph.values import Value

_PRODUCTS = frozenset({"MatMul", "_FusedMatMul"})
_KEEPING = ALIAS_OPS | {"Cast", "ConcatV2"}
"""Ops whose result has the rank of all of their inputs, but for the axis."""


def is_multiplied(value: Value) -> bool:
    """Whether a product of two matrices reads a tensor, or what is joined of it and others."""
    stack, seen = [value], {value}
    while stack:
        for node, position, _ in stack.pop().uses:
            # Of what waits for something else, it is not known whether it runs.
            if position < 0 or node.controls or not node.is_live:
                continue
            if node.op in _PRODUCTS and position < 2:
                return True
            is_axis = node.op == "ConcatV2" and position == node.input_count - 1
            result = node.output()
            if node.op in _KEEPING and not is_axis and result not in seen:
                seen.add(result)
                stack.append(result)
    return False
