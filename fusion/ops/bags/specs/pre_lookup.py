"""FusedEmbeddingSparsePreLookUp: prunes, fills and partitions a batch of sparse ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.bags.specs.shared_args import PARTITION_SHAPES, SPARSE_IDS
from fusion.ops.base.bodies import cpu_body
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import (
    AXIS_ATTR,
    DEFAULT_ID_ATTR,
    DEFAULT_WEIGHT_ATTR,
    FILL_ATTR,
    FLOATS,
    IDS,
    IDS_ATTR,
    PRUNE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
    SHARDS_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Puts the gradients of the weights back in place: 0 for pruned entries, fillers dropped.

    Stock TensorFlow's gradient of filling has no gradient itself, so neither has this one.
    """
    n_shards = op.get_attr("num_partitions")
    of_weights, weights_out = grads[-n_shards:], op.outputs[-n_shards:]
    nothing = [None] * (n_shards + 4)
    if not op.get_attr("use_sparse_weights") or all(grad is None for grad in of_weights):
        return nothing
    shapes, (values, indices, dense_shape, weights) = op.inputs[:n_shards], op.inputs[n_shards:]
    # Once more with the numbers of entries, from 1, as column 1: the outputs then have the number
    # of each entry, and 0 for those filled in.
    count = tf.size(values, tf.int64)
    numbered = tf.stack([indices[:, 0], tf.range(1, count + 1)], axis=1)
    again = ops.fused_embedding_sparse_pre_look_up(
        partition_shapes=list(shapes),
        sp_values=values,
        sp_indices=numbered,
        sp_dense_shape=dense_shape,
        sp_weights_values=weights,
        **{attr.name: op.get_attr(attr.name) for attr in SPEC.value_attrs},
    )
    sources = tf.concat(again.partitioned_indices, axis=0)[:, 1] - 1
    of_entries = tf.concat(
        [
            tf.zeros_like(out) if grad is None else grad
            for grad, out in zip(of_weights, weights_out, strict=True)
        ],
        axis=0,
    )
    if op.get_attr("fill_empty_row"):
        of_entries = tf.raw_ops.SparseFillEmptyRowsGrad(
            reverse_index_map=tf.range(tf.size(of_entries, tf.int64)), grad_values=of_entries
        ).d_values
    # Negative segments are dropped.
    return [*nothing[:-1], tf.math.unsorted_segment_sum(of_entries, sources, count)]


SPEC = OpSpec(
    name=names.PRE_V1,
    doc="Drops invalid entries of a batch of sparse ids, fills the rows left empty and splits all\n"
    "over the shards of a table.\n\n"
    "`prune_invalid_id` keeps entries with id >= 0 and, with both weight attrs, weight > 0.\n"
    "`fill_empty_row` appends (max(default_id, 0), [row, 0], default_weight) for each row that\n"
    "kept nothing, rows ascending, in the shard of that id. div splits by the actual cumulative\n"
    "rows and rebases; mod sends id to shard id % P as id // P; a single shard gets all ids as\n"
    "they are. In each shard entries keep their order, or are ordered by row, fillers too.\n"
    "Column 1 of the indices is carried along unread.",
    inputs=(
        PARTITION_SHAPES,
        *SPARSE_IDS,
    ),
    outputs=(
        Arg("partitioned_values", "Tid", "[n_p]", length="num_partitions", doc="ids in the shard"),
        Arg("partitioned_indices", "int64", "[n_p, 2]", length="num_partitions"),
        Arg(
            "row_empty_and_invalid_flags",
            "int32",
            "[?]",
            doc="for each of B rows 1 if it kept nothing, then for each of nnz ids 1 if it is kept",
        ),
        Arg(
            "partitioned_weights",
            "Tw",
            "[n_p]",
            length="num_partitions",
            doc="default_weight where weights do not count",
        ),
    ),
    attrs=(
        SHARDS_ATTR,
        IDS_ATTR,
        WEIGHTS_ATTR,
        AXIS_ATTR,
        FILL_ATTR,
        Attr("prune_invalid_id", "bool", default=False, doc="whether to drop invalid entries"),
        DEFAULT_ID_ATTR,
        Attr(
            "partition_strategy",
            "string",
            default="div",
            allowed=("div", "mod"),
            doc="how rows are split",
        ),
        USE_WEIGHTS_ATTR,
        PRUNE_WEIGHTS_ATTR,
        DEFAULT_WEIGHT_ATTR,
        ROW_COUNT_ATTR,
        Attr(
            "entry_order",
            "string",
            default="input",
            allowed=("input", "row"),
            doc="order of entries in a shard: that of the input with fillers last, or by row",
        ),
    ),
    rows="sp_values",
    kernels={"CPU": cpu_body("bags", "pre_lookup")},
    kernel_types={"Tid": IDS, "Tw": FLOATS},
    gradient=_gradient,
)
