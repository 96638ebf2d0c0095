"""What stock TensorFlow does to rows and ids of a table, by its own ops: max_norm, partitions."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.node_builder import NodeBuilder
from fusion.passes.small_nodes import as_dtype, number
from fusion.passes.spec import LookupSpec
from fusion.passes.tensor import Tensor


def emit_clip(build: NodeBuilder, spec: LookupSpec, rows: Tensor) -> Tensor:
    """Scales rows down to a norm of max_norm, by the ops of tf.clip_by_norm."""
    dtype, limit = spec.table.dtype, spec.table.max_norm
    assert limit is not None
    types = {"T": dtype}

    def op(name: str, *inputs: Tensor) -> Tensor:
        return build.shared("clip", name, inputs, types)

    axis = build.constant("row_axis", np.array([1], np.int32))
    squares = op("Mul", rows, rows)
    reduced = {"T": dtype, "Tidx": types_pb2.DT_INT32}
    sums = build.shared("clip", "Sum", (squares, axis), reduced, {"keep_dims": True})
    is_positive = op("Greater", sums, number(build, 0, dtype))
    safe = op("SelectV2", is_positive, sums, number(build, 1, dtype))
    norms = op("SelectV2", is_positive, op("Sqrt", safe), sums)
    largest = number(build, limit, dtype)
    return op("RealDiv", op("Mul", rows, largest), op("Maximum", norms, largest))


def split_ids(build: NodeBuilder, spec: LookupSpec, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int32 [n], the shard of each id, and the number of its row in that shard.

    The arithmetic of `partition_strategy` in tf.nn.embedding_lookup.
    """
    table, dtype = spec.table, spec.dtype
    count = len(table.shards)

    def op(name: str, *inputs: Tensor) -> Tensor:
        return build.shared("split", name, inputs, {"T": dtype})

    if table.strategy == "mod":
        shards = number(build, count, dtype)
        shard = as_dtype(build, op("FloorMod", ids, shards), dtype, types_pb2.DT_INT32)
        return shard, op("FloorDiv", ids, shards)
    # The first `more` shards have a row more than the others.
    total = sum(table.split)
    fewest, more = number(build, total // count, dtype), number(build, total % count, dtype)
    most = number(build, total // count + 1, dtype)
    behind = op("Sub", ids, more)
    shard = op("Maximum", op("FloorDiv", ids, most), op("FloorDiv", behind, fewest))
    is_larger = op("Less", shard, more)
    local = op("SelectV2", is_larger, op("FloorMod", ids, most), op("FloorMod", behind, fewest))
    return as_dtype(build, shard, dtype, types_pb2.DT_INT32), local
