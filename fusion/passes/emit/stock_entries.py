"""The entries of a lookup by stock ops: which ids are looked up, and for which row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import ShapeMath, has_measured_columns
from fusion.passes.analysis.value_ranges import is_in_row_order
from fusion.passes.emit.arguments import dense_shape, hashed_values, weight_vector
from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.emit.stock_nodes import (
    all_of,
    as_dtype,
    compared,
    expanded,
    first_column,
    first_element,
    flattened,
    number,
    numpy_type,
    picked,
    sliced,
)
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import needs_prune
from fusion.passes.recognise.parsing import SEQUENCE_PARSERS
from fusion.passes.recognise.spec import DenseIds, LookupSpec, RaggedIds, RowIds, SparseIds
from fusion.schema.names import PARSE_EXAMPLE, PARSE_SEQUENCE

_BOOL, _INT64 = types_pb2.DT_BOOL, types_pb2.DT_INT64
_PARSERS = frozenset({"ParseExample", "ParseExampleV2", PARSE_EXAMPLE, PARSE_SEQUENCE}).union(
    SEQUENCE_PARSERS
)
_CHECK_SHAPES = _PARSERS | {"SparseReshape"}
"""Ops that make dense shapes without negative sizes."""
_MEASURE = _PARSERS | {"RaggedTensorToSparse", "Shape", "StringSplitV2"}
"""Ops whose dense shapes have as many rows as there are."""


@dataclass(frozen=True)
class Entries:
    """What is looked up.

    Attributes:
        ids: [n], none of them pruned any more.
        rows: int32 or int64 [n], ascending: the row of each.
        rows_dtype: DataType of `rows`.
        weights: [n]; None without weights.
        count: int64 [], the number of rows; None where the last row with an entry is the last one.
        is_row_empty: bool [B], which rows were empty and have an added entry; None if none is.
    """

    ids: Tensor
    rows: Tensor
    rows_dtype: int
    weights: Tensor | None
    count: Tensor | None
    is_row_empty: Tensor | None


@dataclass(frozen=True)
class OnePerRow:
    """Ids of which each row has one, or none.

    Attributes:
        ids: [B], all of them valid.
        present: bool [B], which rows have an id at all; None if all have.
    """

    ids: Tensor
    present: Tensor | None


def one_per_row(build: NodeBuilder, spec: LookupSpec) -> OnePerRow:
    """Emits what makes the ids of a matrix of one column valid, element by element."""
    ids, tests, is_only_pruned = _matrix(build, spec, flat=True)
    if not tests:
        return OnePerRow(ids, None)
    present = all_of(build, tests)
    if spec.column.default_id >= 0:
        return OnePerRow(_choose(build, spec, present, ids, spec.column.default_id), None)
    if is_only_pruned:
        ids = build.shared("ids", "Maximum", (ids, number(build, 0, spec.dtype)), {"T": spec.dtype})
    else:
        ids = _choose(build, spec, present, ids, 0)
    return OnePerRow(ids, present)


def entries(build: NodeBuilder, spec: LookupSpec) -> Entries:
    """Emits what prunes the entries, and gives empty rows one, as far as either is needed."""
    fills = _fills(build.edit.view, spec)
    ids, weights, rows = _valid(build, spec, fills)
    if fills:
        return _filled(build, spec, ids, weights, rows)
    return Entries(ids, rows.indices, rows.dtype, weights, _counted(build, spec, rows), None)


def _counted(build: NodeBuilder, spec: LookupSpec, rows: _Rows) -> Tensor | None:
    """Returns how many rows there are, which the reductions take modulo 2**32.

    Unless it is the size of a tensor, a number of 2**31 or more becomes -1, which is an error.
    """
    if rows.shape is None or not isinstance(spec.ids, SparseIds) or spec.ids.dense_shape is None:
        return rows.shape
    view = build.edit.view
    if view.op(view.resolve(spec.ids.dense_shape).node) in _MEASURE:
        return rows.shape
    fits = compared(build, "Less", rows.shape, _INT64, 1 << 31)
    inputs = (fits, rows.shape, number(build, -1, _INT64))
    return build.shared("count", "SelectV2", inputs, {"T": _INT64})


def _fills(view: GraphView, spec: LookupSpec) -> bool:
    """Whether the stock op is needed that gives empty rows an entry, and sorts entries by row."""
    column = spec.column
    if not column.fill_empty_row or column.default_id >= 0 or column.use_sparse_weights:
        return column.fill_empty_row
    if isinstance(spec.ids, SparseIds):
        return not is_in_row_order(Value(view, spec.ids.indices))
    return isinstance(spec.ids, RowIds)


class _Rows(NamedTuple):
    """Which row each entry is of.

    Attributes:
        indices: int32 or int64 [n]; if `is_matrix`, int64 [n, 2] with the row in column 0.
        dtype: DataType of `indices`.
        shape: int64 [], the number of rows; if `is_matrix`, int64 [2] with that number first; None
            where the last row with an entry is the last one.
        is_matrix: see above.
    """

    indices: Tensor
    dtype: int
    shape: Tensor | None
    is_matrix: bool

    def as_vector(self, build: NodeBuilder) -> _Rows:
        """Returns the same without columns."""
        if not self.is_matrix:
            return self
        count = None if self.shape is None else first_element(build, self.shape)
        return _Rows(first_column(build, self.indices), _INT64, count, is_matrix=False)

    def as_matrix(self, build: NodeBuilder) -> _Rows:
        """Returns the same with columns, of which there is one if there were none."""
        if self.is_matrix:
            return self
        assert self.shape is not None, "rows are counted where empty ones are filled"
        rows = as_dtype(build, self.indices, self.dtype, _INT64)
        shape = expanded(build, self.shape, 0)
        return _Rows(expanded(build, rows, 1), _INT64, shape, is_matrix=True)


def _valid(
    build: NodeBuilder, spec: LookupSpec, fills: bool
) -> tuple[Tensor, Tensor | None, _Rows]:
    """Returns the ids that are kept, their weights, and their rows, as a matrix if `fills`."""
    if isinstance(spec.ids, DenseIds):
        ids, rows = _of_matrix(build, spec)
        return ids, None, rows if fills else rows.as_vector(build)
    rows = _entry_rows(build, spec)
    rows = rows.as_matrix(build) if fills else rows.as_vector(build)
    ids = in_buckets(build, spec, spec.ids.values)
    if isinstance(spec.ids, RaggedIds | RowIds) and spec.ids.wraps:
        ids = from_the_end(build, spec, ids)
    weights = None if spec.weights is None else weight_vector(build, spec.weights)
    tests = []
    if needs_prune(build.edit.view, spec):
        tests.append(compared(build, "GreaterEqual", ids, spec.dtype, 0))
    if weights is not None and spec.column.prune_sparse_weights:
        tests.append(compared(build, "Greater", weights, spec.table.dtype, 0))
    if not tests:
        return ids, weights, rows
    keep = build.shared("keep", "Where", (all_of(build, tests),), {"T": _BOOL})
    keep = flattened(build, keep, _INT64)
    if weights is not None:
        if len(tests) == 1:
            weights = _of_length(build, spec, weights, ids)
        weights = picked(build, weights, spec.table.dtype, keep)
    rows = rows._replace(indices=picked(build, rows.indices, rows.dtype, keep))
    return picked(build, ids, spec.dtype, keep), weights, rows


def _of_length(build: NodeBuilder, spec: LookupSpec, weights: Tensor, ids: Tensor) -> Tensor:
    """Lets weights that are more than the ids be an error, as stock's tests of both let them be."""
    types = {"T": spec.dtype, "out_type": _INT64}
    length = build.shared("length", "Shape", (ids,), types)
    types = {"T": spec.table.dtype, "Tshape": _INT64}
    return build.shared("weights", "Reshape", (weights, length), types)


