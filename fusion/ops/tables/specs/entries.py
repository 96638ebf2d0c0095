"""Ops on the keys of an index: all that there are, found, put back, and taken out."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.tables.builders import BUILDER
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES

_INDEX = Arg("index", "resource", "[...]", doc="variable of EmbeddingKeyIndex", on_host=True)

ENTRIES = OpSpec(
    name=names.KEY_ENTRIES,
    doc="All keys of an index, as they are at one moment; lookups in training wait meanwhile.",
    inputs=(_INDEX,),
    outputs=(
        Arg("keys", "int64", "[?]", doc="[n]"),
        Arg("rows", "int64", "[?]", doc="[n], -1 for keys that have no row yet"),
        Arg("counts", "int32", "[?]", doc="[n], how often each was seen in training"),
        Arg("steps", "int64", "[?]", doc="[n], when it was seen last, -1 for those without a row"),
        Arg("pending", "int64", "[?]", doc="rows of removed keys, which no key has yet"),
        Arg("aged", "int64", "[?]", doc="[1], how many of these, the first, can be released"),
        Arg("clock", "int64", "[?]", doc="[1], how many lookups in training there were"),
    ),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "entries_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

FIND = OpSpec(
    name=names.FIND_KEYS,
    doc="The rows that keys have at this moment; nothing changes, and nothing waits.",
    inputs=(_INDEX, Arg("keys", "int64", "[n]")),
    outputs=(Arg("rows", "int64", "[?]", doc="[n], -1 for keys without a row"),),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "find_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

ADD = OpSpec(
    name=names.ADD_KEYS,
    doc="Puts keys into an index as EmbeddingKeyEntries has them; those with a step have a row,\n"
    "which becomes that of `values`, or without these zeros if the key had none. Lookups in\n"
    "training are counted from the last step on.\n\n"
    "Rows that are pending are released if there are no others. That there is no room for a key\n"
    "is a ResourceExhaustedError.",
    inputs=(
        Arg("table", "resource", "[...]", doc="variable [capacity, D]", on_host=True),
        _INDEX,
        Arg("keys", "int64", "[n]"),
        Arg("counts", "int32", "[n]", doc="0 leaves those of a key that has a row as they are"),
        Arg("steps", "int64", "[n]"),
        Arg("values", "T", "[?, ?]", doc="[keys with a step, D], or no elements"),
    ),
    outputs=(Arg("rows", "int64", "[?]", doc="[n]"),),
    attrs=(
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the table"),
        Attr("dim", "int", minimum=1, doc="D"),
    ),
    kernels={"CPU": cpu_body("tables", "add_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

REMOVE = OpSpec(
    name=names.REMOVE_KEYS,
    doc="Takes keys out of an index, whose rows are pending then.\n\n"
    "With `release` >= 0 it is an eviction: before, it releases the first rows that are pending,\n"
    "which other keys get from then on; and those that are pending after it can be released by\n"
    "the next one. Until then updates may be on their way to them.",
    inputs=(
        _INDEX,
        Arg("keys", "int64", "[n]"),
        Arg("release", "int64", "[...]", doc="how many rows to release, or -1", on_host=True),
    ),
    outputs=(Arg("rows", "int64", "[?]", doc="[n], -1 for keys without a row"),),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "remove_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
