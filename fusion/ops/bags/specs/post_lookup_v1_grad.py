"""FusedEmbeddingSparsePostLookUpGrad: the gradient of combining rows of entries into bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion.ops.bags.builders import BAGS_GRAD
from fusion.ops.bags.gradients import clip, gradient_of_gradient
from fusion.ops.bags.specs.shared_args import BAG_TYPES
from fusion.ops.bags.specs.signature_v1 import ATTRS, FLAGS, INDICES, SHARDS, WEIGHTS
from fusion.ops.bags.stock import combine_entries
from fusion.ops.base.bodies import cpu_body
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema import names


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
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


SPEC = OpSpec(
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
    gradient=_gradient,
)
