"""FusedEmbeddingSparsePostLookUpV2Grad: the gradient of combining gathered rows into bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion.ops.bags.builders import BAGS_GRAD
from fusion.ops.bags.gradients import clip, gradient_of_gradient
from fusion.ops.bags.specs.shared_args import BAG_TYPES
from fusion.ops.bags.specs.signature import (
    ATTRS,
    EMPTY,
    INDICES,
    PERMUTATION,
    SHARDS,
    UNIQUE_IDXS,
    WEIGHTS,
)
from fusion.ops.bags.stock import combine_entries
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema import names


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of top_grad, the gathered rows and the weights, where stock has them."""
    n_shards = op.get_attr("num_partitions")
    inputs = list(op.inputs)
    top_grad, shards, rest = inputs[0], inputs[1 : 1 + n_shards], inputs[1 + n_shards :]
    permutation, _, indices, unique_idxs, is_row_empty, weights = rest
    n_rows = tf.shape(top_grad)[0]
    masked = None
    if op.get_attr("fill_empty_row") and op.get_attr("default_id") < 0:
        masked = is_row_empty[:n_rows]
        masked = tf.pad(masked, [[0, n_rows - tf.size(masked)]])

    combiner = tf.compat.as_str(op.get_attr("combiner"))

    def combine(shards: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> tf.Tensor:
        unique = clip(op, _in_order(shards, permutation))
        entries = tf.gather(unique, unique_idxs)
        return combine_entries(combiner, entries, weights[0], indices[:, 0], n_rows, masked)

    of_top, *of_rows, of_weights = gradient_of_gradient(
        op, combine, top_grad, shards, [weights], grads
    )
    return [of_top, *of_rows, None, None, None, None, None, of_weights]


def _in_order(shards: Sequence[tf.Tensor], permutation: tf.Tensor) -> tf.Tensor:
    """The rows [u, D] of the unique ids, from those of each shard."""
    if len(shards) == 1:
        return shards[0]
    counts = tf.stack([tf.shape(shard)[0] for shard in shards])
    firsts = tf.cumsum(counts, exclusive=True)
    return tf.gather(tf.concat(shards, 0), tf.gather(firsts, permutation[:, 0]) + permutation[:, 1])


SPEC = OpSpec(
    name=names.POST_V2_GRAD,
    doc="The gradient of FusedEmbeddingSparsePostLookUpV2, summed per unique id.\n\n"
    "Half types are summed in float32, and each result is rounded once.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        SHARDS,
        PERMUTATION,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        INDICES,
        UNIQUE_IDXS,
        EMPTY,
        WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[?, D]", length="num_partitions"),
        Arg("grad_weights", "Tw", "[?]", doc="of each entry; empty without weights"),
    ),
    attrs=ATTRS,
    rows="unique_idxs",
    kernels={
        "CPU": cpu_body("bags", "post_lookup_grad"),
        "GPU": gpu_body("bags", "post_lookup_grad"),
    },
    kernel_types=BAG_TYPES,
    builder=BAGS_GRAD,
    gradient=_gradient,
)
