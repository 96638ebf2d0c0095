"""FusedEmbeddingSparsePostLookUp: combines the gathered rows of entries into bags."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.bags.builders import BAGS
from fusion.ops.bags.specs.shared_args import BAG_OUTPUTS, BAG_TYPES, DENSE_SHAPE
from fusion.ops.bags.specs.signature_v1 import ATTRS, FLAGS, INDICES, SHARDS, WEIGHTS
from fusion.ops.base.bodies import cpu_body
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema import names
from fusion.schema.attributes import IDS_ATTR


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
