"""The ops that make ids: by hashes and by vocabularies, and by crosses of features."""

from __future__ import annotations

from collections.abc import Callable

from fusion.ops.base.bodies import cpu_body
from fusion.ops.ids.cpu.cross_layout import CrossConstants
from fusion.ops.ids.cpu.ids_layout import IdsConstants, IndexConstants
from fusion.runtime.layout import LayoutType
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import (
    CROSS_FORMS,
    CROSS_HASHES,
    FEATURE_FORMS,
    HASHES,
    PARTS,
    ROW_FORMS,
)

#: What attrs are called where layouts have another name.
_ATTRS = {"dtypes": "Tvalues"}
_INDEX_ATTRS = {"dtypes": "Tkeys", "mask_dtypes": "Tmasks"}
_DTYPES = ("string", "int32", "int64")


def _constants(
    layout: LayoutType, attrs: dict[str, str]
) -> Callable[[OpSpec, str, Callable[[AccessRequest], Word]], list[Word]]:
    def constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
        numbers = {attr.name: number for number, attr in enumerate(spec.attrs)}
        return [numbers.get(attrs.get(field, field), -1) for field in layout.FIELDS]

    return constants


def _numbers(name: str, doc: str) -> Attr:
    return Attr(name, "list(int)", default=(), doc=doc)


#: How ids are made of the values of each column, in lists.
_OF_COLUMNS = (
    Attr("hashes", "list(string)", allowed=HASHES, doc="the hash of each column"),
    Attr("num_buckets", "list(int)", doc="of each, at least 1; 0 with a vocabulary: none"),
    _numbers("keys", "two for each column; none if no hash has any"),
    Attr("num_indices", "int", default=0, minimum=0, doc="1 if there are vocabularies"),
    _numbers("vocabularies", "of each the place in the index, -1: no vocabulary"),
    _numbers(
        "replaced",
        "of each the id of a vocabulary that buckets replace, -2^63: the default; that each if "
        "empty",
    ),
    _numbers(
        "starts",
        "of each the id of bucket 0 beside a vocabulary, -1: the number of the keys that this "
        "has but for its mask; 0 each if empty",
    ),
)
_IDS_BUILDER = Builder(
    "build_ids_state", "fusion.ops.ids.cpu.ids_state", _constants(IdsConstants, _ATTRS)
)
_INDEX = Arg("index", "int64", "[?]", length="num_indices", doc="of VocabularyIndex")

GROUPED_IDS = OpSpec(
    name=names.GROUPED_IDS,
    doc="Makes ids of values, for many columns at once: by vocabularies, and by hashes.\n\n"
    "The id of a value that is in its column's vocabulary is the value it has there, and that of\n"
    "another is the vocabulary's default. If there are buckets, the column's `replaced` ids\n"
    "become the sum of `starts` and the bucket of the value. Without a vocabulary an id is a\n"
    "bucket. Buckets are those of TensorFlow's ops: `fast` is the hash of StringToHashBucketFast,\n"
    "`legacy` of StringToHashBucket, `strong` of StringToHashBucketStrong with the column's two\n"
    "`keys`. Integers are hashed as AsString writes them; `remainder` is their FloorMod.",
    inputs=(
        Arg("values", "Tvalues", "[...]", length="num_columns"),
        _INDEX,
    ),
    outputs=(Arg("ids", "int64", "[...]", length="num_columns", doc="of the shape of values"),),
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of columns"),
        Attr("Tvalues", "list(type)", allowed=_DTYPES, minimum=1, doc="dtypes of values"),
        *_OF_COLUMNS,
    ),
    kernels={"CPU": cpu_body("ids", "grouped_ids")},
    builder=_IDS_BUILDER,
    gradient=NOT_DIFFERENTIABLE,
)