def _entry_rows(build: NodeBuilder, spec: LookupSpec) -> _Rows:
    """Returns the rows of the given entries."""
    ids = spec.ids
    if isinstance(ids, SparseIds):
        view, rows = build.edit.view, _Rows(ids.indices, _INT64, ids.dense_shape, is_matrix=True)
        sizes = None if rows.shape is None else ShapeMath().vector(Value(view, rows.shape))
        needs_check = ids.checked and not has_measured_columns(sizes)
        return _checked(build, rows) if needs_check else rows
    if isinstance(ids, RaggedIds):
        types, rank = {"T": spec.dtype, "Tsplits": ids.splits_dtype}, {"RAGGED_RANK": 1}
        inputs = (ids.row_splits, ids.values)
        sparse = build.shared("sparse", "RaggedTensorToSparse", inputs, types, rank).node
        return _Rows(Tensor(sparse), _INT64, Tensor(sparse, 2), is_matrix=True)
    assert isinstance(ids, RowIds)
    count = ids.count
    if count is not None and build.edit.view.shape(count) != ():
        # A fused op also takes the shape that the number of rows is the first element of.
        count = first_element(build, flattened(build, count, _INT64))
    return _Rows(ids.rows, ids.rows_dtype, count, is_matrix=False)


def _filled(
    build: NodeBuilder, spec: LookupSpec, ids: Tensor, weights: Tensor | None, rows: _Rows
) -> Entries:
    """Emits the stock op that gives empty rows an entry, and puts entries in the order of rows."""
    rows = _checked_rows(build, spec, rows)
    assert rows.shape is not None, "rows are counted where empty ones are filled"
    default = number(build, max(spec.column.default_id, 0), spec.dtype)
    inputs = (rows.indices, ids, rows.shape, default)
    node = build.shared("fill", "SparseFillEmptyRows", inputs, {"T": spec.dtype}).node
    if weights is not None:
        dtype = spec.table.dtype
        weight = number(build, spec.column.default_weight, dtype)
        inputs = (rows.indices, weights, rows.shape, weight)
        filled = build.shared("fill_weights", "SparseFillEmptyRows", inputs, {"T": dtype}).node
        weights = Tensor(filled, 1)
    return Entries(
        ids=Tensor(node, 1),
        rows=first_column(build, Tensor(node)),
        rows_dtype=_INT64,
        weights=weights,
        count=None,  # each row has an entry now, the last one too
        is_row_empty=Tensor(node, 2) if spec.column.default_id < 0 else None,
    )


