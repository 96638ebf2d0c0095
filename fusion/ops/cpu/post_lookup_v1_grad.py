"""FusedEmbeddingSparsePostLookUpGrad on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.combine import locate_entries
from fusion.ops.cpu.bags import GradOutputs, gradient_kernel
from fusion.ops.cpu.post_lookup_v1 import bag_reader
from fusion.runtime.native.frame import (
    failed,
    list_length,
    output_matrix,
    output_vector,
    scratch,
    size,
)
from fusion.runtime.native.jit import Array, jit
from fusion.runtime.native.layout import Frame
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[Frame], None]:
    """The kernel body."""
    return gradient_kernel(spec, types, bag_reader(spec, types), _outputs(spec, types))


def _outputs(spec: OpSpec, types: Mapping[str, str]) -> GradOutputs:
    """The outputs of the gradient op."""
    stored, tw = DTYPES[types["T"]].stored_type, DTYPES[types["Tw"]].stored_type
    item, arg = DTYPES[types["T"]].item_bytes, spec.input_indices

    @jit
    def rows(frame: Frame, count: int) -> Any:
        n_shards = list_length(frame)
        dim = size(frame, arg.emb_shards, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        addresses = scratch(frame, count, np.int64)
        if failed(frame):
            return addresses
        for shard in range(n_shards):
            counts[shard] = size(frame, arg.emb_shards, shard, 0)
            out = output_matrix(frame, 0, shard, counts[shard], dim, stored)
            bases[shard] = out.ctypes.data
        if not failed(frame):
            locate_entries(bases, counts, dim * item, addresses)
        return addresses

    @jit
    def weights(frame: Frame, count: int) -> Array:
        if list_length(frame) == 1:
            return output_vector(frame, 1, 0, count, tw)
        return scratch(frame, count, tw)

    @jit
    def put_weights(frame: Frame, grads: Array) -> None:
        if list_length(frame) == 1:
            return
        first = 0
        for shard in range(list_length(frame)):
            count = size(frame, arg.emb_shards, shard, 0) if grads.shape[0] > 0 else 0
            out = output_vector(frame, 1, shard, count, tw)
            for k in range(out.shape[0]):
                out[k] = grads[first + k]
            first += count

    return GradOutputs(rows, weights, put_weights)
