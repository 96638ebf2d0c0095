"""Gradients written in Python (`tf.custom_gradient`) for functions that are built again.

Such a gradient is known by a name in an attribute of the op. What it closes over are tensors of the
graph that it was traced in; in another graph of the same function, those of the same names are
meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import custom_gradient

_ATTRIBUTE = "_gradient_op_type"
# Calls have gradients of their own; the attribute is an old way to say so.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def rebind_gradients(definition: function_pb2.FunctionDef, original: FuncGraph) -> None:
    """Gives ops with gradients of their own, in place, gradients that work in any graph.

    Args:
        definition: a function with ops of `original`, under the same names.
        original: the graph that the gradients were written for; it is kept alive.
    """
    for node in definition.node_def:
        if _ATTRIBUTE in node.attr and node.op not in _CALLS:
            gradient = ops.gradient_registry.lookup(node.attr[_ATTRIBUTE].s.decode())
            name = custom_gradient.generate_name()
            ops.RegisterGradient(name)(_rebound(gradient, original))
            node.attr[_ATTRIBUTE].s = name.encode()


def _rebound(gradient: Callable[..., Any], original: FuncGraph) -> Callable[..., Any]:
    def rebound(op: tf.Operation, *output_gradients: tf.Tensor | None) -> Any:
        specs = [g if g is None else tf.TensorSpec(g.shape, g.dtype) for g in output_gradients]
        old_op = original.get_operation_by_name(op.name)
        with original.as_default():
            traced = tf.function(lambda *grads: gradient(old_op, *grads), autograph=False)
            function = traced.get_concrete_function(*specs)
        captured = [_counterpart(tensor, original, op) for tensor in function.captured_inputs]
        given = [g for g in output_gradients if g is not None]
        return function._call_flat(given, captured)

    return rebound


def _counterpart(tensor: tf.Tensor, original: FuncGraph, op: tf.Operation) -> tf.Tensor:
    """Returns what `tensor` of the original graph is in the graph of `op`."""
    if getattr(tensor, "graph", None) is not original:
        return tensor
    try:
        return op.graph.get_tensor_by_name(tensor.name)
    except KeyError as error:
        raise LookupError(
            f"the gradient of {op.name} needs {tensor.name}, which is inside a fused lookup; take "
            "the gradient of the function that was fused"
        ) from error
