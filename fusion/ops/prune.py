"""PruneInvalidAndFillEmptyRows: drops invalid entries and fills the rows left empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.ops.common import (
    DEFAULT_ID_ATTR,
    FILL_ATTR,
    FLOATS,
    IDS,
    IDS_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
    numba_dtype,
)
from fusion.ops.precision import access
from fusion.runtime.spec import Arg, Attr, OpSpec


def _checker(spec: OpSpec, types: Mapping[str, str]) -> Any:
    import numpy as np

    from fusion.runtime.jit import jit
    from fusion.runtime.native import INVALID_ARGUMENT, attr, fail, vector

    slot, arg = spec.slots, spec.places
    largest_id = np.iinfo(numba_dtype(types["Tid"])).max

    @jit
    def check(frame: int) -> None:
        """Reports a shape or a default id that cannot be."""
        shape = vector(frame, arg.sp_dense_shape, np.int64)
        if shape[0] < 0 or shape[1] < 0:
            text = "sp_dense_shape must not be negative, but is [%lld, %lld]"
            fail(frame, INVALID_ARGUMENT, text, shape[0], shape[1])
        if attr(frame, slot.default_id) > largest_id:
            text = "default_id = %lld does not fit the type of sp_values"
            fail(frame, INVALID_ARGUMENT, text, attr(frame, slot.default_id))

    return check


def _copier(spec: OpSpec, types: Mapping[str, str]) -> Any:
    import numpy as np

    from fusion.cpu_ops import prune as kernels
    from fusion.runtime.jit import Array, jit
    from fusion.runtime.native import (
        attr,
        attr_float,
        failed,
        matrix,
        output_matrix,
        output_vector,
        scratch,
    )

    tid, weight = numba_dtype(types["Tid"]), access(types["Tw"])
    stored, tw, working, write = weight.stored, weight.compute, weight.working, weight.write
    slot, arg = spec.slots, spec.places

    @jit
    def copy(frame: int, values: Array, weights: Array, is_row_empty: Array, total: int) -> None:
        """Writes ids, rows and real weights of the `total` entries kept or filled in."""
        rows = matrix(frame, arg.sp_indices, 0, np.int64)
        prune = attr(frame, slot.prune) != 0
        use_weights = attr(frame, slot.use_sparse_weights) != 0
        prune_weights = use_weights and attr(frame, slot.prune_sparse_weights) != 0
        out_values = output_vector(frame, 0, 0, total, tid)
        out_rows = output_matrix(frame, 1, 0, total, 2, np.int64)
        places = scratch(frame, total, np.int64)
        if failed(frame):
            return
        kept = kernels.copy_kept(
            values, rows, weights, prune, prune_weights, out_values, out_rows, places
        )
        if total > kept:
            fill_id = tid(max(attr(frame, slot.default_id), 0))
            kernels.fill_rows(is_row_empty, kept, fill_id, out_values, out_rows)
        if use_weights:
            output = output_vector(frame, 2, 0, total, stored)
            out_weights = working(frame, output)
            if not failed(frame):
                for k in range(kept):
                    out_weights[k] = weights[places[k]]
                out_weights[kept:] = tw(attr_float(frame, slot.default_weight))
                write(out_weights, output)

    return copy


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import prune as kernels
    from fusion.runtime.jit import int64
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        attr,
        attr_float,
        fail,
        failed,
        forward_input,
        matrix,
        output_vector,
        vector,
    )

    tid, weight = numba_dtype(types["Tid"]), access(types["Tw"])
    stored, tw, read = weight.stored, weight.compute, weight.read
    working, write = weight.working, weight.write
    slot, arg = spec.slots, spec.places
    check, copy = _checker(spec, types), _copier(spec, types)

    def body(frame: int) -> None:
        check(frame)
        if failed(frame):
            return
        values = vector(frame, arg.sp_values, tid)
        rows = matrix(frame, arg.sp_indices, 0, np.int64)
        weights = read(frame, vector(frame, arg.sp_weights_values, stored))
        batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
        use_weights = attr(frame, slot.use_sparse_weights) != 0
        prune_weights = use_weights and attr(frame, slot.prune_sparse_weights) != 0
        prune = attr(frame, slot.prune) != 0
        is_row_empty = output_vector(frame, 3, 0, batch, np.bool_)
        if failed(frame):
            return
        kept = kernels.mark_rows(values, rows, weights, prune, prune_weights, is_row_empty)
        if kept < 0:
            text = "sp_indices[%lld, 0] = %lld is not in [0, %lld), the rows of sp_dense_shape"
            fail(frame, INVALID_ARGUMENT, text, -1 - kept, rows[-1 - kept, 0], int64(batch))
            return
        filled = int64(0)
        if attr(frame, slot.fill_empty_row) != 0:
            filled = kernels.count_true(is_row_empty)
        total = kept + filled
        if kept == values.shape[0] and filled == 0:
            forward_input(frame, 0, arg.sp_values)
            forward_input(frame, 1, arg.sp_indices)
            if use_weights:
                forward_input(frame, 2, arg.sp_weights_values)
        else:
            copy(frame, values, weights, is_row_empty, total)
        if not use_weights:
            output = output_vector(frame, 2, 0, total, stored)
            out_weights = working(frame, output)
            if not failed(frame):
                out_weights[:] = tw(attr_float(frame, slot.default_weight))
                write(out_weights, output)

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
        keep = values >= 0
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
    name="PruneInvalidAndFillEmptyRows",
    doc="Drops invalid entries of a batch of sparse ids and fills the rows left empty.\n\n"
    "`prune` keeps entries with id >= 0 and, with both weight attrs, weight > 0; their order is\n"
    "kept. `fill_empty_row` appends (max(default_id, 0), [row, 0], default_weight) for each row\n"
    "that kept nothing, rows ascending. Column 1 of the indices is carried along unread.",
    inputs=(
        Arg("sp_values", "Tid", "[nnz]", doc="ids"),
        Arg("sp_indices", "int64", "[nnz, 2]", doc="row of each entry in column 0"),
        Arg("sp_dense_shape", "int64", "[2]", doc="rows B first"),
        Arg("sp_weights_values", "Tw", "[nnz]", when="use_sparse_weights", doc="or a dummy"),
    ),
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
        Attr("prune_sparse_weights", "bool", default=False, doc="whether weights <= 0 are invalid"),
        Attr("default_weight", "float", default=1.0, doc="weight of the entries filled in"),
    ),
    kernels={"CPU": _cpu},
    kernel_types={"Tid": IDS, "Tw": FLOATS},
    gradient=_gradient,
)
