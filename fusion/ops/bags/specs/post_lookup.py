"""FusedEmbeddingSparsePostLookUpV2: combines gathered rows into bags."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.bags.builders import BAGS
from fusion.ops.bags.specs.shared_args import BAG_OUTPUTS, BAG_TYPES, DENSE_SHAPE
from fusion.ops.bags.specs.signature import (
    ATTRS,
    EMPTY,
    INDICES,
    PERMUTATION,
    SHARDS,
    UNIQUE_IDXS,
    WEIGHTS,
)
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema import names
from fusion.schema.attributes import NO_NAN_ATTR


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of the gathered rows and of the weights, by the gradient op."""
    n_shards = op.get_attr("num_partitions")
    inputs = list(op.inputs)
    shards, rest = inputs[:n_shards], inputs[n_shards:]
    permutation, _, indices, is_row_empty, unique_idxs, weights = rest
    result = ops.fused_embedding_sparse_post_look_up_v2_grad(
        top_grad=grads[0],
        emb_shards=shards,
        partition_permutation=permutation,
        feature_nums=op.outputs[1],
        indices_before_unique=indices,
        unique_idxs=unique_idxs,
        is_row_empty=is_row_empty,
        sp_weights_values=weights,
        fill_empty_row=op.get_attr("fill_empty_row"),
        default_id=op.get_attr("default_id"),
        combiner=op.get_attr("combiner"),
        max_norm=op.get_attr("max_norm"),
        use_sparse_weights=op.get_attr("use_sparse_weights"),
        row_count=op.get_attr("row_count"),
    )
    weights_grad = result.grad_weights if op.get_attr("use_sparse_weights") else None
    return [*result.grad_shards, None, None, None, None, None, weights_grad]


SPEC = OpSpec(
    name=names.POST_V2,
    doc="Combines the gathered rows of unique ids into one vector per row of the batch.\n\n"
    "sum: S = sum of w e; mean: S / sum of w; sqrtn: S / sqrt(sum of w^2), where e is the row,\n"
    "times max_norm / max(norm, max_norm) if max_norm >= 0, and w its weight or 1. Rows flagged\n"
    "empty give zeros if they were filled with no default_id; rows without entries give zeros.\n\n"
    "Half types are computed in float32, max_norm included, and each result is rounded once.\n"
    "Stock TensorFlow clips half types in their own arithmetic: to have its numbers, clip the\n"
    "rows first.",
    inputs=(
        SHARDS,
        PERMUTATION,
        DENSE_SHAPE,
        INDICES,
        EMPTY,
        UNIQUE_IDXS,
        WEIGHTS,
    ),
    outputs=BAG_OUTPUTS,
    attrs=(*ATTRS, NO_NAN_ATTR),
    rows="unique_idxs",
    kernels={"CPU": cpu_body("bags", "post_lookup"), "GPU": gpu_body("bags", "post_lookup")},
    kernel_types=BAG_TYPES,
    builder=BAGS,
    gradient=_gradient,
)
