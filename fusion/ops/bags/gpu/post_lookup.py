"""FusedEmbeddingSparsePostLookUpV2 on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import error_record, on_host
from fusion.gpu_ops.layout.records import Entries, GatheredRows
from fusion.ops.bags.gpu.bags import bag_combiner, rows_to_last, shard_lister
from fusion.ops.bags.gpu_steps.bags import bags
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES


def entries_of(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame, rows of the batch) -> the op's `Entries`."""
    slot, arg = spec.slots, spec.input_indices
    item, dtype = DTYPES[types["Tw"]].item_bytes, DTYPES[types["Tw"]].code

    @jit
    def entries(frame: op.Frame, batch: int) -> Any:
        number, indices = (
            op.size(frame, arg.unique_idxs, 0, 0),
            op.data(frame, arg.indices_before_unique, 0),
        )
        if number > int64(MAX_ENTRIES):
            text = "unique_idxs has %lld entries, but at most %lld can be ordered"
            op.fail(frame, op.INVALID_ARGUMENT, text, number, int64(MAX_ENTRIES))
        weighted = op.attr(frame, slot.use_sparse_weights) != 0
        weights = op.data(frame, arg.sp_weights_values, 0) if weighted else int64(0)
        return Entries(int64(0), int64(0), number, indices, batch, weights, dtype, item)

    return entries


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg = spec.slots, spec.input_indices
    item, stored = DTYPES[types["T"]].item_bytes, DTYPES[types["T"]].stored_type
    entries, list_shards = entries_of(spec, types), shard_lister(spec)
    combine, put_in_bags = bag_combiner(spec, types), on_host(bags)

    @jit
    def count_rows(frame: op.Frame, device: Any) -> int:
        empty = op.size(frame, arg.is_row_empty, 0, 0)
        if op.attr(frame, slot.row_count) == LAST_ROW:
            number = op.size(frame, arg.indices_before_unique, 0, 0)
            return rows_to_last(frame, device, op.data(frame, arg.indices_before_unique, 0), number)
        batch = op.vector(frame, arg.sp_dense_shape, np.int64)[0]
        if batch != empty:
            text = "is_row_empty has %lld rows, but sp_dense_shape says %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, empty, batch)
        return batch

    def post_lookup(frame: op.Frame, device: Any) -> None:
        batch = count_rows(frame, device)
        if op.failed(frame):
            return
        listed_entries, dim = entries(frame, batch), op.size(frame, arg.emb_shards, 0, 1)
        listed, firsts, total, skew = list_shards(frame, device)
        pairs = op.size(frame, arg.partition_permutation, 0, 0)
        if op.list_length(frame) > 1 and pairs != total:
            text = "partition_permutation has %lld rows, but emb_shards have %lld in all"
            op.fail(frame, op.INVALID_ARGUMENT, text, pairs, total)
        out = op.output_matrix(frame, 0, 0, batch, dim, stored).ctypes.data
        counts = op.output_vector(frame, 1, 0, batch, np.int32).ctypes.data
        if op.failed(frame):
            return
        permutation = op.data(frame, arg.partition_permutation, 0)
        rows = GatheredRows(total, op.list_length(frame), listed, firsts, dim * item, permutation)
        masked, number = op.data(frame, arg.is_row_empty, 0), op.size(frame, arg.is_row_empty, 0, 0)
        if op.attr(frame, slot.fill_empty_row) == 0 or op.attr(frame, slot.default_id) >= 0:
            number = int64(0)
        unique_idxs, errors = op.data(frame, arg.unique_idxs, 0), error_record(device)
        in_bags = put_in_bags(
            device, listed_entries, unique_idxs, rows, masked, number, counts, errors
        )
        combine(frame, device, in_bags, listed_entries.number, batch, skew, out)

    return post_lookup
