"""FusedEmbeddingSparsePostLookUpV2 on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops import combine as kernels
from fusion.cpu_ops.combine import Bags
from fusion.ops.bags.cpu.bags import forward_kernel
from fusion.ops.bags.cpu.float_access import access
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES


def _row_finder(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that locates the rows of the unique ids, checked."""
    item = DTYPES[types["T"]].item_bytes
    arg = spec.input_indices

    @jit
    def find_rows(frame: op.Frame) -> Any:
        """Addresses int64 [u] of the gathered rows."""
        n_shards = op.list_length(frame)
        dim = op.size(frame, arg.emb_shards, 0, 1)
        bases = op.scratch(frame, n_shards, np.int64)
        counts = op.scratch(frame, n_shards, np.int64)
        if op.failed(frame):
            return bases
        total = int64(0)
        for shard in range(n_shards):
            bases[shard] = op.data(frame, arg.emb_shards, shard)
            counts[shard] = op.size(frame, arg.emb_shards, shard, 0)
            total += counts[shard]
        permutation = op.matrix(frame, arg.partition_permutation, 0, np.int32)
        if n_shards > 1 and permutation.shape[0] != total:
            text = "partition_permutation has %lld rows, but emb_shards have %lld in all"
            op.fail(frame, op.INVALID_ARGUMENT, text, permutation.shape[0], total)
        addresses = op.scratch(frame, total, np.int64)
        if op.failed(frame):
            return bases
        bad = kernels.locate_rows(permutation, bases, counts, dim * item, addresses)
        if bad >= 0:
            text = "partition_permutation[%lld] = [%lld, %lld] is not a row of emb_shards"
            shard, row = int64(permutation[bad, 0]), int64(permutation[bad, 1])
            op.fail(frame, op.INVALID_ARGUMENT, text, bad, shard, row)
            return addresses
        if n_shards > 1:
            seen = op.scratch(frame, total, np.bool_)
            firsts = op.scratch(frame, n_shards, np.int64)
            if op.failed(frame):
                return addresses
            bad = kernels.first_repeated(permutation, counts, firsts, seen)
            if bad >= 0:
                text = "partition_permutation[%lld] = [%lld, %lld] stands there twice"
                shard, row = int64(permutation[bad, 0]), int64(permutation[bad, 1])
                op.fail(frame, op.INVALID_ARGUMENT, text, bad, shard, row)
        return addresses

    return find_rows


def _bag_grouper(spec: OpSpec) -> Any:
    """A jitted function that groups the entries into bags, with every index checked."""
    arg = spec.input_indices

    @jit
    def group(frame: op.Frame, n_rows: int, n_unique: int) -> Any:
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        rows = op.matrix(frame, arg.indices_before_unique, 0, np.int64)
        unique_idxs = op.vector(frame, arg.unique_idxs, np.int32)
        if rows.shape[0] > MAX_ENTRIES:
            text = "unique_idxs has %lld entries, but at most %lld can be ordered"
            op.fail(frame, op.INVALID_ARGUMENT, text, rows.shape[0], int64(MAX_ENTRIES))
        starts = op.scratch(frame, n_rows + 1, np.int64)
        order = op.scratch(frame, rows.shape[0], np.int32)
        if op.failed(frame):
            return starts, order
        bad = kernels.first_outside(unique_idxs, n_unique)
        if bad >= 0:
            text = "unique_idxs[%lld] = %lld is not in [0, %lld), the rows of emb_shards"
            op.fail(frame, op.INVALID_ARGUMENT, text, bad, int64(unique_idxs[bad]), n_unique)
        bad = kernels.group_by_row(rows, n_rows, starts, order)
        if bad >= 0:
            text = "indices_before_unique[%lld, 0] = %lld is not in [0, %lld), the rows"
            op.fail(frame, op.INVALID_ARGUMENT, text, bad, rows[bad, 0], n_rows)
        return starts, order

    return group


def bag_reader(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function `(frame, n_rows) -> Bags` that reads the bags, checked."""
    table, weight = access(types["T"]), access(types["Tw"])
    read_rows, read_weights, stored = table.read_rows, weight.read, weight.stored
    slot, arg = spec.slots, spec.input_indices
    find_rows, group = _row_finder(spec, types), _bag_grouper(spec)

    @jit
    def read(frame: op.Frame, n_rows: int) -> Any:
        rows = find_rows(frame)
        if not op.failed(frame):
            rows = read_rows(frame, rows, op.size(frame, arg.emb_shards, 0, 1))
        starts, order = group(frame, n_rows, rows.shape[0])
        return Bags(
            rows,
            op.vector(frame, arg.unique_idxs, np.int32),
            starts,
            order,
            op.vector(frame, arg.is_row_empty, np.bool_),
            op.attr(frame, slot.fill_empty_row) != 0 and op.attr(frame, slot.default_id) < 0,
            read_weights(frame, op.vector(frame, arg.sp_weights_values, stored)),
        )

    return read


def _row_counter(spec: OpSpec) -> Any:
    """A jitted function `(frame) -> rows of the result` of the forward op."""
    slot, arg = spec.slots, spec.input_indices

    @jit
    def count_rows(frame: op.Frame) -> int:
        batch = op.vector(frame, arg.sp_dense_shape, np.int64)[0]
        rows = op.matrix(frame, arg.indices_before_unique, 0, np.int64)
        if op.attr(frame, slot.row_count) == LAST_ROW:
            bad = kernels.first_unsorted(rows)
            if bad >= 0:
                text = "indices_before_unique[%lld, 0] = %lld is less than the row before it"
                op.fail(frame, op.INVALID_ARGUMENT, text, bad, rows[bad, 0])
            return kernels.rows_until_last(rows)
        if batch != op.size(frame, arg.is_row_empty, 0, 0):
            text = "is_row_empty has %lld rows, but sp_dense_shape says %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, op.size(frame, arg.is_row_empty, 0, 0), batch)
        return batch

    return count_rows


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return forward_kernel(spec, types, _row_counter(spec), bag_reader(spec, types))
