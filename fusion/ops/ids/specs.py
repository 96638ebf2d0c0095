"""GroupedIds and GroupedCross: ids of many columns that are made of other values.

The first hashes strings, or numbers as text; the second crosses features.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion.ops.base.bodies import cpu_body
from fusion.ops.ids.cpu.cross_layout import CrossConstants
from fusion.ops.ids.cpu.ids_layout import IdsConstants
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import CROSS_FORMS, CROSS_HASHES, FEATURE_FORMS, HASHES

_BUILDER = "build_ids_state"

#: What the attrs are called, as `IdsConstants` has them.
_ATTRS = {
    "num_columns": "num_columns",
    "dtypes": "Tvalues",
    "hashes": "hashes",
    "num_buckets": "num_buckets",
    "keys": "keys",
}


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    attrs = [attr.name for attr in spec.attrs]
    return [attrs.index(_ATTRS[field]) for field in IdsConstants.FIELDS]


SPEC = OpSpec(
    name=names.GROUPED_IDS,
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
    kernels={"CPU": cpu_body("ids", "grouped_ids")},
    builder=Builder(_BUILDER, "fusion.ops.ids.cpu.ids_state", _constants),
    gradient=NOT_DIFFERENTIABLE,
)

_CROSS_BUILDER = "build_cross_state"


def _cross_constants(
    spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]
) -> list[Word]:
    attrs = [attr.name for attr in spec.attrs]
    return [attrs.index(field) for field in CrossConstants.FIELDS]


CROSS = OpSpec(
    name=names.GROUPED_CROSS,
    doc="Crosses features into hashed ids, for many crosses at once.\n\n"
    "A row of a cross has an id for each combination of one value of each feature; the value of\n"
    "the last feature changes fastest. Ids, their order, the dense shape and errors are those of\n"
    "TensorFlow's ops: a `seeded` hash is that of SparseCross with out_type int64 and the first\n"
    "of the two `keys` as hash_key, `plain` and `strong` are those of SparseCrossHashed, the\n"
    "latter with the two `keys` as salt. Features of all crosses are one after the other.\n\n"
    "A feature of form `sparse` is a SparseTensor, of which the op reads `values`, and an item of\n"
    "`indices` and of `shapes`. As stock does, it takes rows one after the other, and of each row\n"
    "the entries that follow: an entry that is not in the order of rows hides those behind it.\n"
    "`dense` is a matrix. So is `masked`, but its elements are no values where they are `ignored`\n"
    "(strings, where they are empty): in stock it is a SparseTensor of the others. `vector` is a\n"
    "vector: in stock, a matrix of one column. Features of the first two forms are first.\n\n"
    "With the form `indices` results are those of a SparseTensor; with `row_splits`, those of a\n"
    "RaggedTensor, whose row splits are `rows`. With `matrix`, for crosses of `dense` and\n"
    "`vector` features alone, `ids` is a matrix of the shape in `dense_shapes`; `rows` is empty.",
    inputs=(
        Arg("values", "Tvalues", "[...]", length="Tvalues", doc="[nnz], [B, n] or [B]"),
        Arg("indices", "int64", "[...]", length="num_sparse", doc="[nnz, 2]"),
        Arg("shapes", "int64", "[...]", length="num_sparse", doc="[2], rows B first"),
    ),
    outputs=(
        Arg("ids", "int64", "[...]", length="num_crosses", doc="[nnz], or a matrix"),
        Arg(
            "rows",
            "int64",
            "[...]",
            length="num_crosses",
            doc="[nnz, 2], row splits [B + 1] or [0]",
        ),
        Arg("dense_shapes", "int64", "[...]", length="num_crosses", doc="[2]"),
    ),
    attrs=(
        Attr("num_crosses", "int", minimum=1, doc="number of crosses"),
        Attr("num_sparse", "int", minimum=0, doc="number of features of form sparse"),
        Attr(
            "Tvalues",
            "list(type)",
            allowed=("string", "int32", "int64"),
            minimum=1,
            doc="dtypes of values",
        ),
        Attr("feature_counts", "list(int)", doc="how many features each cross has, at most 1,024"),
        Attr("feature_forms", "list(string)", allowed=FEATURE_FORMS, doc="of each feature"),
        Attr("ignored", "list(int)", default=(), doc="of each feature; none if none is masked"),
        Attr("hashes", "list(string)", allowed=CROSS_HASHES, doc="the hash of each cross"),
        Attr("num_buckets", "list(int)", doc="of each cross; 0: ids are below 2**63 - 1"),
        Attr("keys", "list(int)", doc="two for each cross"),
        Attr("forms", "list(string)", allowed=CROSS_FORMS, doc="of the results of each cross"),
    ),
    kernels={"CPU": cpu_body("ids", "grouped_cross")},
    builder=Builder(_CROSS_BUILDER, "fusion.ops.ids.cpu.cross_state", _cross_constants),
    gradient=NOT_DIFFERENTIABLE,
)