def _checked(build: NodeBuilder, rows: _Rows) -> _Rows:
    """Lets a dense shape that no tensor can have be an error, by the op that stock has for it."""
    view, shape = build.edit.view, rows.shape
    if shape is None or view.op(view.resolve(shape).node) in _CHECK_SHAPES | _MEASURE:
        return rows
    node = build.shared("checked", "SparseReshape", (rows.indices, shape, shape), {}).node
    return rows._replace(indices=Tensor(node), shape=Tensor(node, 1))


def _checked_rows(build: NodeBuilder, spec: LookupSpec, rows: _Rows) -> _Rows:
    """Lets a negative number of rows be an error.

    The op that fills ends the whole process instead, if its flags are not read.
    """
    if not isinstance(spec.ids, SparseIds | RowIds) or rows.shape is None:
        return rows
    if spec.column.default_id < 0 and spec.weights is None:
        return rows
    if rows.shape.node not in build.edit.view.nodes:
        return rows  # it was checked before
    if isinstance(spec.ids, SparseIds):
        rows = rows._replace(shape=dense_shape(build, spec.ids))
    return _checked(build, rows)


class _Matrix(NamedTuple):
    """The elements of a matrix as ids.

    Attributes:
        ids: of the matrix's shape.
        tests: bool, what has to hold for an element to be an entry.
        is_only_pruned: whether an element is an entry if its id is not negative.
    """

    ids: Tensor
    tests: list[Tensor]
    is_only_pruned: bool


