"""FillEmbeddingSlot: what the rows of a slot of an embedding variable begin with."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.tables.builders import BUILDER
from fusion.ops.tables.cpu_kernels.layout import MAX_SLOTS
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES

SPEC = OpSpec(
    name=names.FILL_SLOT,
    doc="Writes the first values of a slot's rows that keys have got since the last time.\n\n"
    "A slot is a variable of zeros on demand beside a table.",
    inputs=(
        Arg("slot", "resource", "[...]", doc="variable [capacity, D]", on_host=True),
        Arg("index", "resource", "[...]", doc="variable of EmbeddingKeyIndex", on_host=True),
        Arg("values", "T", "[...]", doc="D elements, or one for all"),
    ),
    outputs=(Arg("filled", "int64", "[?]", doc="[1]: how many rows were filled"),),
    attrs=(
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the slot"),
        Attr("dim", "int", minimum=1, doc="D"),
        Attr("number", "int", minimum=0, maximum=MAX_SLOTS - 1, doc="of the slot, of its table's"),
    ),
    kernels={"CPU": cpu_body("tables", "fill_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
