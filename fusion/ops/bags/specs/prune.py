"""PruneInvalidAndFillEmptyRows: drops invalid entries and fills the rows left empty."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.ops.bags.specs.shared_args import SPARSE_IDS
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import (
    BUCKET_ATTRS,
    DEFAULT_ID_ATTR,
    DEFAULT_WEIGHT_ATTR,
    FILL_ATTR,
    FLOATS,
    IDS,
    IDS_ATTR,
    PRUNE_WEIGHTS_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Scatters the gradient of the weights back: 0 for pruned entries, fillers dropped.

    Stock TensorFlow's gradient of filling has no gradient itself, so neither has this one.
    """
    weights_grad = grads[2]
    if not op.get_attr("use_sparse_weights") or weights_grad is None:
        return [None] * 4
    values, weights = op.inputs[0], op.inputs[3]
    keep = tf.ones_like(values, dtype=tf.bool)
    if op.get_attr("prune"):
        keep = tf.logical_or(values >= 0, op.get_attr("num_buckets") > 0)
        if op.get_attr("prune_sparse_weights"):
            keep = tf.logical_and(keep, weights > 0)
    kept_indices = tf.where(keep)
    count = tf.shape(kept_indices, out_type=tf.int64)
    if op.get_attr("fill_empty_row"):
        kept_grad = tf.raw_ops.SparseFillEmptyRowsGrad(
            reverse_index_map=tf.range(count[0]), grad_values=weights_grad
        ).d_values
    else:
        kept_grad = weights_grad
    return [None, None, None, tf.scatter_nd(kept_indices, kept_grad, tf.shape(weights, tf.int64))]


SPEC = OpSpec(
    name=names.PRUNE,
    doc="Drops invalid entries of a batch of sparse ids and fills the rows left empty.\n\n"
    "`prune` keeps entries with id >= 0 and, with both weight attrs, weight > 0; their order is\n"
    "kept. `fill_empty_row` appends (max(default_id, 0), [row, 0], default_weight) for each row\n"
    "that kept nothing, rows ascending. Column 1 of the indices is carried along unread.\n\n"
    "With `num_buckets` > 0 ids outside [0, num_buckets) become `bucket_default` before anything\n"
    "is dropped, which then drops no entry for its id.",
    inputs=SPARSE_IDS,
    outputs=(
        Arg("sp_values_out", "Tid", "[m]"),
        Arg("sp_indices_out", "int64", "[m, 2]"),
        Arg("sp_weights_values_out", "Tw", "[m]", doc="default_weight where weights do not count"),
        Arg("is_row_empty", "bool", "[B]", doc="rows that kept nothing"),
    ),
    attrs=(
        IDS_ATTR,
        WEIGHTS_ATTR,
        FILL_ATTR,
        Attr("prune", "bool", default=False, doc="whether to drop invalid entries"),
        DEFAULT_ID_ATTR,
        USE_WEIGHTS_ATTR,
        PRUNE_WEIGHTS_ATTR,
        DEFAULT_WEIGHT_ATTR,
        *BUCKET_ATTRS,
    ),
    rows="sp_values",
    kernels={"CPU": cpu_body("bags", "prune"), "GPU": gpu_body("bags", "prune")},
    kernel_types={"Tid": IDS, "Tw": FLOATS},
    gradient=_gradient,
)
