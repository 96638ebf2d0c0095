"""FusedEmbeddingSparsePostLookUpV2Grad: the gradient of combining gathered rows into bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from fusion.ops.second_order import clip, combine_entries, gradient_of_gradient
from fusion.runtime.spec import Arg, OpSpec


def _grad_allocator(spec: OpSpec, types: Mapping[str, str]) -> Any:
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import jit
    from fusion.runtime.native import failed, list_length, matrix, output_matrix, scratch, size

    stored = access(types["T"]).stored
    item = np.dtype(stored).itemsize
    arg = spec.places

    @jit
    def allocate_grads(frame: int, n_unique: int) -> Any:
        """Addresses int64 [u] of the rows of the gradients, laid out as the gathered rows."""
        n_shards = list_length(frame)
        dim = size(frame, arg.emb_shards, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        addresses = scratch(frame, n_unique, np.int64)
        if failed(frame):
            return addresses
        for shard in range(n_shards):
            counts[shard] = size(frame, arg.emb_shards, shard, 0)
            out = output_matrix(frame, 0, shard, counts[shard], dim, stored)
            bases[shard] = out.ctypes.data
            if n_shards > 1:
                # A row that no pair of the permutation names has no gradient.
                out[:] = 0
        if not failed(frame):
            permutation = matrix(frame, arg.partition_permutation, 0, np.int32)
            kernels.locate_rows(permutation, bases, counts, dim * item, addresses)
        return addresses

    return allocate_grads


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import combine_grad as kernels
    from fusion.runtime.native import (
        attr,
        attr_float,
        failed,
        matrix,
        output_vector,
        scratch,
        vector,
    )

    table, weight = access(types["T"]), access(types["Tw"])
    stored, dtype, tw = table.stored, table.compute, weight.stored
    read, read_rows = table.read, table.read_rows
    working_rows, write_rows = table.working_rows, table.write_rows
    read_weights, working, write = weight.read, weight.working, weight.write
    slot, arg = spec.slots, spec.places
    find_rows, clip = row_finder(spec, types), row_clipper(spec, types)
    group, allocate_grads = bag_grouper(spec), _grad_allocator(spec, types)

    def body(frame: int) -> None:
        addresses = find_rows(frame)
        top_grad = read(frame, matrix(frame, arg.top_grad, 0, stored))
        weights = read_weights(frame, vector(frame, arg.sp_weights_values, tw))
        if failed(frame):
            return
        dim = top_grad.shape[1]
        rows = read_rows(frame, addresses, dim)
        starts, order = group(frame, top_grad.shape[0], rows.shape[0])
        limit = attr_float(frame, slot.max_norm)
        grad_addresses = allocate_grads(frame, addresses.shape[0])
        grad_rows = working_rows(frame, grad_addresses, dim)
        scaled = scratch(frame, dim, dtype)
        product = scratch(frame, dim, dtype)
        touched = scratch(frame, rows.shape[0], np.bool_)
        if failed(frame):
            return
        places = vector(frame, arg.unique_idxs, np.int32)
        is_row_empty = vector(frame, arg.is_row_empty, np.bool_)
        mask_empty = attr(frame, slot.fill_empty_row) != 0 and attr(frame, slot.default_id) < 0
        weighted = attr(frame, slot.use_sparse_weights) != 0
        combiner = attr(frame, slot.combiner)
        kernels.scatter_rows(
            top_grad,
            grad_rows,
            places,
            starts,
            order,
            is_row_empty,
            mask_empty,
            weights,
            weighted,
            combiner,
            dtype,
            scaled,
            product,
            touched,
        )
        if limit >= 0:
            kernels.unclip_rows(rows, grad_rows, dim, limit, dtype)
        write_rows(grad_rows, grad_addresses, dim)
        grad_weights = output_vector(frame, 1, 0, places.shape[0] if weighted else 0, tw)
        if weighted:
            clipped = clip(frame, rows, limit)
            weight_grads = working(frame, grad_weights)
            if failed(frame):
                return
            kernels.weight_grads(
                top_grad,
                clipped,
                places,
                starts,
                order,
                is_row_empty,
                mask_empty,
                weights,
                combiner,
                dtype,
                scaled,
                product,
                weight_grads,
            )
            write(weight_grads, grad_weights)

    return body


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
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

    def combine(shards: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        unique = clip(op, _in_order(shards, permutation))
        entries = tf.gather(unique, unique_idxs)
        return combine_entries(op, entries, weights, indices[:, 0], n_rows, masked)

    of_top, *of_rows, of_weights = gradient_of_gradient(
        op, combine, top_grad, shards, weights, grads
    )
    return [of_top, *of_rows, None, None, None, None, None, of_weights]


def _in_order(shards: Sequence[tf.Tensor], permutation: tf.Tensor) -> tf.Tensor:
    """The rows [u, D] of the unique ids, from those of each shard."""
    if len(shards) == 1:
        return shards[0]
    counts = tf.stack([tf.shape(shard)[0] for shard in shards])
    firsts = tf.cumsum(counts, exclusive=True)
    return tf.gather(tf.concat(shards, 0), tf.gather(firsts, permutation[:, 0]) + permutation[:, 1])


SPEC = OpSpec(
    name="FusedEmbeddingSparsePostLookUpV2Grad",
    doc="The gradient of FusedEmbeddingSparsePostLookUpV2, summed per unique id.\n\n"
    "Half types are summed in float32, and each result is rounded once.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        SHARDS,
        PERMUTATION,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        INDICES,
        PLACES,
        EMPTY,
        WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[?, D]", length="num_partitions"),
        Arg("grad_weights", "Tw", "[?]", doc="of each entry; empty without weights"),
    ),
    attrs=ATTRS,
    kernels={"CPU": _cpu},
    kernel_types=KERNEL_TYPES,
    gradient=_gradient,
)
