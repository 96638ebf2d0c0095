"""PartitionWithPermutation: splits distinct ids over the shards of a table."""

from __future__ import annotations

from fusion.ops.bags.specs.shared_args import PARTITION_SHAPES
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import AXIS_ATTR, IDS, IDS_ATTR

SPEC = OpSpec(
    name=names.PARTITION,
    doc="Splits ids over the shards of a table, keeping their order inside each shard.\n\n"
    "div splits by the actual cumulative rows and rebases; mod sends id to shard id % P as\n"
    "id // P; mod_ev (shards that are hash tables) to shard id % 1000 % P, unchanged.",
    inputs=(
        Arg("input", "Tid", "[u]", doc="ids"),
        PARTITION_SHAPES,
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
    rows="input",
    kernels={"CPU": cpu_body("bags", "partition"), "GPU": gpu_body("bags", "partition")},
    kernel_types={"Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
