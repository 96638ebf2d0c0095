"""Inputs and attrs of a column of the ops that take whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.bucketize import folded_bucketize
from fusion.passes.node_builder import AttrValue, NodeBuilder, set_lists
from fusion.passes.op_arguments import (
    NONE,
    combine_attrs,
    dense_attrs,
    dense_shape,
    dense_values,
    fill_attrs,
    prune_attrs,
    unused,
    weight_attrs,
    weights,
)
from fusion.passes.spec import DenseIds, LookupSpec, RaggedIds, RowIds, SparseIds
from fusion.passes.tensor import Shape, Tensor
from fusion.runtime.spec import Attr
from fusion.schema.columns import column_name

COPIED: dict[str, AttrValue] = {
    "form": "copy",
    "combiner": "mean",
    "max_norm": float(NONE),
    "prune": False,
    "fill_empty_row": False,
    "default_id": NONE,
    "use_sparse_weights": False,
    "prune_sparse_weights": False,
    "default_weight": 1.0,
    "divide_no_nan": True,
    "row_count": "dense_shape",
    "use_ignored_id": False,
    "ignored_id": NONE,
    "column_stride": 0,
    "num_buckets": 0,
    "bucket_default": 0,
    "dim": NONE,
}
"""The attrs of a tensor that is taken over; of a lookup, what it does not say otherwise."""
_FORMS = {SparseIds: "indices", RaggedIds: "row_splits", RowIds: "row_ids", DenseIds: "dense"}


class ColumnArguments(NamedTuple):
    """The inputs, without the table, and attrs of one column.

    Attributes:
        dtypes: DataTypes of `ids` and `entry_rows`.
        boundaries: of the buckets that values fall into, none if they are ids.
        name: what messages call it.
    """

    ids: Tensor
    entry_rows: Tensor
    dense_shape: Tensor
    weights: Tensor
    dtypes: tuple[int, int]
    attrs: dict[str, AttrValue]
    boundaries: tuple[float, ...]
    name: str = ""


def column_arguments(build: NodeBuilder, spec: LookupSpec) -> ColumnArguments:
    """Returns what an op is told of a lookup."""
    ids, entry_rows, dense_shape, dtypes = _entries(build, spec)
    attrs = {**COPIED, "form": _FORMS[type(spec.ids)], "dim": width_of(spec.table.shape)}
    attrs |= {**fill_attrs(spec), **prune_attrs(spec), **weight_attrs(spec)}
    attrs |= combine_attrs(spec)
    boundaries: tuple[float, ...] = ()
    if isinstance(spec.ids, DenseIds):
        attrs |= dense_attrs(spec.ids)
        folded = folded_bucketize(build.edit.view, spec.ids)
        if folded is not None:
            ids, boundaries = folded.values, folded.boundaries
            dtypes = (folded.dtype, dtypes[1])
    given = weights(build, spec)
    scope = spec.anchor.rpartition("/")[0] or spec.anchor
    name = column_name(scope, spec.table.name)
    return ColumnArguments(ids, entry_rows, dense_shape, given, dtypes, attrs, boundaries, name)


def copy_arguments(build: NodeBuilder, matrix: Tensor, dtype: int) -> ColumnArguments:
    """Returns what an op is told of a tensor of this DataType that it takes over."""
    number, types = unused_number(build), (types_pb2.DT_INT64, types_pb2.DT_INT64)
    attrs = {**COPIED, "dim": width_of(build.edit.view.shape(matrix))}
    weightless = unused(build, "weights", dtype)
    return ColumnArguments(number, number, number, weightless, types, attrs, ())


def set_columns(
    node: node_def_pb2.NodeDef, columns: Sequence[ColumnArguments], attrs: Mapping[str, Attr]
) -> None:
    """Sets the attrs of an op that list those of its columns, here by the name of their list."""
    lists = {key: [column.attrs[attr.name] for column in columns] for key, attr in attrs.items()}
    set_lists(node, **lists)


def set_names(node: node_def_pb2.NodeDef, columns: Sequence[ColumnArguments]) -> None:
    """Sets what messages call the columns."""
    set_lists(node, column_names=[column.name for column in columns])


def set_boundaries(node: node_def_pb2.NodeDef, columns: Sequence[ColumnArguments]) -> None:
    """Sets the boundaries of all columns."""
    set_lists(
        node,
        boundaries=[value for column in columns for value in column.boundaries],
        boundary_counts=[len(column.boundaries) for column in columns],
    )


def unused_number(build: NodeBuilder) -> Tensor:
    """Returns an int64 tensor for an input that the op does not read."""
    return unused(build, "number", types_pb2.DT_INT64)


def width_of(shape: Shape | None) -> int:
    """Returns the static width of a matrix; `NONE` if it is not known, or no matrix."""
    width = shape[1] if shape is not None and len(shape) == 2 else None
    return NONE if width is None else width


def _entries(
    build: NodeBuilder, spec: LookupSpec
) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """Returns ids, entry_rows and dense_shape, with the DataTypes of the first two."""
    ids, number = spec.ids, unused_number(build)
    if isinstance(ids, SparseIds):
        shape = number if ids.dense_shape is None else dense_shape(build, ids)
        return ids.values, ids.indices, shape, (spec.dtype, types_pb2.DT_INT64)
    if isinstance(ids, RaggedIds):
        return ids.values, ids.row_splits, number, (spec.dtype, ids.splits_dtype)
    if isinstance(ids, RowIds):
        count = number if ids.count is None else ids.count
        return ids.values, ids.rows, count, (spec.dtype, ids.rows_dtype)
    return dense_values(build, ids), number, number, (ids.dtype, types_pb2.DT_INT64)