GROUPED_SPLIT = OpSpec(
    name=names.GROUPED_SPLIT,
    doc="Splits texts and makes ids of their parts, for many columns at once.\n\n"
    "A text is split wherever its column's delimiter is. `all` parts count as in StringSplitV2:\n"
    "an empty text has one, which is empty. In StringSplit, an empty text has none (`of_texts`),\n"
    "or no part that counts is empty (`nonempty`). Their ids are those of GroupedIds.\n\n"
    "With the form `indices` results are those of a SparseTensor; with `row_splits`, those of a\n"
    "RaggedTensor, whose row splits are `rows`.",
    inputs=(
        Arg("texts", "string", "[?]", length="num_columns"),
        _INDEX,
    ),
    outputs=(
        Arg("ids", "int64", "[?]", length="num_columns", doc="[nnz]"),
        Arg("rows", "int64", "[...]", length="num_columns", doc="[nnz, 2], or row splits [B + 1]"),
        Arg("dense_shapes", "int64", "[2]", length="num_columns", doc="rows B, and parts of one"),
    ),
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of columns"),
        Attr("delimiters", "list(string)", doc="of each column, not empty"),
        Attr("parts", "list(string)", allowed=PARTS, doc="which parts count in each"),
        Attr("forms", "list(string)", allowed=ROW_FORMS, doc="of the results of each"),
        *_OF_COLUMNS,
    ),
    kernels={"CPU": cpu_body("ids", "grouped_split")},
    builder=_IDS_BUILDER,
    gradient=NOT_DIFFERENTIABLE,
)

VOCABULARY_INDEX = OpSpec(
    name=names.VOCABULARY_INDEX,
    doc="Makes an index of vocabularies, in which GroupedIds looks values up.\n\n"
    "Of equal keys of a vocabulary the first one counts; its mask comes before all keys. An index\n"
    "is for processes on machines of the same byte order, and may change with versions.",
    inputs=(
        Arg("keys", "Tkeys", "[...]", length="num_vocabularies", doc="[n]"),
        Arg("key_values", "int64", "[...]", length="num_vocabularies", doc="[n], what each has"),
        Arg(
            "defaults",
            "int64",
            "[...]",
            length="num_vocabularies",
            doc="an element each, what all other values have",
        ),
        Arg("masks", "Tmasks", "[...]", length="num_masks", doc="a key each"),
        Arg("mask_values", "int64", "[...]", length="num_masks", doc="what each has"),
    ),
    outputs=(Arg("index", "int64", "[?]", doc="words"),),
    attrs=(
        Attr("num_vocabularies", "int", minimum=1, doc="number of vocabularies"),
        Attr("Tkeys", "list(type)", allowed=_DTYPES, minimum=1, doc="dtypes of keys"),
        Attr("num_masks", "int", default=0, minimum=0, doc="number of masks"),
        Attr("Tmasks", "list(type)", default=(), allowed=_DTYPES, minimum=0, doc="their dtypes"),
        _numbers("masked", "of each mask the vocabulary, in increasing order"),
    ),
    kernels={"CPU": cpu_body("ids", "vocabulary_index")},
    builder=Builder(
        "build_index_state",
        "fusion.ops.ids.cpu.index_state",
        _constants(IndexConstants, _INDEX_ATTRS),
    ),
    gradient=NOT_DIFFERENTIABLE,
)

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
        Attr("Tvalues", "list(type)", allowed=_DTYPES, minimum=1, doc="dtypes of values"),
        Attr("feature_counts", "list(int)", doc="how many features each cross has, at most 1,024"),
        Attr("feature_forms", "list(string)", allowed=FEATURE_FORMS, doc="of each feature"),
        Attr("ignored", "list(int)", default=(), doc="of each feature; none if none is masked"),
        Attr("hashes", "list(string)", allowed=CROSS_HASHES, doc="the hash of each cross"),
        Attr("num_buckets", "list(int)", doc="of each cross; 0: ids are below 2**63 - 1"),
        Attr("keys", "list(int)", doc="two for each cross"),
        Attr("forms", "list(string)", allowed=CROSS_FORMS, doc="of the results of each cross"),
    ),
    kernels={"CPU": cpu_body("ids", "grouped_cross")},
    builder=Builder(
        "build_cross_state", "fusion.ops.ids.cpu.cross_state", _constants(CrossConstants, {})
    ),
    gradient=NOT_DIFFERENTIABLE,
)
