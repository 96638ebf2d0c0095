"""GroupedHashBucket: ids that are hashes of strings, or of numbers as text, of many columns."""

from __future__ import annotations

from collections.abc import Callable

from fusion.ops.base.bodies import cpu_body
from fusion.ops.ids.cpu.hash_layout import HashConstants
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import HASHES

_BUILDER = "build_hash_state"

#: What the attrs are called, as `HashConstants` has them.
_ATTRS = {
    "num_columns": "num_columns",
    "dtypes": "Tvalues",
    "hashes": "hashes",
    "num_buckets": "num_buckets",
    "keys": "keys",
}


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    attrs = [attr.name for attr in spec.attrs]
    return [attrs.index(_ATTRS[field]) for field in HashConstants.FIELDS]


SPEC = OpSpec(
    name=names.GROUPED_HASH,
    doc="Hashes values into buckets, for many columns at once.\n\n"
    "Of each column the ids are those of TensorFlow's op for its hash: `fast` is that of\n"
    "StringToHashBucketFast, `legacy` of StringToHashBucket, `strong` of StringToHashBucketStrong\n"
    "with the column's two `keys`. Integers are hashed as AsString writes them.",
    inputs=(Arg("values", "Tvalues", "[...]", length="num_columns"),),
    outputs=(Arg("ids", "int64", "[...]", length="num_columns", doc="of the shape of values"),),
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of columns"),
        Attr(
            "Tvalues",
            "list(type)",
            allowed=("string", "int32", "int64"),
            minimum=1,
            doc="dtypes of values",
        ),
        Attr("hashes", "list(string)", allowed=HASHES, doc="the hash of each column"),
        Attr("num_buckets", "list(int)", doc="of each, at least 1"),
        Attr("keys", "list(int)", default=(), doc="two for each column; none if no hash has any"),
    ),
    kernels={"CPU": cpu_body("ids", "grouped_hash")},
    builder=Builder(_BUILDER, "fusion.ops.ids.cpu.hash_state", _constants),
    gradient=NOT_DIFFERENTIABLE,
)
