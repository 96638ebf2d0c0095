"""The memory of embedding variables: zeros whose pages the system provides when they are used."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES

ZEROS = OpSpec(
    name=names.ZEROS_ON_DEMAND,
    doc="Zeros [rows, D] that take memory page by page, when they are first written.",
    inputs=(Arg("shape", "int64", "[2]", doc="rows, D", on_host=True),),
    outputs=(Arg("zeros", "T", "[?, ?]"),),
    attrs=(Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the zeros"),),
    kernels={"CPU": cpu_body("tables", "memory")},
    kernel_types={"T": UPDATE_DTYPES},
    gradient=NOT_DIFFERENTIABLE,
    # Who changes the memory must be alone with it.
    is_stateful=True,
)

INDEX = OpSpec(
    name=names.KEY_INDEX,
    doc="An empty index of keys, in memory as of ZerosOnDemand; its words are no numbers.",
    inputs=(Arg("capacity", "int64", "[1]", doc="the rows that keys can have", on_host=True),),
    outputs=(Arg("index", "float64", "[?]"),),
    attrs=(
        Attr("admission", "int", minimum=1, doc="how often a key is seen before it gets a row"),
        Attr("seed", "int", doc="which initial values keys have"),
        Attr("waits", "bool", doc="whether keys without room wait for it; else it is an error"),
    ),
    kernels={"CPU": cpu_body("tables", "index_memory")},
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
