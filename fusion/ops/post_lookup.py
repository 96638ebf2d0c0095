"""FusedEmbeddingSparsePostLookUpV2: combines gathered rows into bags; and its gradient op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.ops.common import (
    AXIS_ATTR,
    DEFAULT_ID_ATTR,
    FILL_ATTR,
    FLOATS_WITH_KERNELS,
    SHARDS_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
    numba_dtype,
)
from fusion.runtime.spec import Arg, Attr, OpSpec

_KERNEL_TYPES = {"T": FLOATS_WITH_KERNELS, "Tw": FLOATS_WITH_KERNELS}

_ATTRS = (
    SHARDS_ATTR,
    TABLE_ATTR,
    WEIGHTS_ATTR,
    FILL_ATTR,
    DEFAULT_ID_ATTR,
    AXIS_ATTR,
    Attr("combiner", "string", default="mean", allowed=("sum", "mean", "sqrtn"), doc="of a bag"),
    Attr("max_norm", "float", default=-1.0, doc="limit of a row's L2 norm; negative: none"),
    USE_WEIGHTS_ATTR,
    Attr(
        "row_count",
        "string",
        default="dense_shape",
        allowed=("dense_shape", "last_row"),
        doc="rows of the result: dense_shape[0], or those up to the last row with an entry",
    ),
)

_DENSE_SHAPE, _LAST_ROW = range(2)


def _row_finder(spec: OpSpec, types: Mapping[str, str], arg: Mapping[str, int]) -> Any:
    """A jitted function that locates the rows of the unique ids, checked; clipped if asked for."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import jit
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        data,
        fail,
        failed,
        list_length,
        matrix,
        scratch,
        scratch_matrix,
        size,
    )

    dtype, item = numba_dtype(types["T"]), np.dtype(types["T"]).itemsize
    shards, permutation_arg = arg["emb_shards"], arg["partition_permutation"]

    @jit
    def find_rows(frame):
        """Addresses int64 [u] of the gathered rows."""
        n_shards = list_length(frame)
        dim = size(frame, shards, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        if failed(frame):
            return bases
        total = np.int64(0)
        for shard in range(n_shards):
            bases[shard] = data(frame, shards, shard)
            counts[shard] = size(frame, shards, shard, 0)
            total += counts[shard]
        permutation = matrix(frame, permutation_arg, 0, np.int32)
        if n_shards > 1 and permutation.shape[0] != total:
            text = "partition_permutation has %lld rows, but emb_shards have %lld in all"
            fail(frame, INVALID_ARGUMENT, text, permutation.shape[0], total)
        addresses = scratch(frame, total, np.int64)
        if failed(frame):
            return bases
        bad = kernels.locate_rows(permutation, bases, counts, dim * item, addresses)
        if bad >= 0:
            text = "partition_permutation[%lld] = [%lld, %lld] is not a row of emb_shards"
            shard, place = np.int64(permutation[bad, 0]), np.int64(permutation[bad, 1])
            fail(frame, INVALID_ARGUMENT, text, bad, shard, place)
        return addresses

    @jit
    def clip(frame, addresses, limit):
        """Replaces rows by their clipped copies; nothing if `limit` < 0."""
        if limit < 0:
            return addresses
        dim = size(frame, shards, 0, 1)
        copies = scratch_matrix(frame, addresses.shape[0], dim, dtype)
        clipped = scratch(frame, addresses.shape[0], np.int64)
        if failed(frame):
            return addresses
        kernels.clip_rows(addresses, limit, dtype, copies)
        for k in range(addresses.shape[0]):
            clipped[k] = copies.ctypes.data + k * dim * item
        return clipped

    return find_rows, clip


def _bag_grouper(arg: Mapping[str, int]) -> Any:
    """A jitted function that groups the entries into bags, with every index checked."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import jit
    from fusion.runtime.native import INVALID_ARGUMENT, fail, failed, matrix, scratch, vector

    rows_arg, places_arg = arg["indices_before_unique"], arg["unique_idxs"]

    @jit
    def group(frame, n_rows, n_unique):
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        rows = matrix(frame, rows_arg, 0, np.int64)
        places = vector(frame, places_arg, np.int32)
        starts = scratch(frame, n_rows + 1, np.int64)
        order = scratch(frame, rows.shape[0], np.int32)
        if failed(frame):
            return starts, order
        bad = kernels.first_outside(places, n_unique)
        if bad >= 0:
            text = "unique_idxs[%lld] = %lld is not in [0, %lld), the rows of emb_shards"
            fail(frame, INVALID_ARGUMENT, text, bad, np.int64(places[bad]), n_unique)
        bad = kernels.group_by_row(rows, n_rows, starts, order)
        if bad >= 0:
            text = "indices_before_unique[%lld, 0] = %lld is not in [0, %lld), the rows"
            fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0], n_rows)
        return starts, order

    return group


def _args(spec: OpSpec) -> dict[str, int]:
    return {arg.name: spec.input_index(arg.name) for arg in spec.inputs}


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import jit
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

    dtype, tw = numba_dtype(types["T"]), numba_dtype(types["Tw"])
    arg = _args(spec)
    find_rows, clip = _row_finder(spec, types, arg)
    group = _bag_grouper(arg)
    shape_arg, rows_arg = arg["sp_dense_shape"], arg["indices_before_unique"]
    empty_arg, places_arg = arg["is_row_empty"], arg["unique_idxs"]
    weights_arg = arg["sp_weights_values"]
    row_count_slot, combiner_slot = spec.attr_index("row_count"), spec.attr_index("combiner")
    max_norm_slot, use_slot = spec.attr_index("max_norm"), spec.attr_index("use_sparse_weights")
    fill_slot, default_id_slot = spec.attr_index("fill_empty_row"), spec.attr_index("default_id")

    @jit
    def count_rows(frame):
        """The number of rows of the result."""
        batch = vector(frame, shape_arg, np.int64)[0]
        rows = matrix(frame, rows_arg, 0, np.int64)
        if attr(frame, row_count_slot) == _LAST_ROW:
            bad = kernels.first_unsorted(rows)
            if bad >= 0:
                text = "indices_before_unique[%lld, 0] = %lld is less than the row before it"
                fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0])
            return rows[rows.shape[0] - 1, 0] + 1 if rows.shape[0] > 0 else np.int64(0)
        if batch != size(frame, empty_arg, 0, 0):
            text = "is_row_empty has %lld rows, but sp_dense_shape says %lld"
            fail(frame, INVALID_ARGUMENT, text, size(frame, empty_arg, 0, 0), batch)
        return batch

    def body(frame: int) -> None:
        n_rows = count_rows(frame)
        addresses = find_rows(frame)
        if failed(frame):
            return
        starts, order = group(frame, n_rows, addresses.shape[0])
        addresses = clip(frame, addresses, attr_float(frame, max_norm_slot))
        dim = size(frame, 0, 0, 1)
        block = scratch(frame, dim, dtype)
        if failed(frame):
            return
        out = output_matrix(frame, 0, 0, n_rows, dim, dtype)
        counts = output_vector(frame, 1, 0, n_rows, np.int32)
        if failed(frame):
            return
        kernels.combine_bags(
            addresses,
            vector(frame, places_arg, np.int32),
            starts,
            order,
            vector(frame, empty_arg, np.bool_),
            attr(frame, fill_slot) != 0 and attr(frame, default_id_slot) < 0,
            vector(frame, weights_arg, tw),
            attr(frame, use_slot) != 0,
            attr(frame, combiner_slot),
            dtype,
            block,
            out,
            counts,
        )

    return body


def _cpu_grad(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import combine as forward
    from fusion.cpu_ops import combine_grad as kernels
    from fusion.runtime.jit import jit
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        attr,
        attr_float,
        fail,
        failed,
        list_length,
        matrix,
        output_matrix,
        output_vector,
        scratch,
        size,
        vector,
    )

    dtype, item = numba_dtype(types["T"]), np.dtype(types["T"]).itemsize
    tw = numba_dtype(types["Tw"])
    arg = _args(spec)
    find_rows, clip = _row_finder(spec, types, arg)
    group = _bag_grouper(arg)
    grad_arg, shards_arg = arg["top_grad"], arg["emb_shards"]
    permutation_arg, empty_arg = arg["partition_permutation"], arg["is_row_empty"]
    places_arg, weights_arg = arg["unique_idxs"], arg["sp_weights_values"]
    combiner_slot, max_norm_slot = spec.attr_index("combiner"), spec.attr_index("max_norm")
    fill_slot, default_id_slot = spec.attr_index("fill_empty_row"), spec.attr_index("default_id")
    use_slot = spec.attr_index("use_sparse_weights")

    @jit
    def allocate_grads(frame, n_unique):
        """Addresses int64 [u] of the rows of the gradients, laid out as the gathered rows."""
        n_shards = list_length(frame)
        dim = size(frame, shards_arg, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        addresses = scratch(frame, n_unique, np.int64)
        if failed(frame):
            return addresses
        for shard in range(n_shards):
            counts[shard] = size(frame, shards_arg, shard, 0)
            out = output_matrix(frame, 0, shard, counts[shard], dim, dtype)
            bases[shard] = out.ctypes.data
            if n_shards > 1:
                # A row that no pair of the permutation names has no gradient.
                out[:] = 0
        if not failed(frame):
            permutation = matrix(frame, permutation_arg, 0, np.int32)
            forward.locate_rows(permutation, bases, counts, dim * item, addresses)
        return addresses

    def body(frame: int) -> None:
        top_grad = matrix(frame, grad_arg, 0, dtype)
        dim = top_grad.shape[1]
        rows = find_rows(frame)
        if failed(frame):
            return
        starts, order = group(frame, top_grad.shape[0], rows.shape[0])
        limit = attr_float(frame, max_norm_slot)
        grad_rows = allocate_grads(frame, rows.shape[0])
        scaled = scratch(frame, dim, dtype)
        product = scratch(frame, dim, dtype)
        touched = scratch(frame, rows.shape[0], np.bool_)
        if failed(frame):
            return
        places = vector(frame, places_arg, np.int32)
        is_row_empty = vector(frame, empty_arg, np.bool_)
        mask_empty = attr(frame, fill_slot) != 0 and attr(frame, default_id_slot) < 0
        weights = vector(frame, weights_arg, tw)
        weighted = attr(frame, use_slot) != 0
        combiner = attr(frame, combiner_slot)
        kernels.scatter_rows(
            top_grad, grad_rows, places, starts, order, is_row_empty, mask_empty, weights,
            weighted, combiner, dtype, scaled, product, touched,
        )
        if limit >= 0:
            kernels.unclip_rows(rows, grad_rows, dim, limit, dtype)
        weight_grads = output_vector(frame, 1, 0, places.shape[0] if weighted else 0, tw)
        if weighted:
            clipped = clip(frame, rows, limit)
            if failed(frame):
                return
            kernels.weight_grads(
                top_grad, clipped, places, starts, order, is_row_empty, mask_empty, weights,
                combiner, dtype, scaled, product, weight_grads,
            )

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


_SHARDS = Arg("emb_shards", "T", "[?, D]", length="num_partitions", doc="gathered rows")
_PERMUTATION = Arg("partition_permutation", "int32", "[?, 2]", doc="or a dummy when P is 1")
_INDICES = Arg("indices_before_unique", "int64", "[m, 2]", doc="row of each entry in column 0")
_EMPTY = Arg("is_row_empty", "bool", "[B]", doc="rows that were empty before they were filled")
_PLACES = Arg("unique_idxs", "int32", "[m]", doc="unique id of each entry")
_WEIGHTS = Arg("sp_weights_values", "Tw", "[m]", when="use_sparse_weights", doc="or a dummy")

FORWARD = OpSpec(
    name="FusedEmbeddingSparsePostLookUpV2",
    doc="Combines the gathered rows of unique ids into one vector per row of the batch.\n\n"
    "sum: S = sum of w e; mean: S / sum of w; sqrtn: S / sqrt(sum of w^2), where e is the row,\n"
    "times max_norm / max(norm, max_norm) if max_norm >= 0, and w its weight or 1. Rows flagged\n"
    "empty give zeros if they were filled with no default_id; rows without entries give zeros.",
    inputs=(
        _SHARDS,
        _PERMUTATION,
        Arg("sp_dense_shape", "int64", "[2]", doc="rows B first"),
        _INDICES,
        _EMPTY,
        _PLACES,
        _WEIGHTS,
    ),
    outputs=(
        Arg("emb_vectors", "T", "[?, D]"),
        Arg("feature_nums", "int32", "[?]", doc="entries of each row, those filled in counted"),
    ),
    attrs=_ATTRS,
    kernels={"CPU": _cpu},
    kernel_types=_KERNEL_TYPES,
    gradient=_gradient,
)

BACKWARD = OpSpec(
    name="FusedEmbeddingSparsePostLookUpV2Grad",
    doc="The gradient of FusedEmbeddingSparsePostLookUpV2, summed per unique id.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        _SHARDS,
        _PERMUTATION,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        _INDICES,
        _PLACES,
        _EMPTY,
        _WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[?, D]", length="num_partitions"),
        Arg("grad_weights", "Tw", "[?]", doc="of each entry; empty without weights"),
    ),
    attrs=_ATTRS,
    kernels={"CPU": _cpu_grad},
    kernel_types=_KERNEL_TYPES,
)
