"""FusedEmbeddingSparsePreLookUp: prunes, fills and partitions a batch of sparse ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.ops import gpu
from fusion.ops.entries import INPUTS, listing
from fusion.ops.float_access import access, numba_dtype
from fusion.ops.partition import SHAPES, id_splitter
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
    LAST_ROW,
    MOST_ENTRIES,
    PRUNE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
    SHARDS_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)

#: The index of "input" among the values of `entry_order`.
_INPUT = 0


def _row_counter(spec: OpSpec, check_shape: Any) -> Any:
    import numpy as np

    from fusion.cpu_ops.combine import first_unsorted, rows_until_last
    from fusion.runtime.native.frame import INVALID_ARGUMENT, attr, fail, matrix, vector
    from fusion.runtime.native.jit import jit

    slot, arg = spec.slots, spec.places

    @jit
    def count_rows(frame: int) -> int:
        """The number of rows B."""
        if attr(frame, slot.row_count) != LAST_ROW:
            check_shape(frame)
            return vector(frame, arg.sp_dense_shape, np.int64)[0]
        rows = matrix(frame, arg.sp_indices, 0, np.int64)
        bad = first_unsorted(rows)
        if bad >= 0:
            text = "sp_indices[%lld, 0] = %lld is less than the row before it"
            fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0])
        return rows_until_last(rows)

    return count_rows


def _sorter(spec: OpSpec) -> Any:
    import numpy as np

    from fusion.cpu_ops.combine import group_by_row
    from fusion.cpu_ops.prune import take_indices
    from fusion.runtime.native.frame import failed, matrix, scratch, scratch_matrix
    from fusion.runtime.native.jit import Array, jit

    arg = spec.places

    @jit
    def sort(frame: int, entries: Array, batch: int) -> Array:
        """The listed entries by row, those of a row in their order."""
        count = entries.shape[0]
        indices = scratch_matrix(frame, count, 2, np.int64)
        starts = scratch(frame, batch + 1, np.int64)
        order = scratch(frame, count, np.int32)
        result = scratch(frame, count, np.int64)
        if failed(frame):
            return entries
        take_indices(matrix(frame, arg.sp_indices, 0, np.int64), entries, indices)
        group_by_row(indices, batch, starts, order)
        for k in range(count):
            result[k] = entries[order[k]]
        return result

    return sort


def _partitioner(spec: OpSpec, types: Mapping[str, str]) -> Any:
    import numpy as np

    from fusion.cpu_ops.partition import MOD_EV, order_by_shard
    from fusion.cpu_ops.prune import take_indices, take_values
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        attr,
        fail,
        failed,
        list_length,
        matrix,
        output_matrix,
        output_vector,
        scratch,
        scratch_matrix,
        vector,
    )
    from fusion.runtime.native.jit import Array, jit

    tid, stored = numba_dtype(types["Tid"]), access(types["Tw"]).stored
    slot, arg = spec.slots, spec.places
    split = id_splitter(spec, types)

    @jit
    def fail_outside(frame: int, entry: int, key: int, total: int) -> None:
        if entry >= 0:
            text = "sp_values[%lld] = %lld is not an id of a table of %lld rows in %lld shards"
            fail(frame, INVALID_ARGUMENT, text, entry, key, total, list_length(frame))
        else:
            text = "%lld, for empty rows, is not an id of a table of %lld rows in %lld shards"
            fail(frame, INVALID_ARGUMENT, text, key, total, list_length(frame))

    @jit
    def write(frame: int, shard: int, entries: Array, fill_weight: Any) -> None:
        """Writes indices and weights of the entries of one shard."""
        out_indices = output_matrix(frame, 1, shard, entries.shape[0], 2, np.int64)
        out_weights = output_vector(frame, 3, shard, entries.shape[0], stored)
        if failed(frame):
            return
        take_indices(matrix(frame, arg.sp_indices, 0, np.int64), entries, out_indices)
        if attr(frame, slot.use_sparse_weights) != 0:
            weights = vector(frame, arg.sp_weights_values, stored)
            take_values(weights, entries, fill_weight, out_weights)
        else:
            out_weights[:] = fill_weight

    @jit
    def partition(frame: int, entries: Array, fill_id: int, fill_weight: Any) -> None:
        """Writes the listed entries, each to its shard."""
        n_shards = list_length(frame)
        ids = scratch(frame, entries.shape[0], tid)
        permutation = scratch_matrix(frame, entries.shape[0], 2, np.int32)
        by_shard = scratch(frame, entries.shape[0], np.int64)
        starts = scratch(frame, n_shards, np.int64)
        if failed(frame):
            return
        take_values(vector(frame, arg.sp_values, tid), entries, fill_id, ids)
        # A single shard takes any id as it is.
        strategy = MOD_EV if n_shards == 1 else attr(frame, slot.partition_strategy)
        bad, total, counts = split(frame, ids, strategy, permutation)
        if bad >= 0:
            fail_outside(frame, entries[bad], ids[bad], total)
        if failed(frame):
            return
        order_by_shard(entries, permutation, counts, starts, by_shard)
        for shard in range(n_shards):
            part = by_shard[starts[shard] : starts[shard] + counts[shard]]
            write(frame, shard, part, fill_weight)

    return partition


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops.combine import first_unsorted
    from fusion.cpu_ops.elements import MOST_ROWS
    from fusion.cpu_ops.prune import count_true, mark_entries
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        attr,
        fail,
        failed,
        forward_input,
        list_length,
        matrix,
        output_vector,
        vector,
    )
    from fusion.runtime.native.jit import int64, jit

    tid, weight = numba_dtype(types["Tid"]), access(types["Tw"])
    stored, read = weight.stored, weight.read
    slot, arg = spec.slots, spec.places
    check_shape, prunes, mark, list_entries, fill_id, fill_weight = listing(
        spec, types, "prune_invalid_id"
    )
    count_rows, sort = _row_counter(spec, check_shape), _sorter(spec)
    partition = _partitioner(spec, types)

    @jit
    def forward(frame: int, weight_of_filler: Any) -> None:
        """Makes the inputs themselves the outputs of the only shard."""
        forward_input(frame, 0, arg.sp_values)
        forward_input(frame, 1, arg.sp_indices)
        if attr(frame, slot.use_sparse_weights) != 0:
            forward_input(frame, 3, arg.sp_weights_values)
        else:
            count = matrix(frame, arg.sp_indices, 0, np.int64).shape[0]
            out_weights = output_vector(frame, 3, 0, count, stored)
            out_weights[:] = weight_of_filler

    def body(frame: int) -> None:
        batch = count_rows(frame)
        filler, weight_of_filler = fill_id(frame), fill_weight(frame)
        if failed(frame):
            return
        values = vector(frame, arg.sp_values, tid)
        weights = read(frame, vector(frame, arg.sp_weights_values, stored))
        count = values.shape[0]
        flags = output_vector(frame, 2, 0, min(batch, int64(MOST_ROWS)) + count, np.int32)
        if failed(frame):
            return
        kept = mark(frame, weights, flags[:batch])
        if failed(frame):
            return
        least, prune_weights = prunes(frame)
        mark_entries(values, weights, least, prune_weights, flags[batch:])
        fill = attr(frame, slot.fill_empty_row) != 0
        total = kept + (count_true(flags[:batch]) if fill else int64(0))
        if total > int64(MOST_ENTRIES):
            text = "%lld entries are more than the %lld that can be ordered"
            fail(frame, INVALID_ARGUMENT, text, total, int64(MOST_ENTRIES))
        unchanged = kept == count and total == kept
        in_order = attr(frame, slot.entry_order) == _INPUT or (
            unchanged and first_unsorted(matrix(frame, arg.sp_indices, 0, np.int64)) < 0
        )
        if unchanged and in_order and list_length(frame) == 1:
            forward(frame, weight_of_filler)
            return
        entries = list_entries(frame, weights, flags[:batch], total)
        if not in_order:
            entries = sort(frame, entries, batch)
        if not failed(frame):
            partition(frame, entries, filler, weight_of_filler)

    return body


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Puts the gradients of the weights back in place: 0 for pruned entries, fillers dropped.

    Stock TensorFlow's gradient of filling has no gradient itself, so neither has this one.
    """
    from fusion.ops import fused_embedding_sparse_pre_look_up

    n_shards = op.get_attr("num_partitions")
    of_weights, weights_out = grads[-n_shards:], op.outputs[-n_shards:]
    nothing = [None] * (n_shards + 4)
    if not op.get_attr("use_sparse_weights") or all(grad is None for grad in of_weights):
        return nothing
    shapes, (values, indices, dense_shape, weights) = op.inputs[:n_shards], op.inputs[n_shards:]
    # The same once more with numbers from 1 as column 1 tells where each entry went; those filled
    # in have column 0.
    count = tf.size(values, tf.int64)
    numbered = tf.stack([indices[:, 0], tf.range(1, count + 1)], axis=1)
    again = fused_embedding_sparse_pre_look_up(
        partition_shapes=list(shapes),
        sp_values=values,
        sp_indices=numbered,
        sp_dense_shape=dense_shape,
        sp_weights_values=weights,
        **{attr.name: op.get_attr(attr.name) for attr in SPEC.value_attrs},
    )
    places = tf.concat(again.partitioned_indices, axis=0)[:, 1] - 1
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
    return [*nothing[:-1], tf.math.unsorted_segment_sum(of_entries, places, count)]


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
        SHAPES,
        *INPUTS,
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
    kernels={"CPU": _cpu, "GPU": gpu.kernel("pre_lookup")},
    kernel_types={"Tid": IDS, "Tw": FLOATS},
    gradient=_gradient,
)
