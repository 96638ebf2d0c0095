"""Ops that parse serialized tf.Examples and SequenceExamples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.base.bodies import cpu_body
from fusion.ops.examples.cpu.example_layout import GroupConstants
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names

#: What the attrs of a group of features are called.
_ATTRS = {
    "sparse_keys": "sparse_keys",
    "dense_keys": "dense_keys",
    "ragged_keys": "ragged_keys",
    "sparse_types": "sparse_types",
    "dense_types": "Tdense",
    "ragged_types": "ragged_value_types",
    "split_types": "ragged_split_types",
    "num_sparse": "num_sparse",
    "dense_ranks": "dense_ranks",
    "dense_dims": "dense_dims",
    "required": "required",
    "default_types": "Tdefaults",
}
_OF_EXAMPLES = {
    **{f"{kind}_buckets": f"{kind}_buckets" for kind in ("sparse", "dense", "ragged")},
    "dense_outputs": "dense_outputs",
    "dense_columns": "dense_columns",
    "value_types": "Tvalues",
}
_DTYPES = ("float32", "int64", "string")


def _group_constants(spec: OpSpec, names: Mapping[str, str]) -> list[Word]:
    """Returns the fields of a `GroupConstants`; -1 for attrs that the op does not have."""
    attrs = [attr.name for attr in spec.attrs]
    return [attrs.index(names[field]) if field in names else -1 for field in GroupConstants.FIELDS]


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    return _group_constants(spec, _ATTRS | _OF_EXAMPLES)


def _types(name: str, doc: str) -> Attr:
    return Attr(name, "list(type)", default=(), allowed=_DTYPES, minimum=0, doc=doc)


def _keys(name: str, doc: str) -> Attr:
    return Attr(name, "list(string)", default=(), doc=doc)


def _buckets(kind: str) -> Attr:
    doc = f"0, or by how many buckets the strings of a {kind} feature are hashed: int64s are given"
    return Attr(f"{kind}_buckets", "list(int)", default=(), doc=doc)


def _split_types(name: str) -> Attr:
    allowed, doc = ("int32", "int64"), "dtypes of their row splits"
    return Attr(name, "list(type)", default=(), allowed=allowed, minimum=0, doc=doc)


def _each(name: str, dtypes: str, doc: str) -> Arg:
    """A tensor for each of some features, of dtypes that an attr has."""
    return Arg(name, dtypes, "[...]", length=dtypes, doc=doc)


def _indices(name: str, count: str, doc: str) -> Arg:
    """A tensor of integers for each of some features, of which an attr is the number."""
    return Arg(name, "int64", "[...]", length=count, doc=doc)


PARSE_EXAMPLE = OpSpec(
    name=names.PARSE_EXAMPLE,
    doc="Parses serialized tf.Examples, as ParseExampleV2 of TensorFlow does.\n\n"
    "Tensors and errors are those of TensorFlow. Shapes of dense features are numbers here, since\n"
    "its C API has no shapes as attrs; keys are attrs, as they are found once, when the kernel is\n"
    "created. A scalar is one Example without a batch. Strings may be hashed where they lie, as\n"
    "StringToHashBucketFast does: lists of them, and dense features of one value.",
    inputs=(
        Arg("serialized", "string", "[...]", doc="[B], or a scalar"),
        Arg("names", "string", "[...]", doc="[B] of Examples, for messages; or empty"),
        Arg(
            "dense_defaults",
            "Tdefaults",
            "[...]",
            length="Tdefaults",
            doc="of the dense features that are not required: [shape], or what fills rows up",
        ),
    ),
    outputs=(
        _indices("sparse_indices", "num_sparse", "[nnz, 2]"),
        _each("sparse_values", "sparse_types", "[nnz]"),
        _indices("sparse_shapes", "num_sparse", "[2]"),
        _each("dense_values", "Tvalues", "[B, shape], or [B, values of several side by side]"),
        _each("ragged_values", "ragged_value_types", "[nnz]"),
        _each("ragged_row_splits", "ragged_split_types", "[B + 1]"),
    ),
    attrs=(
        Attr("num_sparse", "int", minimum=0, doc="number of sparse features"),
        _keys("sparse_keys", "names of sparse features"),
        _types("sparse_types", "dtypes of their values"),
        _buckets("sparse"),
        _keys("dense_keys", "names of dense features"),
        _types("Tdense", "dtypes of their values"),
        _buckets("dense"),
        Attr(
            "dense_outputs",
            "list(int)",
            default=(),
            doc="the number of the output of each; those of one lie side by side in it",
        ),
        Attr(
            "dense_columns",
            "list(int)",
            default=(),
            doc="how many values are in front of each in a row of its output",
        ),
        _types("Tvalues", "dtypes of these outputs"),
        Attr("dense_ranks", "list(int)", default=(), doc="rank of the shape of each"),
        Attr(
            "dense_dims",
            "list(int)",
            default=(),
            doc="sizes of all shapes; -1 for the first of one whose rows are filled up",
        ),
        Attr("required", "list(bool)", default=(), doc="whether a dense feature has no default"),
        _types("Tdefaults", "dtypes of defaults"),
        _keys("ragged_keys", "names of ragged features"),
        _types("ragged_value_types", "dtypes of their values"),
        _buckets("ragged"),
        _split_types("ragged_split_types"),
    ),
    kernels={"CPU": cpu_body("examples", "parse_example")},
    builder=Builder("build_parse_state", "fusion.ops.examples.cpu.example_state", _constants),
    gradient=NOT_DIFFERENTIABLE,
)

#: What the attrs of the context are called, and those of feature lists.
_OF_CONTEXT, _OF_LISTS = (
    {
        **{field: f"{part}_{name}" for field, name in _ATTRS.items()},
        "num_sparse": f"num_{part}_sparse",
        "dense_types": f"T{part}_dense",
    }
    for part in ("context", "feature_list")
)
_OF_CONTEXT["default_types"] = "Tcontext_defaults"
_OF_LISTS["num_dense"] = "num_feature_list_dense"
del _OF_LISTS["default_types"]


def _sequence_constants(
    spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]
) -> list[Word]:
    return [*_group_constants(spec, _OF_CONTEXT), *_group_constants(spec, _OF_LISTS)]


PARSE_SEQUENCE = OpSpec(
    name=names.PARSE_SEQUENCE,
    doc="Parses serialized tf.SequenceExamples, as ParseSequenceExampleV2 of TensorFlow does.\n\n"
    "Tensors and errors are those of TensorFlow, and attrs are as of FusedParseExample. Where\n"
    "several features are of another dtype, which of them the error names is not determined in\n"
    "TensorFlow. A scalar is one Example without a batch; the row splits [B + 1] are a number\n"
    "then that means nothing.",
    inputs=(
        Arg("serialized", "string", "[...]", doc="[B], or a scalar"),
        Arg("names", "string", "[...]", doc="[B] of Examples, for messages; or empty"),
        Arg(
            "context_dense_defaults",
            "Tcontext_defaults",
            "[...]",
            length="Tcontext_defaults",
            doc="[shape] of the dense features that are not required",
        ),
    ),
    outputs=(
        _indices("context_sparse_indices", "num_context_sparse", "[nnz, 2]"),
        _each("context_sparse_values", "context_sparse_types", "[nnz]"),
        _indices("context_sparse_shapes", "num_context_sparse", "[2]"),
        _each("context_dense_values", "Tcontext_dense", "[B, shape]"),
        _each("context_ragged_values", "context_ragged_value_types", "[nnz]"),
        _each("context_ragged_row_splits", "context_ragged_split_types", "[B + 1]"),
        _indices("feature_list_sparse_indices", "num_feature_list_sparse", "[nnz, 3]"),
        _each("feature_list_sparse_values", "feature_list_sparse_types", "[nnz]"),
        _indices("feature_list_sparse_shapes", "num_feature_list_sparse", "[3]"),
        _each(
            "feature_list_dense_values",
            "Tfeature_list_dense",
            "[B, most rows, shape of a row], filled up with zeros",
        ),
        _indices("feature_list_dense_lengths", "num_feature_list_dense", "[B], their rows"),
        _each("feature_list_ragged_values", "feature_list_ragged_value_types", "[nnz]"),
        _each(
            "feature_list_ragged_outer_splits",
            "feature_list_ragged_split_types",
            "[B + 1], of rows",
        ),
        _each(
            "feature_list_ragged_inner_splits",
            "feature_list_ragged_split_types",
            "[rows + 1], of values",
        ),
    ),
    attrs=(
        Attr("num_context_sparse", "int", minimum=0, doc="number of sparse features"),
        _keys("context_sparse_keys", "names of sparse features"),
        _types("context_sparse_types", "dtypes of their values"),
        _keys("context_dense_keys", "names of dense features"),
        _types("Tcontext_dense", "dtypes of their values"),
        Attr("context_dense_ranks", "list(int)", default=(), doc="rank of the shape of each"),
        Attr("context_dense_dims", "list(int)", default=(), doc="sizes of all shapes"),
        Attr("context_required", "list(bool)", default=(), doc="whether there is no default"),
        _types("Tcontext_defaults", "dtypes of defaults"),
        _keys("context_ragged_keys", "names of ragged features"),
        _types("context_ragged_value_types", "dtypes of their values"),
        _split_types("context_ragged_split_types"),
        Attr("num_feature_list_sparse", "int", minimum=0, doc="number of sparse feature lists"),
        _keys("feature_list_sparse_keys", "names of sparse feature lists"),
        _types("feature_list_sparse_types", "dtypes of their values"),
        Attr("num_feature_list_dense", "int", minimum=0, doc="number of dense feature lists"),
        _keys("feature_list_dense_keys", "names of dense feature lists"),
        _types("Tfeature_list_dense", "dtypes of their values"),
        Attr(
            "feature_list_dense_ranks",
            "list(int)",
            default=(),
            doc="one more than the rank of the rows of each",
        ),
        Attr(
            "feature_list_dense_dims",
            "list(int)",
            default=(),
            doc="-1, and the shape of a row, of each",
        ),
        Attr(
            "feature_list_required",
            "list(bool)",
            default=(),
            doc="whether one that is missing is an error, else it has no rows",
        ),
        _keys("feature_list_ragged_keys", "names of ragged feature lists"),
        _types("feature_list_ragged_value_types", "dtypes of their values"),
        _split_types("feature_list_ragged_split_types"),
    ),
    kernels={"CPU": cpu_body("examples", "parse_sequence_example")},
    builder=Builder(
        "build_sequence_state", "fusion.ops.examples.cpu.sequence_state", _sequence_constants
    ),
    gradient=NOT_DIFFERENTIABLE,
)
