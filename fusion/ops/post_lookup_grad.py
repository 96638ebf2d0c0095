"""FusedEmbeddingSparsePostLookUpV2Grad: the gradient of combining gathered rows into bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.bags import (
    ATTRS,
    EMPTY,
    INDICES,
    PERMUTATION,
    PLACES,
    SHARDS,
    WEIGHTS,
    bag_reader,
    grad_outputs,
)
from fusion.ops.combine import FLOAT_TYPES, gradient_kernel
from fusion.runtime.spec import Arg, OpSpec


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    return gradient_kernel(spec, types, bag_reader(spec, types), grad_outputs(spec, types))


SPEC = OpSpec(
    name="FusedEmbeddingSparsePostLookUpV2Grad",
    doc="The gradient of FusedEmbeddingSparsePostLookUpV2, summed per unique id.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        SHARDS,
        PERMUTATION,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        INDICES,
        PLACES,
        EMPTY,
        WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[?, D]", length="num_partitions"),
        Arg("grad_weights", "Tw", "[?]", doc="of each entry; empty without weights"),
    ),
    attrs=ATTRS,
    kernels={"CPU": _cpu},
    kernel_types=FLOAT_TYPES,
)