def _matrix(build: NodeBuilder, spec: LookupSpec, flat: bool = False) -> _Matrix:
    """Emits the ids of all elements, as a vector if `flat`."""
    ids = spec.ids
    assert isinstance(ids, DenseIds)

    def shaped(tensor: Tensor, dtype: int) -> Tensor:
        return flattened(build, tensor, dtype) if flat else tensor

    values, dtype, tests = ids.values, ids.dtype, list[Tensor]()
    if ids.hashed is not None:
        values, dtype = hashed_values(build, ids.values, ids.hashed), _INT64
        tests.append(shaped(ids.hashed.mask, _BOOL))
    values = shaped(values, dtype)
    prunes = needs_prune(build.edit.view, spec)
    is_pruned = prunes and not spec.column.num_buckets
    if ids.ignored is not None and not (is_pruned and ids.ignored < 0):
        tests.append(compared(build, "NotEqual", values, dtype, ids.ignored))
    values = as_dtype(build, values, dtype, spec.dtype)
    if ids.stride and not flat:
        numbers = _column_numbers(build, ids.values, ids.dtype, spec.dtype, ids.stride)
        values = build.shared("ids", "AddV2", (values, numbers), {"T": spec.dtype})
    values = in_buckets(build, spec, values)
    if ids.wraps:
        values = from_the_end(build, spec, values)
    if prunes:
        tests.append(compared(build, "GreaterEqual", values, spec.dtype, 0))
    return _Matrix(values, tests, prunes and len(tests) == 1)


def from_the_end(build: NodeBuilder, spec: LookupSpec, ids: Tensor) -> Tensor:
    """Counts ids < 0 from the end of the table."""
    shard = spec.table.shards[0]
    if shard.rows is not None:
        rows = number(build, shard.rows, spec.dtype)
    else:
        types = {"T": spec.table.dtype, "out_type": spec.dtype}
        measured = build.shared("shape", "Shape", (shard.tensor,), types)
        rows = sliced(build, measured, spec.dtype, [0], [1], {"shrink_axis_mask": 1})
    moved = build.shared("ids", "AddV2", (ids, rows), {"T": spec.dtype})
    is_negative = compared(build, "Less", ids, spec.dtype, 0)
    return build.shared("ids", "SelectV2", (is_negative, moved, ids), {"T": spec.dtype})


def _of_matrix(build: NodeBuilder, spec: LookupSpec) -> tuple[Tensor, _Rows]:
    """Returns the elements of a matrix that are entries, row after row."""
    ids, tests, _ = _matrix(build, spec)
    if not tests:
        tests = [build.shared("all", "Equal", (ids, ids), {"T": spec.dtype})]
    indices = build.shared("keep", "Where", (all_of(build, tests),), {"T": _BOOL})
    types = {"Tparams": spec.dtype, "Tindices": _INT64}
    picked = build.shared("ids", "GatherNd", (ids, indices), types)
    shape = None
    if spec.column.fill_empty_row:
        types = {"T": spec.dtype, "out_type": _INT64}
        shape = build.shared("shape", "Shape", (ids,), types)
    return picked, _Rows(indices, _INT64, shape, is_matrix=True)


def _column_numbers(
    build: NodeBuilder, values: Tensor, values_dtype: int, dtype: int, stride: int
) -> Tensor:
    """Returns [L], what each column of [B, L] values of DataType `values_dtype` adds to an id."""
    shape = build.edit.view.shape(values)
    if shape is not None and shape[1] is not None:
        numbers = np.arange(shape[1], dtype=numpy_type(dtype)) * stride
        return build.constant("column_numbers", numbers)
    measured = build.shared("shape", "Shape", (values,), {"T": values_dtype, "out_type": dtype})
    width = sliced(build, measured, dtype, [1], [2], {"shrink_axis_mask": 1})
    limits = number(build, 0, dtype), width, number(build, 1, dtype)
    counted = build.shared("columns", "Range", limits, {"Tidx": dtype})
    return build.shared(
        "column_numbers", "Mul", (counted, number(build, stride, dtype)), {"T": dtype}
    )


def in_buckets(build: NodeBuilder, spec: LookupSpec, ids: Tensor) -> Tensor:
    """Replaces ids outside the buckets, if there are any."""
    column = spec.column
    if not column.num_buckets:
        return ids
    tests = [
        compared(build, "GreaterEqual", ids, spec.dtype, 0),
        compared(build, "Less", ids, spec.dtype, column.num_buckets),
    ]
    return _choose(build, spec, all_of(build, tests), ids, column.bucket_default)


def _choose(build: NodeBuilder, spec: LookupSpec, valid: Tensor, ids: Tensor, other: int) -> Tensor:
    """Returns the ids, and another one where they are not valid."""
    inputs = (valid, ids, number(build, other, spec.dtype))
    return build.shared("ids", "SelectV2", inputs, {"T": spec.dtype})
