"""PartitionWithPermutation on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.ops.bags.cpu_kernels import partition as kernels
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def id_splitter(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that splits ids over shards and writes them to the op's first output.

    The op has the input `partition_shapes`. The function takes a frame, ids [m], the strategy and
    the permutation int32 [m, 2] to fill. It gives the index of an id outside the table or -1, the
    rows of the table, and the ids per shard, int64 [P]; of that nothing holds if `failed(frame)`.
    """
    tid, arg = DTYPES[types["Tid"]].stored_type, spec.input_indices

    @jit
    def split(frame: op.Frame, ids: Array, strategy: int, permutation: Array) -> Any:
        n_shards = op.list_length(frame)
        rows = op.scratch(frame, n_shards, np.int64)
        ends = op.scratch(frame, n_shards, np.int64)
        counts = op.scratch(frame, n_shards, np.int64)
        addresses = op.scratch(frame, n_shards, np.int64)
        total = int64(0)
        if op.failed(frame):
            return int64(-1), total, counts
        for shard in range(n_shards):
            rows[shard] = op.shard_vector(frame, arg.partition_shapes, shard, np.int64)[0]
            total += rows[shard]
            if rows[shard] < 0:
                text = "partition_shapes[%lld] has %lld rows"
                op.fail(frame, op.INVALID_ARGUMENT, text, shard, rows[shard])
                return int64(-1), total, counts
        bad = kernels.assign_shards(ids, rows, ends, strategy, permutation, counts)
        if bad >= 0:
            return int64(bad), total, counts
        for shard in range(n_shards):
            addresses[shard] = op.output_vector(frame, 0, shard, counts[shard], tid).ctypes.data
        if not op.failed(frame):
            kernels.split_ids(ids, rows, ends, strategy, permutation, counts, addresses)
        return int64(-1), total, counts

    return split


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    tid, slot, arg = DTYPES[types["Tid"]].stored_type, spec.slots, spec.input_indices
    split = id_splitter(spec, types)

    def body(frame: op.Frame) -> None:
        ids = op.vector(frame, arg.input, tid)
        permutation = op.output_matrix(frame, 1, 0, ids.shape[0], 2, np.int32)
        if op.failed(frame):
            return
        bad, total, _ = split(frame, ids, op.attr(frame, slot.partition_strategy), permutation)
        if bad >= 0:
            text = "input[%lld] = %lld is not an id of a table of %lld rows in %lld shards"
            op.fail(
                frame, op.INVALID_ARGUMENT, text, bad, int64(ids[bad]), total, op.list_length(frame)
            )

    return body
