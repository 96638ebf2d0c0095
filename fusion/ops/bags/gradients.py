"""The gradient of a post-lookup op's gradient, built from stock ops: it is rarely asked for.

Stock TensorFlow has one for weighted lookups, whose gradient consists of differentiable ops, and
none for unweighted ones, whose SparseSegment*Grad ops have no gradient. So it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusion.ops.bags.stock import widened

#: (rows gathered for the shards, tensors of weights) -> the result of the op, by stock ops.
Combine = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor]


def gradient_of_gradient(
    op: tf.Operation,
    combine: Combine,
    top_grad: tf.Tensor,
    shards: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    grads: Sequence[Any],
) -> list[Any]:
    """Gradients of `top_grad`, of each of `shards` and of each of `weights`, in this order.

    Args:
      op: the gradient op.
      combine: what the forward op computes.
      top_grad, shards, weights: the gradient op's inputs.
      grads: gradients of its outputs: of the gradients of each of `shards` and of `weights`.

    Raises:
      LookupError: the lookup has no weights.
    """
    if not op.get_attr("use_sparse_weights"):
        raise LookupError(f"gradient registry has no entry for: {op.type} without weights")
    sources = [*shards, *weights]
    with tf.GradientTape() as outer:
        outer.watch([top_grad, *sources])
        with tf.GradientTape() as inner:
            inner.watch(sources)
            result = combine(shards, weights)
        first = inner.gradient(result, sources, top_grad)
        first = [tf.convert_to_tensor(gradient) for gradient in first]
    return outer.gradient(first, [top_grad, *sources], list(grads))


def clip(op: tf.Operation, embeddings: tf.Tensor) -> tf.Tensor:
    """The rows [u, D], clipped to the op's max_norm."""
    limit = op.get_attr("max_norm")
    if limit < 0:
        return embeddings
    return tf.cast(tf.clip_by_norm(widened(embeddings), limit, axes=[1]), embeddings.dtype)
