"""FusedEmbeddingSparsePostLookUpV2Grad on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.combine import locate_rows
from fusion.ops.bags.cpu.bags import GradOutputs, gradient_kernel
from fusion.ops.bags.cpu.post_lookup import bag_reader
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return gradient_kernel(spec, types, bag_reader(spec, types), _outputs(spec, types))


def _outputs(spec: OpSpec, types: Mapping[str, str]) -> GradOutputs:
    """The outputs of the gradient op."""
    stored, tw = DTYPES[types["T"]].stored_type, DTYPES[types["Tw"]].stored_type
    item, arg = DTYPES[types["T"]].item_bytes, spec.input_indices

    @jit
    def rows(frame: op.Frame, count: int) -> Any:
        n_shards = op.list_length(frame)
        dim = op.size(frame, arg.emb_shards, 0, 1)
        bases = op.scratch(frame, n_shards, np.int64)
        counts = op.scratch(frame, n_shards, np.int64)
        addresses = op.scratch(frame, count, np.int64)
        if op.failed(frame):
            return addresses
        for shard in range(n_shards):
            counts[shard] = op.size(frame, arg.emb_shards, shard, 0)
            out = op.output_matrix(frame, 0, shard, counts[shard], dim, stored)
            bases[shard] = out.ctypes.data
            if n_shards > 1:
                # A row that no pair of the permutation names has no gradient.
                out[:] = 0
        if not op.failed(frame):
            permutation = op.matrix(frame, arg.partition_permutation, 0, np.int32)
            locate_rows(permutation, bases, counts, dim * item, addresses)
        return addresses

    @jit
    def weights(frame: op.Frame, count: int) -> Array:
        return op.output_vector(frame, 1, 0, count, tw)

    @jit
    def put_weights(frame: int, grads: Array) -> None:
        pass

    return GradOutputs(rows, weights, put_weights)
