"""PartitionWithPermutation: splits distinct ids over the shards of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.common import AXIS_ATTR, IDS, IDS_ATTR, numba_dtype
from fusion.runtime.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import partition as kernels
    from fusion.runtime.jit import int64
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        attr,
        fail,
        failed,
        list_length,
        output_matrix,
        output_vector,
        scratch,
        shard_vector,
        vector,
    )

    tid, slot = numba_dtype(types["Tid"]), spec.slots

    def body(frame: int) -> None:
        ids = vector(frame, 0, tid)
        n_shards = list_length(frame)
        strategy = attr(frame, slot.partition_strategy)
        rows = scratch(frame, n_shards, np.int64)
        ends = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        permutation = output_matrix(frame, 1, 0, ids.shape[0], 2, np.int32)
        if failed(frame):
            return
        total = int64(0)
        for shard in range(n_shards):
            rows[shard] = shard_vector(frame, 1, shard, np.int64)[0]
            total += rows[shard]
            if rows[shard] < 0:
                text = "partition_shapes[%lld] has %lld rows"
                fail(frame, INVALID_ARGUMENT, text, shard, rows[shard])
                return
        bad = kernels.assign_shards(ids, rows, ends, strategy, permutation, counts)
        if bad >= 0:
            text = "input[%lld] = %lld is not an id of a table of %lld rows in %lld shards"
            fail(frame, INVALID_ARGUMENT, text, bad, int64(ids[bad]), total, n_shards)
            return
        addresses = scratch(frame, n_shards, np.int64)
        if failed(frame):
            return
        for shard in range(n_shards):
            addresses[shard] = output_vector(frame, 0, shard, counts[shard], tid).ctypes.data
        if not failed(frame):
            kernels.split_ids(ids, rows, ends, strategy, permutation, counts, addresses)

    return body


SPEC = OpSpec(
    name="PartitionWithPermutation",
    doc="Splits ids over the shards of a table, keeping their order inside each shard.\n\n"
    "div splits by the actual cumulative rows and rebases; mod sends id to shard id % P as\n"
    "id // P; mod_ev (shards that are hash tables) to shard id % 1000 % P, unchanged.",
    inputs=(
        Arg("input", "Tid", "[u]", doc="ids"),
        Arg("partition_shapes", "int64", "[2]", length="num_partitions", doc="of each shard"),
    ),
    outputs=(
        Arg("partitioned_values", "Tid", "[?]", length="num_partitions"),
        Arg("partition_permutation", "int32", "[u, 2]", doc="shard, and place inside it"),
    ),
    attrs=(
        Attr("num_partitions", "int", minimum=2, doc="number of shards P"),
        IDS_ATTR,
        AXIS_ATTR,
        Attr(
            "partition_strategy",
            "string",
            default="div",
            allowed=("div", "mod", "mod_ev"),
            doc="how rows are split",
        ),
    ),
    kernels={"CPU": _cpu},
    kernel_types={"Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
