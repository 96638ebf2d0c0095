"""The ops that combine the gathered rows of unique ids into bags, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.bags.builders import BAGS, BAGS_GRAD
from fusion.ops.bags.gradients import clip, gradient_of_gradient
from fusion.ops.bags.specs.shared_args import BAG_OUTPUTS, BAG_TYPES, DENSE_SHAPE
from fusion.ops.bags.stock import combine_entries
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema import names
from fusion.schema.attributes import (
    AXIS_ATTR,
    COMBINER_ATTR,
    DEFAULT_ID_ATTR,
    FILL_ATTR,
    MAX_NORM_ATTR,
    NO_NAN_ATTR,
    ROW_COUNT_ATTR,
    SHARDS_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)

#: Attrs of the forward and the gradient op.
ATTRS = (
    SHARDS_ATTR,
    TABLE_ATTR,
    WEIGHTS_ATTR,
    FILL_ATTR,
    DEFAULT_ID_ATTR,
    AXIS_ATTR,
    COMBINER_ATTR,
    MAX_NORM_ATTR,
    USE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
)

SHARDS = Arg("emb_shards", "T", "[?, D]", length="num_partitions", doc="gathered rows")
PERMUTATION = Arg("partition_permutation", "int32", "[?, 2]", doc="or a dummy when P is 1")
INDICES = Arg("indices_before_unique", "int64", "[m, 2]", doc="row of each entry in column 0")
EMPTY = Arg("is_row_empty", "bool", "[B]", doc="rows that were empty before they were filled")
UNIQUE_IDXS = Arg("unique_idxs", "int32", "[m]", doc="unique id of each entry")
WEIGHTS = Arg("sp_weights_values", "Tw", "[m]", when="use_sparse_weights", doc="or a dummy")


def _second_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
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


GRAD_SPEC = OpSpec(
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
    gradient=_second_gradient,
)


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
