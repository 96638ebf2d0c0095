"""FusedEmbeddingSparsePostLookUpGrad: the gradient of combining rows of entries into bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.combine import FLOAT_TYPES, gradient_kernel
from fusion.ops.entries import ATTRS, FLAGS, INDICES, SHARDS, WEIGHTS, bag_reader, grad_outputs
from fusion.runtime.spec import Arg, OpSpec


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    return gradient_kernel(spec, types, bag_reader(spec, types), grad_outputs(spec, types))


SPEC = OpSpec(
    name="FusedEmbeddingSparsePostLookUpGrad",
    doc="The gradient of FusedEmbeddingSparsePostLookUp, for each entry by itself.",
    inputs=(
        Arg("top_grad", "T", "[rows, D]"),
        SHARDS,
        INDICES,
        Arg("feature_nums", "int32", "[rows]", doc="entries of each row"),
        FLAGS,
        WEIGHTS,
    ),
    outputs=(
        Arg("grad_shards", "T", "[n_p, D]", length="num_partitions"),
        Arg(
            "grad_weights",
            "Tw",
            "[?]",
            length="num_partitions",
            doc="of each entry; empty without weights",
        ),
    ),
    attrs=ATTRS,
    kernels={"CPU": _cpu},
    kernel_types=FLOAT_TYPES,
)
