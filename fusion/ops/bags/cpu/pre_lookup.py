"""FusedEmbeddingSparsePreLookUp on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.combine import first_unsorted, group_by_row, rows_until_last
from fusion.cpu_ops.elements import MAX_ROWS
from fusion.ops.bags.cpu.entries import listing
from fusion.ops.bags.cpu.float_access import access
from fusion.ops.bags.cpu.partition import id_splitter
from fusion.ops.bags.cpu_kernels.partition import MOD_EV, order_by_shard
from fusion.ops.bags.cpu_kernels.prune import count_true, mark_entries, take_indices, take_values
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES

#: The index of "input" among the values of `entry_order`.
_INPUT = 0


def _row_counter(spec: OpSpec, check_shape: Any) -> Any:
    slot, arg = spec.slots, spec.input_indices

    @jit
    def count_rows(frame: op.Frame) -> int:
        """The number of rows B."""
        if op.attr(frame, slot.row_count) != LAST_ROW:
            check_shape(frame)
            return op.vector(frame, arg.sp_dense_shape, np.int64)[0]
        rows = op.matrix(frame, arg.sp_indices, 0, np.int64)
        bad = first_unsorted(rows)
        if bad >= 0:
            text = "sp_indices[%lld, 0] = %lld is less than the row before it"
            op.fail(frame, op.INVALID_ARGUMENT, text, bad, rows[bad, 0])
        return rows_until_last(rows)

    return count_rows


def _sorter(spec: OpSpec) -> Any:
    arg = spec.input_indices

    @jit
    def sort(frame: op.Frame, entries: Array, batch: int) -> Array:
        """The listed entries by row, those of a row in their order."""
        count = entries.shape[0]
        indices = op.scratch_matrix(frame, count, 2, np.int64)
        starts = op.scratch(frame, batch + 1, np.int64)
        order = op.scratch(frame, count, np.int32)
        result = op.scratch(frame, count, np.int64)
        if op.failed(frame):
            return entries
        take_indices(op.matrix(frame, arg.sp_indices, 0, np.int64), entries, indices)
        group_by_row(indices, batch, starts, order)
        for k in range(count):
            result[k] = entries[order[k]]
        return result

    return sort


def _partitioner(spec: OpSpec, types: Mapping[str, str]) -> Any:
    tid, stored = DTYPES[types["Tid"]].stored_type, DTYPES[types["Tw"]].stored_type
    slot, arg = spec.slots, spec.input_indices
    split = id_splitter(spec, types)

    @jit
    def fail_outside(frame: op.Frame, entry: int, key: int, total: int) -> None:
        if entry >= 0:
            text = "sp_values[%lld] = %lld is not an id of a table of %lld rows in %lld shards"
            op.fail(frame, op.INVALID_ARGUMENT, text, entry, key, total, op.list_length(frame))
        else:
            text = "%lld, for empty rows, is not an id of a table of %lld rows in %lld shards"
            op.fail(frame, op.INVALID_ARGUMENT, text, key, total, op.list_length(frame))

    @jit
    def write(frame: op.Frame, shard: int, entries: Array, fill_weight: Any) -> None:
        """Writes indices and weights of the entries of one shard."""
        out_indices = op.output_matrix(frame, 1, shard, entries.shape[0], 2, np.int64)
        out_weights = op.output_vector(frame, 3, shard, entries.shape[0], stored)
        if op.failed(frame):
            return
        take_indices(op.matrix(frame, arg.sp_indices, 0, np.int64), entries, out_indices)
        if op.attr(frame, slot.use_sparse_weights) != 0:
            weights = op.vector(frame, arg.sp_weights_values, stored)
            take_values(weights, entries, fill_weight, out_weights)
        else:
            out_weights[:] = fill_weight

    @jit
    def partition(frame: op.Frame, entries: Array, fill_id: int, fill_weight: Any) -> None:
        """Writes the listed entries, each to its shard."""
        n_shards = op.list_length(frame)
        ids = op.scratch(frame, entries.shape[0], tid)
        permutation = op.scratch_matrix(frame, entries.shape[0], 2, np.int32)
        by_shard = op.scratch(frame, entries.shape[0], np.int64)
        starts = op.scratch(frame, n_shards, np.int64)
        if op.failed(frame):
            return
        take_values(op.vector(frame, arg.sp_values, tid), entries, fill_id, ids)
        # A single shard takes any id as it is.
        strategy = MOD_EV if n_shards == 1 else op.attr(frame, slot.partition_strategy)
        bad, total, counts = split(frame, ids, strategy, permutation)
        if bad >= 0:
            fail_outside(frame, entries[bad], ids[bad], total)
        if op.failed(frame):
            return
        order_by_shard(entries, permutation, counts, starts, by_shard)
        for shard in range(n_shards):
            part = by_shard[starts[shard] : starts[shard] + counts[shard]]
            write(frame, shard, part, fill_weight)

    return partition


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    tid, weight = DTYPES[types["Tid"]].stored_type, access(types["Tw"])
    stored, read = weight.stored, weight.read
    slot, arg = spec.slots, spec.input_indices
    check_shape, prunes, mark, list_entries, fill_id, fill_weight = listing(
        spec, types, "prune_invalid_id"
    )
    count_rows, sort = _row_counter(spec, check_shape), _sorter(spec)
    partition = _partitioner(spec, types)

    @jit
    def forward(frame: op.Frame, weight_of_filler: Any) -> None:
        """Makes the inputs themselves the outputs of the only shard."""
        op.forward_input(frame, 0, arg.sp_values)
        op.forward_input(frame, 1, arg.sp_indices)
        if op.attr(frame, slot.use_sparse_weights) != 0:
            op.forward_input(frame, 3, arg.sp_weights_values)
        else:
            count = op.matrix(frame, arg.sp_indices, 0, np.int64).shape[0]
            out_weights = op.output_vector(frame, 3, 0, count, stored)
            out_weights[:] = weight_of_filler

    def body(frame: op.Frame) -> None:
        batch = count_rows(frame)
        filler, weight_of_filler = fill_id(frame), fill_weight(frame)
        if op.failed(frame):
            return
        values = op.vector(frame, arg.sp_values, tid)
        weights = read(frame, op.vector(frame, arg.sp_weights_values, stored))
        count = values.shape[0]
        flags = op.output_vector(frame, 2, 0, min(batch, int64(MAX_ROWS)) + count, np.int32)
        if op.failed(frame):
            return
        kept_count = mark(frame, weights, flags[:batch])
        if op.failed(frame):
            return
        min_id, prune_weights = prunes(frame)
        mark_entries(values, weights, min_id, prune_weights, flags[batch:])
        fill = op.attr(frame, slot.fill_empty_row) != 0
        total = kept_count + (count_true(flags[:batch]) if fill else int64(0))
        if total > int64(MAX_ENTRIES):
            text = "%lld entries are more than the %lld that can be ordered"
            op.fail(frame, op.INVALID_ARGUMENT, text, total, int64(MAX_ENTRIES))
        unchanged = kept_count == count and total == kept_count
        in_order = op.attr(frame, slot.entry_order) == _INPUT or (
            unchanged and first_unsorted(op.matrix(frame, arg.sp_indices, 0, np.int64)) < 0
        )
        if unchanged and in_order and op.list_length(frame) == 1:
            forward(frame, weight_of_filler)
            return
        entries = list_entries(frame, weights, flags[:batch], total)
        if not in_order:
            entries = sort(frame, entries, batch)
        if not op.failed(frame):
            partition(frame, entries, filler, weight_of_filler)

    return body
