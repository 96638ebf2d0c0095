"""UniqueWithCountsV3: distinct ids in order of first occurrence."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, OpSpec
from fusion.schema import names
from fusion.schema.attributes import IDS, IDS_ATTR

SPEC = OpSpec(
    name=names.UNIQUE,
    doc="Finds the distinct ids, in order of first occurrence.\n\n"
    "`unique_keys[unique_idxs[i]] == input[i]`; no id is reserved.",
    inputs=(Arg("input", "Tid", "[m]", doc="ids"),),
    outputs=(
        Arg("unique_keys", "Tid", "[u]"),
        Arg("unique_idxs", "int32", "[m]"),
        Arg("unique_counts", "int32", "[u]", doc="occurrences of each key"),
    ),
    attrs=(IDS_ATTR,),
    rows="input",
    kernels={"CPU": cpu_body("bags", "unique"), "GPU": gpu_body("bags", "unique")},
    kernel_types={"Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
