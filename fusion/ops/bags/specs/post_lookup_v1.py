"""The ops that combine the gathered rows of entries into bags, and its gradient."""

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
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema import names
from fusion.schema.attributes import (
    AXIS_ATTR,
    COMBINER_ATTR,
    DEFAULT_ID_ATTR,
    IDS_ATTR,
    MAX_NORM_ATTR,
    ROW_COUNT_ATTR,
    SHARDS_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)

#: Attrs of the forward and the gradient op.
ATTRS = (
    TABLE_ATTR,
    WEIGHTS_ATTR,
    SHARDS_ATTR,
    AXIS_ATTR,
    COMBINER_ATTR,
    MAX_NORM_ATTR,
    DEFAULT_ID_ATTR,
    USE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
)

SHARDS = Arg(
    "emb_shards", "T", "[n_p, D]", length="num_partitions", doc="gathered row of each entry"
)
INDICES = Arg(
    "partitioned_indices",
    "int64",
    "[n_p, 2]",
    length="num_partitions",
    doc="row of each entry in column 0, its rank in the row in column 1",
)
FLAGS = Arg(
    "row_empty_and_invalid_flags",
    "int32",
    "[?]",
    doc="for each row 1 if it was empty before it was filled; the rest is not read",
)
WEIGHTS = Arg(
    "partitioned_weights",
    "Tw",
    "[n_p]",
    length="num_partitions",
    when="use_sparse_weights",
    doc="or dummies",
)


def _second_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of top_grad, the gathered rows and the weights, where stock has them."""
    n_shards = op.get_attr("num_partitions")
    inputs = list(op.inputs)
    top_grad, shards, weights = inputs[0], inputs[1 : 1 + n_shards], inputs[-n_shards:]
    rows = tf.concat(inputs[1 + n_shards : 1 + 2 * n_shards], 0)[:, 0]
    flags = inputs[2 + 2 * n_shards]
    n_rows = tf.shape(top_grad)[0]
    masked = flags[:n_rows] > 0 if op.get_attr("default_id") < 0 else None

    combiner = tf.compat.as_str(op.get_attr("combiner"))

    def combine(shards: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> tf.Tensor:
        entries = clip(op, tf.concat(shards, 0))
        return combine_entries(combiner, entries, tf.concat(weights, 0), rows, n_rows, masked)

    of_top, *others = gradient_of_gradient(op, combine, top_grad, shards, weights, grads)
    of_rows, of_weights = others[:n_shards], others[n_shards:]
    return [of_top, *of_rows, *[None] * (n_shards + 2), *of_weights]


GRAD_SPEC = OpSpec(
    name=names.POST_V1_GRAD,
    doc="The gradient of FusedEmbeddingSparsePostLookUp, for each entry by itself.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        SHARDS,
        INDICES,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        FLAGS,
        WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[n_p, D]", length="num_partitions"),
        Arg(
            "grad_weights",
            "Tw",
            "[?]",
            length="num_partitions",
            doc="of each entry; empty without weights",
        ),
    ),
    attrs=ATTRS,
    rows="partitioned_indices",
    kernels={"CPU": cpu_body("bags", "post_lookup_v1_grad")},
    kernel_types=BAG_TYPES,
    builder=BAGS_GRAD,
    gradient=_second_gradient,
)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of the gathered rows and of the weights, by the gradient op."""
    n_shards = op.get_attr("num_partitions")
    inputs = list(op.inputs)
    weights = inputs[-n_shards:]
    result = ops.fused_embedding_sparse_post_look_up_grad(
        top_grad=grads[0],
        emb_shards=inputs[:n_shards],
        partitioned_indices=inputs[n_shards : 2 * n_shards],
        feature_nums=op.outputs[1],
        row_empty_and_invalid_flags=inputs[2 * n_shards + 1],
        partitioned_weights=weights,
        **{attr.name: op.get_attr(attr.name) for attr in ATTRS if attr.kind != "type"},
    )
    weighted = op.get_attr("use_sparse_weights")
    of_weights = result.grad_weights if weighted else [None] * n_shards
    return [*result.grad_shards, *[None] * (2 * n_shards + 2), *of_weights]


SPEC = OpSpec(
    name=names.POST_V1,
    doc="Combines the gathered rows of entries into one vector per row of the batch.\n\n"
    "sum: S = sum of w e; mean: S / sum of w; sqrtn: S / sqrt(sum of w^2), where e is the row,\n"
    "times max_norm / max(norm, max_norm) if max_norm >= 0, and w its weight or 1. Flagged rows\n"
    "give zeros without a default_id; rows without entries give zeros. The entries of a row are\n"
    "added up in their order if there is one shard, else by column 1 of partitioned_indices,\n"
    "equals by shard and place. With row_count last_row the rows of each shard must be sorted.",
    inputs=(
        SHARDS,
        INDICES,
        DENSE_SHAPE,
        FLAGS,
        Arg("partitioned_values", "Tid", "[n_p]", length="num_partitions", doc="ids, not read"),
        WEIGHTS,
    ),
    outputs=BAG_OUTPUTS,
    attrs=(*ATTRS, IDS_ATTR),
    rows="partitioned_indices",
    kernels={"CPU": cpu_body("bags", "post_lookup_v1")},
    kernel_types=BAG_TYPES,
    builder=BAGS,
    gradient=_gradient,
)
