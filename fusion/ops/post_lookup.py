"""FusedEmbeddingSparsePostLookUpV2: combines gathered rows into bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.ops.bags import (
    ATTRS,
    EMPTY,
    INDICES,
    KERNEL_TYPES,
    PERMUTATION,
    PLACES,
    SHARDS,
    WEIGHTS,
    bag_grouper,
    row_clipper,
    row_finder,
)
from fusion.ops.precision import access
from fusion.runtime.spec import Arg, OpSpec

#: The values of `row_count`, by place.
_DENSE_SHAPE, _LAST_ROW = range(2)


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import int64, jit
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        attr,
        attr_float,
        fail,
        failed,
        matrix,
        output_matrix,
        output_vector,
        scratch,
        size,
        vector,
    )

    table, weight = access(types["T"]), access(types["Tw"])
    stored, dtype = table.stored, table.compute
    read_rows, working, write = table.read_rows, table.working, table.write
    tw, read_weights = weight.stored, weight.read
    slot, arg = spec.slots, spec.places
    find_rows, clip = row_finder(spec, types), row_clipper(spec, types)
    group = bag_grouper(spec)

    @jit
    def count_rows(frame: int) -> int:
        """The number of rows of the result."""
        batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
        rows = matrix(frame, arg.indices_before_unique, 0, np.int64)
        if attr(frame, slot.row_count) == _LAST_ROW:
            bad = kernels.first_unsorted(rows)
            if bad >= 0:
                text = "indices_before_unique[%lld, 0] = %lld is less than the row before it"
                fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0])
            return rows[rows.shape[0] - 1, 0] + 1 if rows.shape[0] > 0 else int64(0)
        if batch != size(frame, arg.is_row_empty, 0, 0):
            text = "is_row_empty has %lld rows, but sp_dense_shape says %lld"
            fail(frame, INVALID_ARGUMENT, text, size(frame, arg.is_row_empty, 0, 0), batch)
        return batch

    def body(frame: int) -> None:
        n_rows = count_rows(frame)
        addresses = find_rows(frame)
        if failed(frame):
            return
        starts, order = group(frame, n_rows, addresses.shape[0])
        dim = size(frame, 0, 0, 1)
        rows = read_rows(frame, addresses, dim)
        rows = clip(frame, rows, attr_float(frame, slot.max_norm))
        weights = read_weights(frame, vector(frame, arg.sp_weights_values, tw))
        block = scratch(frame, dim, dtype)
        if failed(frame):
            return
        output = output_matrix(frame, 0, 0, n_rows, dim, stored)
        out = working(frame, output)
        counts = output_vector(frame, 1, 0, n_rows, np.int32)
        if failed(frame):
            return
        kernels.combine_bags(
            rows,
            vector(frame, arg.unique_idxs, np.int32),
            starts,
            order,
            vector(frame, arg.is_row_empty, np.bool_),
            attr(frame, slot.fill_empty_row) != 0 and attr(frame, slot.default_id) < 0,
            weights,
            attr(frame, slot.use_sparse_weights) != 0,
            attr(frame, slot.combiner),
            dtype,
            block,
            out,
            counts,
        )
        write(out, output)

    return body


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of the gathered rows and of the weights, by the gradient op."""
    from fusion.ops import fused_embedding_sparse_post_look_up_v2_grad

    n_shards = op.get_attr("num_partitions")
    inputs = list(op.inputs)
    shards, rest = inputs[:n_shards], inputs[n_shards:]
    permutation, _, indices, is_row_empty, unique_idxs, weights = rest
    result = fused_embedding_sparse_post_look_up_v2_grad(
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
    name="FusedEmbeddingSparsePostLookUpV2",
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
        Arg("sp_dense_shape", "int64", "[2]", doc="rows B first"),
        INDICES,
        EMPTY,
        PLACES,
        WEIGHTS,
    ),
    outputs=(
        Arg("emb_vectors", "T", "[?, D]"),
        Arg("feature_nums", "int32", "[?]", doc="entries of each row, those filled in counted"),
    ),
    attrs=ATTRS,
    kernels={"CPU": _cpu},
    kernel_types=KERNEL_TYPES,
    gradient=_gradient,
)
