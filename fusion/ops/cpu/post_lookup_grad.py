"""FusedEmbeddingSparsePostLookUpV2Grad on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.cpu_ops.combine import locate_rows
from fusion.ops.cpu.bags import GradOutputs, gradient_kernel
from fusion.ops.cpu.post_lookup import bag_reader
from fusion.runtime.native.frame import (
    matrix,
    output_vector,
)
from fusion.runtime.native.jit import Array, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""
    return gradient_kernel(spec, types, bag_reader(spec, types), _outputs(spec, types))


def _outputs(spec: OpSpec, types: Mapping[str, str]) -> GradOutputs:
    """The outputs of the gradient op."""
    arg, tw = spec.places, DTYPES[types["Tw"]].stored_type

    @jit
    def locate(frame: int, bases: Array, counts: Array, row_bytes: int, addresses: Array) -> None:
        permutation = matrix(frame, arg.partition_permutation, 0, np.int32)
        locate_rows(permutation, bases, counts, row_bytes, addresses)

    @jit
    def weights(frame: int, count: int) -> Array:
        return output_vector(frame, 1, 0, count, tw)

    @jit
    def put_weights(frame: int, grads: Array) -> None:
        pass

    return GradOutputs(locate, weights, put_weights)
