"""PartitionWithPermutation on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.layout.records import Ids, Shards
from fusion.ops.bags.gpu_steps.partition import put_ids, split
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import MAX_ENTRIES


def shard_reader(spec: OpSpec) -> Any:
    """A jitted function (frame, device) -> the `Shards` of `partition_shapes`."""
    slot, arg = spec.slots, spec.input_indices

    @jit
    def shards(frame: op.Frame, device: Any) -> Any:
        count, total = op.list_length(frame), int64(0)
        host = stack_words(2 * count)
        for shard in range(count):
            rows = op.shard_vector(frame, arg.partition_shapes, shard, np.int64)[0]
            if rows < 0:
                text = "partition_shapes[%lld] has %lld rows"
                op.fail(frame, op.INVALID_ARGUMENT, text, int64(shard), rows)
            total += rows
            store(host, shard, rows)
            store(host, count + shard, total)
        rows_at = device.reserve(16 * count)
        copy_in(device, rows_at, host, 16 * count)
        strategy = op.attr(frame, slot.partition_strategy)
        return Shards(rows_at, rows_at + 8 * count, count, strategy)

    return shards


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    arg, tid, dtype = (
        spec.input_indices,
        DTYPES[types["Tid"]].stored_type,
        DTYPES[types["Tid"]].code,
    )
    read_shards, find, put = shard_reader(spec), on_host(split), on_host(put_ids)

    def partition(frame: op.Frame, device: Any) -> None:
        count = op.size(frame, arg.input, 0, 0)
        ids = Ids(op.data(frame, arg.input, 0), dtype, count)
        if count > int64(MAX_ENTRIES):
            text = "input has %lld ids, but at most %lld can be ordered"
            op.fail(frame, op.INVALID_ARGUMENT, text, count, int64(MAX_ENTRIES))
        permutation = op.output_matrix(frame, 1, 0, count, 2, np.int32).ctypes.data
        shards = read_shards(frame, device)
        if op.failed(frame):
            return
        partitioned = find(device, ids, shards, error_record(device))
        starts = device.words(partitioned.starts, shards.number + 1)
        host = stack_words(shards.number)
        for shard in range(shards.number):
            ids_of_shard = op.output_vector(frame, 0, shard, starts[shard + 1] - starts[shard], tid)
            store(host, shard, ids_of_shard.ctypes.data)
        outs = device.reserve(8 * shards.number)
        copy_in(device, outs, host, 8 * shards.number)
        put(device, ids, shards, partitioned, outs, permutation)

    return partition
