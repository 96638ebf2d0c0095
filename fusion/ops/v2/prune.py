"""PruneInvalidAndFillEmptyRows: drops invalid entries and fills the rows left empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.ops import gpu
from fusion.ops.entries import INPUTS, listing
from fusion.ops.float_access import access, numba_dtype
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


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import prune as kernels
    from fusion.runtime.native.frame import (
        attr,
        failed,
        forward_input,
        matrix,
        output_matrix,
        output_vector,
        vector,
    )
    from fusion.runtime.native.jit import int64

    tid, weight = numba_dtype(types["Tid"]), access(types["Tw"])
    stored, read = weight.stored, weight.read
    slot, arg = spec.slots, spec.places
    check_shape, _, mark, list_entries, fill_id, fill_weight = listing(spec, types, "prune")

    def body(frame: int) -> None:
        check_shape(frame)
        filler = fill_id(frame)
        if failed(frame):
            return
        values = vector(frame, arg.sp_values, tid)
        indices = matrix(frame, arg.sp_indices, 0, np.int64)
        weights = vector(frame, arg.sp_weights_values, stored)
        readable = read(frame, weights)
        batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
        use_weights = attr(frame, slot.use_sparse_weights) != 0
        is_row_empty = output_vector(frame, 3, 0, batch, np.bool_)
        if failed(frame):
            return
        kept = mark(frame, readable, is_row_empty)
        if failed(frame):
            return
        fill = attr(frame, slot.fill_empty_row) != 0
        total = kept + (kernels.count_true(is_row_empty) if fill else int64(0))
        buckets = attr(frame, slot.num_buckets)
        if kept == values.shape[0] and total == kept and buckets == 0:
            forward_input(frame, 0, arg.sp_values)
            forward_input(frame, 1, arg.sp_indices)
            if use_weights:
                forward_input(frame, 2, arg.sp_weights_values)
        else:
            entries = list_entries(frame, readable, is_row_empty, total)
            out_values = output_vector(frame, 0, 0, total, tid)
            out_indices = output_matrix(frame, 1, 0, total, 2, np.int64)
            if failed(frame):
                return
            kernels.take_values(values, entries, filler, out_values)
            if buckets > 0:
                # Entries that were filled in stand behind, and are ids already.
                kernels.put_in_buckets(out_values[:kept], buckets, attr(frame, slot.bucket_default))
            kernels.take_indices(indices, entries, out_indices)
            if use_weights:
                out_weights = output_vector(frame, 2, 0, total, stored)
                weight_of_filler = fill_weight(frame)
                if not failed(frame):
                    kernels.take_values(weights, entries, weight_of_filler, out_weights)
        if not use_weights:
            out_weights = output_vector(frame, 2, 0, total, stored)
            out_weights[:] = fill_weight(frame)

    return body


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
    places = tf.where(keep)
    count = tf.shape(places, out_type=tf.int64)
    if op.get_attr("fill_empty_row"):
        kept_grad = tf.raw_ops.SparseFillEmptyRowsGrad(
            reverse_index_map=tf.range(count[0]), grad_values=weights_grad
        ).d_values
    else:
        kept_grad = weights_grad
    return [None, None, None, tf.scatter_nd(places, kept_grad, tf.shape(weights, tf.int64))]


SPEC = OpSpec(
    name=names.PRUNE,
    doc="Drops invalid entries of a batch of sparse ids and fills the rows left empty.\n\n"
    "`prune` keeps entries with id >= 0 and, with both weight attrs, weight > 0; their order is\n"
    "kept. `fill_empty_row` appends (max(default_id, 0), [row, 0], default_weight) for each row\n"
    "that kept nothing, rows ascending. Column 1 of the indices is carried along unread.\n\n"
    "With `num_buckets` > 0 ids outside [0, num_buckets) become `bucket_default` before anything\n"
    "is dropped, which then drops no entry for its id.",
    inputs=INPUTS,
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
    kernels={"CPU": _cpu, "GPU": gpu.kernel("prune")},
    kernel_types={"Tid": IDS, "Tw": FLOATS},
    gradient=_gradient,
)
