"""FusedEmbeddingSparsePostLookUp on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.steps.sharded_entries import ShardedEntries, bags_of_shards, join, order_shards
from fusion.ops.gpu.bags import bag_combiner
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import (
    attr,
    data,
    failed,
    list_length,
    output_matrix,
    output_vector,
    size,
    vector,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import stack_words, store
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MOST_ENTRIES


def parts_reader(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame, device) -> (the op's `ShardedEntries`, skew)."""
    slot, arg = spec.slots, spec.input_indices
    item, weight_item = DTYPES[types["T"]].item_bytes, DTYPES[types["Tw"]].item_bytes

    @jit
    def read_parts(frame: int, device: Any) -> Any:
        count, total, skew = list_length(frame), int64(0), int64(0)
        weighted = attr(frame, slot.use_sparse_weights) != 0
        # Where shards begin, their rows, indices and weights.
        host = stack_words(5 * count + 1)
        for shard in range(count):
            rows, entries = (
                data(frame, arg.emb_shards, shard),
                size(frame, arg.emb_shards, shard, 0),
            )
            store(host, shard, total)
            store(host, count + 1 + 2 * shard, rows)
            store(host, count + 2 + 2 * shard, entries)
            store(host, 3 * count + 1 + shard, data(frame, arg.partitioned_indices, shard))
            weights = data(frame, arg.partitioned_weights, shard) if weighted else int64(0)
            store(host, 4 * count + 1 + shard, weights)
            total, skew = total + entries, skew | (rows % 16)
        store(host, count, total)
        if total > int64(MOST_ENTRIES):
            text = "emb_shards have %lld entries, but at most %lld can be ordered"
            fail(frame, INVALID_ARGUMENT, text, total, int64(MOST_ENTRIES))
        words = device.reserve(8 * (5 * count + 1))
        copy_in(device, words, host, 8 * (5 * count + 1))
        shards, indices = words + 8 * (count + 1), words + 8 * (3 * count + 1)
        weights_at = words + 8 * (4 * count + 1) if weighted else int64(0)
        row_bytes = size(frame, arg.emb_shards, 0, 1) * item
        parts = ShardedEntries(
            total, count, words, shards, row_bytes, indices, weights_at, weight_item
        )
        return parts, skew

    return read_parts


def flags_checker(spec: OpSpec) -> Any:
    """A jitted function (frame, rows) that reports that there are flags of fewer rows."""
    flags_index = spec.input_indices.row_empty_and_invalid_flags

    @jit
    def check_flags(frame: int, batch: int) -> None:
        flags = size(frame, flags_index, 0, 0)
        if flags < batch:
            text = "row_empty_and_invalid_flags has %lld elements, but there are %lld rows"
            fail(frame, INVALID_ARGUMENT, text, flags, batch)

    return check_flags


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg, stored = spec.slots, spec.input_indices, DTYPES[types["T"]].stored_type
    read, combine = parts_reader(spec, types), bag_combiner(spec, types)
    check_flags = flags_checker(spec)
    join_parts, order, put_in_bags = on_host(join), on_host(order_shards), on_host(bags_of_shards)

    @jit
    def known_rows(frame: int) -> int:
        """The rows of the batch; -1: up to the last one."""
        if attr(frame, slot.row_count) == LAST_ROW:
            return int64(-1)
        batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
        if batch < 0:
            text = "sp_dense_shape must not be negative, but has %lld rows"
            fail(frame, INVALID_ARGUMENT, text, batch)
        return batch

    def post_lookup(frame: int, device: Any) -> None:
        batch = known_rows(frame)
        parts, skew = read(frame, device)
        if failed(frame):
            return
        joined = join_parts(device, parts, batch, error_record(device))
        bits = int64(0)
        if batch < 0 or parts.shard_count > 1:
            negated = device.words(joined.results, 2)
            bits = -negated[0]
            batch = -negated[1] if batch < 0 else batch
        check_flags(frame, batch)
        dim = size(frame, arg.emb_shards, 0, 1)
        out = output_matrix(frame, 0, 0, batch, dim, stored).ctypes.data
        counts = output_vector(frame, 1, 0, batch, np.int32).ctypes.data
        if failed(frame):
            return
        masked = data(frame, arg.row_empty_and_invalid_flags, 0)
        if attr(frame, slot.default_id) >= 0:
            masked = int64(0)
        ordered = order(device, parts, joined, batch, bits)
        bags = put_in_bags(device, parts, ordered, batch, masked, counts)
        combine(frame, device, bags, parts.number, batch, skew, out)

    return post_lookup
