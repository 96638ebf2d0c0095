"""FusedEmbeddingSparsePostLookUp on a CPU.

Each shard has a list of entries, and each entry a gathered row of its own. In compiled code the
entries of all shards are numbered through, shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.combine import (
    Bags,
    first_unsorted,
    group_by_row,
    locate_entries,
    rows_until_last,
    sort_bags,
)
from fusion.ops.bags.cpu.bags import forward_kernel
from fusion.ops.bags.cpu.float_access import access
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES


def _row_locator(spec: OpSpec, types: Mapping[str, str]) -> Any:
    item = DTYPES[types["T"]].item_bytes
    arg = spec.input_indices

    @jit
    def locate(frame: op.Frame) -> Any:
        """Addresses int64 [m] of the gathered rows."""
        n_shards = op.list_length(frame)
        bases = op.scratch(frame, n_shards, np.int64)
        counts = op.scratch(frame, n_shards, np.int64)
        if op.failed(frame):
            return bases
        total = int64(0)
        for shard in range(n_shards):
            bases[shard] = op.data(frame, arg.emb_shards, shard)
            counts[shard] = op.size(frame, arg.emb_shards, shard, 0)
            total += counts[shard]
        if total > int64(MAX_ENTRIES):
            text = "emb_shards have %lld entries, but at most %lld can be ordered"
            op.fail(frame, op.INVALID_ARGUMENT, text, total, int64(MAX_ENTRIES))
        addresses = op.scratch(frame, total, np.int64)
        if not op.failed(frame):
            row_bytes = op.size(frame, arg.emb_shards, 0, 1) * item
            locate_entries(bases, counts, row_bytes, addresses)
        return addresses

    return locate


def _joiners(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """Jitted functions `(frame, m)` -> the indices [m, 2] and weights [m] of all shards."""
    stored = DTYPES[types["Tw"]].stored_type
    slot, arg = spec.slots, spec.input_indices

    @jit
    def join_indices(frame: op.Frame, count: int) -> Array:
        if op.list_length(frame) == 1:
            return op.matrix(frame, arg.partitioned_indices, 0, np.int64)
        joined = op.scratch_matrix(frame, count, 2, np.int64)
        if op.failed(frame):
            return joined
        first = 0
        for shard in range(op.list_length(frame)):
            part = op.matrix(frame, arg.partitioned_indices, shard, np.int64)
            for k in range(part.shape[0]):
                joined[first + k, 0] = part[k, 0]
                joined[first + k, 1] = part[k, 1]
            first += part.shape[0]
        return joined

    @jit
    def join_weights(frame: op.Frame, count: int) -> Array:
        if op.list_length(frame) == 1 or op.attr(frame, slot.use_sparse_weights) == 0:
            return op.shard_vector(frame, arg.partitioned_weights, 0, stored)
        joined = op.scratch(frame, count, stored)
        if op.failed(frame):
            return joined
        first = 0
        for shard in range(op.list_length(frame)):
            part = op.shard_vector(frame, arg.partitioned_weights, shard, stored)
            for k in range(part.shape[0]):
                joined[first + k] = part[k]
            first += part.shape[0]
        return joined

    return join_indices, join_weights


def _grouper(spec: OpSpec) -> Any:
    arg = spec.input_indices

    @jit
    def fail_outside(frame: op.Frame, entry: int, row: int, n_rows: int) -> None:
        """Reports an entry by shard and index in it."""
        shard, index = int64(0), int64(entry)
        while index >= op.size(frame, arg.emb_shards, shard, 0):
            index -= op.size(frame, arg.emb_shards, shard, 0)
            shard += 1
        text = "partitioned_indices[%lld][%lld, 0] = %lld is not in [0, %lld), the rows"
        op.fail(frame, op.INVALID_ARGUMENT, text, shard, index, row, n_rows)

    @jit
    def group(frame: op.Frame, indices: Array, n_rows: int) -> Any:
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        starts = op.scratch(frame, n_rows + 1, np.int64)
        order = op.scratch(frame, indices.shape[0], np.int32)
        buffer = op.scratch(frame, indices.shape[0], np.int32)
        if op.failed(frame):
            return starts, order
        bad = group_by_row(indices, n_rows, starts, order)
        if bad >= 0:
            fail_outside(frame, bad, indices[bad, 0], n_rows)
        elif op.list_length(frame) > 1:
            sort_bags(indices, starts, order, buffer)
        return starts, order

    return group


def bag_reader(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function `(frame, n_rows) -> Bags` that reads the bags, checked."""
    read_rows, read_weights = access(types["T"]).read_rows, access(types["Tw"]).read
    slot, arg = spec.slots, spec.input_indices
    locate, group = _row_locator(spec, types), _grouper(spec)
    join_indices, join_weights = _joiners(spec, types)

    @jit
    def read(frame: op.Frame, n_rows: int) -> Any:
        rows = locate(frame)
        count = rows.shape[0]
        flags = op.vector(frame, arg.row_empty_and_invalid_flags, np.int32)
        if flags.shape[0] < n_rows:
            text = "row_empty_and_invalid_flags has %lld elements, but there are %lld rows"
            op.fail(frame, op.INVALID_ARGUMENT, text, int64(flags.shape[0]), n_rows)
        row_indices = op.scratch(frame, count, np.int32)
        if not op.failed(frame):
            rows = read_rows(frame, rows, op.size(frame, arg.emb_shards, 0, 1))
            for k in range(count):
                row_indices[k] = k
        starts, order = group(frame, join_indices(frame, count), n_rows)
        return Bags(
            rows,
            row_indices,
            starts,
            order,
            flags[:n_rows],
            op.attr(frame, slot.default_id) < 0,
            read_weights(frame, join_weights(frame, count)),
        )

    return read


def _row_counter(spec: OpSpec) -> Any:
    """A jitted function `(frame) -> rows of the result` of the forward op."""
    slot, arg = spec.slots, spec.input_indices

    @jit
    def count_rows(frame: op.Frame) -> int:
        if op.attr(frame, slot.row_count) != LAST_ROW:
            batch = op.vector(frame, arg.sp_dense_shape, np.int64)[0]
            if batch < 0:
                text = "sp_dense_shape must not be negative, but has %lld rows"
                op.fail(frame, op.INVALID_ARGUMENT, text, batch)
            return batch
        count = int64(0)
        for shard in range(op.list_length(frame)):
            rows = op.matrix(frame, arg.partitioned_indices, shard, np.int64)
            bad = first_unsorted(rows)
            if bad >= 0:
                text = "partitioned_indices[%lld][%lld, 0] = %lld is less than the row before it"
                op.fail(frame, op.INVALID_ARGUMENT, text, shard, bad, rows[bad, 0])
                return count
            count = max(count, rows_until_last(rows))
        return count

    return count_rows


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return forward_kernel(spec, types, _row_counter(spec), bag_reader(spec, types))
