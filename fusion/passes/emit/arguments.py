"""Inputs and attrs that the ops of all forms of a lookup have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.emit.node_builder import AttrValue, NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import clips_in_op, is_on_cpu, placement
from fusion.passes.recognise.bucketize import folded_bucketize
from fusion.passes.recognise.matrix_columns import match_column
from fusion.passes.recognise.spec import (
    DenseIds,
    Hashing,
    JoinedIds,
    LookupSpec,
    RaggedIds,
    RowIds,
    SparseIds,
)
from fusion.runtime.tensorflow.private import dtypes
from fusion.runtime.tensorflow.spec import Attr
from fusion.schema.attributes import PACKED_ATTR
from fusion.schema.columns import Column, column_name
from fusion.schema.row_formats import PLAIN

NONE = -1
"""Value of ignored_id, and of dim, that means "none"."""


def dense_form(ids: DenseIds) -> str:
    """The form of a dense matrix of ids, as ops name it."""
    if ids.lengths is not None:
        return "lengths"
    return "each" if ids.is_each else "dense"


def dense_values(build: NodeBuilder, ids: DenseIds) -> Tensor:
    """Returns the matrix of ids; where a value is hashed, NONE stands for what is no entry.

    To hash all elements takes less than to gather those that are entries first.
    """
    if ids.hashed is None:
        return ids.values
    hashes = hashed_values(build, ids.values, ids.hashed)
    none = build.constant("none", np.array(NONE, np.int64), build.device)
    inputs = (ids.hashed.mask, hashes, none)
    return build.shared("ids", "SelectV2", inputs, {"T": types_pb2.DT_INT64})


def dense_shape(build: NodeBuilder, ids: SparseIds) -> Tensor:
    """Returns the dense shape, of which the ops check all sizes: not more than stock does."""
    assert ids.dense_shape is not None
    if ids.checked:
        return ids.dense_shape
    rows = build.constant("rows", np.array([1, 0], np.int64))
    return build.shared("rows", "Mul", (ids.dense_shape, rows), {"T": types_pb2.DT_INT64})


def hashed_values(build: NodeBuilder, values: Tensor, hashed: Hashing) -> Tensor:
    """Copies the stock nodes that hash single elements: int64, of all the values."""
    key = ("hashed", values, hashed)
    if key not in build.edit.shared:
        hashes = values
        for stock in hashed.by:
            node = build.copy("hash", stock)
            node.attr.pop("_output_shapes", None)
            build.replace_input(node, 0, hashes)
            hashes = Tensor(build.add(node))
        build.edit.shared[key] = hashes.node
    return Tensor(build.edit.shared[key])


def weights(build: NodeBuilder, spec: LookupSpec) -> Tensor:
    """Returns the weights, one for each id; without weights, a tensor that is not read."""
    if spec.weights is None:
        return unused(build, "weights", spec.table.dtype)
    if spec.column.is_dense_sum:
        return spec.weights
    return each_weight(build, spec, spec.weights, spec.ids.values, spec.dtype)


def each_weight(
    build: NodeBuilder, spec: LookupSpec, values: Tensor, entries: Tensor, dtype: int
) -> Tensor:
    """Returns weights, one for each of the entries, a vector of this DataType."""
    values = weight_vector(build, values)
    if spec.column.fill_empty_row or spec.combiner != "sum":
        return values
    # The product of rows and weights takes a single weight for all of them.
    types = {"T": dtype, "out_type": types_pb2.DT_INT64}
    length = build.shared("length", "Shape", (entries,), types)
    types = {"T": spec.table.dtype, "Tidx": types_pb2.DT_INT64}
    return build.shared("weights", "BroadcastTo", (values, length), types)


def weight_vector(build: NodeBuilder, values: Tensor) -> Tensor:
    """Returns weights as a vector: a constant that Grappler folded into a column is one again."""
    column = build.edit.view.constant(values)
    if column is None or column.ndim == 1:
        return values
    return build.constant("weights", column.reshape(-1))


def unused(build: NodeBuilder, role: str, dtype: int) -> Tensor:
    """Returns a tensor for an input that the op does not read, one for all of the dtype."""
    return build.constant(f"unused_{role}", np.ones(1, dtypes.as_dtype(dtype).as_numpy_dtype))


_FORMS = {SparseIds: "indices", RaggedIds: "row_splits", RowIds: "row_ids"}


def column_of(spec: LookupSpec) -> Column:
    """What ops do with the ids of a lookup."""
    ids, limit = spec.ids, spec.table.max_norm
    assert not isinstance(ids, JoinedIds), "they are put into one tensor first"
    form = dense_form(ids) if isinstance(ids, DenseIds) else _FORMS[type(ids)]
    more: dict[str, Any] = {"form": form}
    if not isinstance(ids, SparseIds):
        more["wrap_negative"] = ids.wraps
    if isinstance(ids, DenseIds):
        more |= {"use_ignored_id": ids.ignored is not None or ids.hashed is not None}
        more |= {"ignored_id": NONE if ids.ignored is None else ids.ignored}
        more |= {"column_stride": ids.stride}
    return replace(
        spec.column,
        max_norm=limit if limit is not None and clips_in_op(spec) else float(NONE),
        row_count="dense_shape" if spec.column.fill_empty_row else "last_row",
        dim=width_of(spec.table.shape),
        **more,
    )


class ColumnArguments(NamedTuple):
    """The inputs, without the table, and attrs of one column.

    Attributes:
        dtypes: DataTypes of `ids` and `entry_rows`.
        column: its attrs.
        boundaries: of the buckets that values fall into, none if they are ids.
        name: what messages call it.
    """

    ids: Tensor
    entry_rows: Tensor
    dense_shape: Tensor
    weights: Tensor
    dtypes: tuple[int, int]
    column: Column
    boundaries: tuple[float, ...]
    name: str = ""


def column_arguments(build: NodeBuilder, spec: LookupSpec) -> ColumnArguments:
    """Returns the arguments of an op for a lookup."""
    ids, entry_rows, dense_shape, dtypes = _entries(build, spec)
    boundaries: tuple[float, ...] = ()
    if isinstance(spec.ids, DenseIds):
        folded = folded_bucketize(build.edit.view, spec.ids)
        if folded is not None:
            ids, boundaries = folded.values, folded.boundaries
            dtypes = (folded.dtype, dtypes[1])
    values = weights(build, spec)
    scope = spec.anchor.rpartition("/")[0] or spec.anchor
    name = column_name(scope, spec.table.name)
    column = column_of(spec)
    return ColumnArguments(ids, entry_rows, dense_shape, values, dtypes, column, boundaries, name)


def of_matrix(view: GraphView, column: ColumnArguments, anchor: str) -> ColumnArguments:
    """Returns the same with a matrix of ids, where ids are a column of one, one for each row.

    Ids that are sliced on another device stay: more than them would be sent from there.

    Args:
        view: the graph.
        column: the arguments.
        anchor: the node of the lookup.
    """
    attrs = column.column
    is_plain = attrs.form in ("dense", "each") and not attrs.is_dense_sum
    if not is_plain or attrs.use_sparse_weights or attrs.epsilon_input:
        return column
    ids = Value(view, column.ids)
    found = match_column(ids)
    if found is None or not (is_on_cpu(view, anchor) and _is_beside(view, ids.producer, anchor)):
        return column
    attrs = replace(attrs, form="each", column_stride=0, id_column=found.column)
    return column._replace(ids=found.matrix.tensor, column=attrs)


def _is_beside(view: GraphView, node: Node, anchor: str) -> bool:
    """Whether two nodes are on the same device."""
    device, own = view.nodes[node.name].device, view.nodes[anchor].device
    return placement(view, device) == placement(view, own)


def copy_arguments(build: NodeBuilder, matrix: Tensor, dtype: int) -> ColumnArguments:
    """Returns the arguments of an op for a tensor of this DataType that it copies."""
    number, types = unused_number(build), (types_pb2.DT_INT64, types_pb2.DT_INT64)
    column = Column(form="copy", dim=width_of(build.edit.view.shape(matrix)))
    weightless = unused(build, "weights", dtype)
    return ColumnArguments(number, number, number, weightless, types, column, ())


def set_column_attrs(node: node_def_pb2.NodeDef, column: Column, name: str) -> None:
    """Sets the attrs of an op for one column, but for its boundaries, and what messages call it."""
    set_attrs(node, **asdict(column), column_name=name)
    _set_packed(node, [column.row_format])


def set_columns(
    node: node_def_pb2.NodeDef, columns: Sequence[ColumnArguments], attrs: Mapping[str, Attr]
) -> None:
    """Sets those attrs of an op that list what `Column` has, here by the name of their list."""
    own = {key: attr.name for key, attr in attrs.items() if hasattr(Column, attr.name)}
    lists = {key: [getattr(one.column, name) for one in columns] for key, name in own.items()}
    set_lists(node, **lists)
    _set_packed(node, lists.get("row_formats", ()))


def _set_packed(node: node_def_pb2.NodeDef, row_formats: Iterable[AttrValue]) -> None:
    """Declares that widths of tables are not those of results, if any table has packed rows."""
    if any(row_format != PLAIN for row_format in row_formats):
        set_types(node, **{PACKED_ATTR.name: types_pb2.DT_UINT8})


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
    assert isinstance(ids, DenseIds), "joined ids are put into one tensor first"
    lengths = number if ids.lengths is None else ids.lengths
    return dense_values(build, ids), lengths, number, (ids.dtype, ids.lengths_dtype)
