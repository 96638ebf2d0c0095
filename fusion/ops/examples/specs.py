"""FusedParseExample: the features of serialized tf.Examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.base.bodies import cpu_body
from fusion.ops.examples.cpu.example_layout import GroupConstants
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names

_BUILDER = "build_parse_state"

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
_DTYPES = ("float32", "int64", "string")


def _group_constants(spec: OpSpec, names: Mapping[str, str]) -> list[Word]:
    """Returns the fields of a `GroupConstants`; -1 for attrs that the op does not have."""
    attrs = [attr.name for attr in spec.attrs]
    return [attrs.index(names[field]) if field in names else -1 for field in GroupConstants.FIELDS]


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    return _group_constants(spec, _ATTRS)


def _types(name: str, doc: str) -> Attr:
    return Attr(name, "list(type)", default=(), allowed=_DTYPES, minimum=0, doc=doc)


SPEC = OpSpec(
    name=names.PARSE_EXAMPLE,
    doc="Parses serialized tf.Examples, as ParseExampleV2 of TensorFlow does.\n\n"
    "Tensors and errors are those of TensorFlow. Shapes of dense features are numbers here, since\n"
    "its C API has no shapes as attrs; keys are attrs, as they are found once, when the kernel is\n"
    "created. A scalar is one Example without a batch.",
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
        Arg("sparse_indices", "int64", "[...]", length="num_sparse", doc="[nnz, 2]"),
        Arg("sparse_values", "sparse_types", "[...]", length="sparse_types", doc="[nnz]"),
        Arg("sparse_shapes", "int64", "[...]", length="num_sparse", doc="[2]"),
        Arg("dense_values", "Tdense", "[...]", length="Tdense", doc="[B, shape]"),
        Arg(
            "ragged_values", "ragged_value_types", "[...]", length="ragged_value_types", doc="[nnz]"
        ),
        Arg(
            "ragged_row_splits",
            "ragged_split_types",
            "[...]",
            length="ragged_split_types",
            doc="[B + 1]",
        ),
    ),
    attrs=(
        Attr("num_sparse", "int", minimum=0, doc="number of sparse features"),
        Attr("sparse_keys", "list(string)", default=(), doc="names of sparse features"),
        _types("sparse_types", "dtypes of their values"),
        Attr("dense_keys", "list(string)", default=(), doc="names of dense features"),
        _types("Tdense", "dtypes of their values"),
        Attr("dense_ranks", "list(int)", default=(), doc="rank of the shape of each"),
        Attr(
            "dense_dims",
            "list(int)",
            default=(),
            doc="sizes of all shapes; -1 for the first of one whose rows are filled up",
        ),
        Attr("required", "list(bool)", default=(), doc="whether a dense feature has no default"),
        _types("Tdefaults", "dtypes of defaults"),
        Attr("ragged_keys", "list(string)", default=(), doc="names of ragged features"),
        _types("ragged_value_types", "dtypes of their values"),
        Attr(
            "ragged_split_types",
            "list(type)",
            default=(),
            allowed=("int32", "int64"),
            minimum=0,
            doc="dtypes of their row splits",
        ),
    ),
    kernels={"CPU": cpu_body("examples", "parse_example")},
    builder=Builder(_BUILDER, "fusion.ops.examples.cpu.example_state", _constants),
    gradient=NOT_DIFFERENTIABLE,
)
