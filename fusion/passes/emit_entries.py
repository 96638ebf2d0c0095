"""The entries of a lookup by stock ops: which ids are looked up, and for which row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes

from fusion.passes.graph_view import Tensor
from fusion.passes.id_ranges import is_in_row_order, lookup_range
from fusion.passes.node_builder import NodeBuilder
from fusion.passes.op_arguments import hashed_values
from fusion.passes.spec import DenseIds, LookupSpec, RaggedIds, RowIds, SparseIds

_BOOL, _INT32, _INT64 = types_pb2.DT_BOOL, types_pb2.DT_INT32, types_pb2.DT_INT64


@dataclass(frozen=True)
class Entries:
    """What is looked up.

    Attributes:
        ids: [n], none of them pruned any more.
        rows: int32 or int64 [n], ascending: the row of each.
        rows_dtype: DataType of `rows`.
        weights: [n]; None without weights.
        count: int64 [], the number of rows; None where the last row with an entry is the last one.
        is_row_empty: bool [B], which rows have one entry that nobody gave; None where none has.
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


def has_one_per_row(build: NodeBuilder, spec: LookupSpec) -> bool:
    """Whether the ids are a matrix of one column."""
    if not isinstance(spec.ids, DenseIds) or not spec.fill:
        return False
    shape = build.edit.view.shape(spec.ids.values)
    return shape is not None and len(shape) == 2 and shape[1] == 1


def one_per_row(build: NodeBuilder, spec: LookupSpec) -> OnePerRow:
    """Emits what makes the ids of a matrix of one column valid, element by element."""
    ids, tests, is_only_pruned = _matrix(build, spec, flat=True)
    if not tests:
        return OnePerRow(ids, None)
    present = _all(build, tests)
    if spec.default_id is not None:
        return OnePerRow(_choose(build, spec, present, ids, spec.default_id), None)
    if is_only_pruned:
        ids = build.shared("ids", "Maximum", (ids, number(build, 0, spec.dtype)), {"T": spec.dtype})
    else:
        ids = _choose(build, spec, present, ids, 0)
    return OnePerRow(ids, present)


def entries(build: NodeBuilder, spec: LookupSpec) -> Entries:
    """Emits what prunes the entries, and gives empty rows one, as far as either is needed."""
    found = _given(build, spec)
    if not spec.fill:
        return found
    ids = spec.ids
    ordered = not isinstance(ids, SparseIds) or is_in_row_order(build.edit.view, ids.indices)
    if isinstance(ids, RowIds):
        ordered = False
    if ordered and spec.default_id is None and spec.weights is None:
        return found
    return _filled(build, spec, found)


def _given(build: NodeBuilder, spec: LookupSpec) -> Entries:
    """Returns the entries that are kept."""
    ids = spec.ids
    if isinstance(ids, DenseIds):
        return _of_matrix(build, spec)
    rows, dtype, count = _rows(build, spec)
    values = _in_buckets(build, spec, ids.values)
    weights = None if spec.weights is None else spec.weights.values
    tests = []
    if spec.prune and not _is_never_negative(build, spec):
        tests.append(_compare(build, "GreaterEqual", values, spec.dtype, 0))
    if weights is not None and spec.weights is not None and spec.weights.prune:
        tests.append(_compare(build, "Greater", weights, spec.table.dtype, 0))
    if tests:
        keep = build.shared("keep", "Where", (_all(build, tests),), {"T": _BOOL})
        keep = flattened(build, keep, _INT64)
        values = _picked(build, values, spec.dtype, keep)
        rows = _picked(build, rows, dtype, keep)
        if weights is not None:
            weights = _picked(build, weights, spec.table.dtype, keep)
    return Entries(values, rows, dtype, weights, count, None)


def _rows(build: NodeBuilder, spec: LookupSpec) -> tuple[Tensor, int, Tensor | None]:
    """Returns the row of each given entry, the DataType of that, and the number of rows."""
    ids = spec.ids
    if isinstance(ids, SparseIds):
        count = None if ids.dense_shape is None else _first(build, ids.dense_shape)
        return _column(build, ids.indices), _INT64, count
    if isinstance(ids, RaggedIds):
        inputs, types = (ids.row_splits, ids.values), {"T": spec.dtype, "Tsplits": ids.splits_dtype}
        node = build.shared(
            "sparse", "RaggedTensorToSparse", inputs, types, {"RAGGED_RANK": 1}
        ).node
        return _column(build, Tensor(node)), _INT64, _first(build, Tensor(node, 2))
    assert isinstance(ids, RowIds)
    return ids.rows, ids.rows_dtype, ids.count


def _filled(build: NodeBuilder, spec: LookupSpec, given: Entries) -> Entries:
    """Emits the stock op that gives empty rows an entry, and puts entries in the order of rows."""
    assert given.count is not None, "rows are counted where empty ones are filled"
    shape = _expanded(build, given.count, 0)
    places = _expanded(build, _cast(build, given.rows, given.rows_dtype, _INT64), 1)
    default = number(build, spec.default_id or 0, spec.dtype)
    inputs = (places, given.ids, shape, default)
    node = build.shared("fill", "SparseFillEmptyRows", inputs, {"T": spec.dtype}).node
    found = replace(given, ids=Tensor(node, 1), rows_dtype=_INT64)
    found = replace(found, rows=flattened(build, Tensor(node), _INT64))
    if given.weights is not None and spec.weights is not None:
        dtype = spec.table.dtype
        weight = number(build, spec.weights.default, dtype)
        inputs = (places, given.weights, shape, weight)
        filled = build.shared("fill_weights", "SparseFillEmptyRows", inputs, {"T": dtype}).node
        found = replace(found, weights=Tensor(filled, 1))
    return replace(found, is_row_empty=Tensor(node, 2) if spec.default_id is None else None)


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
        tests.append(shaped(ids.hashed.kept, _BOOL))
    values = shaped(values, dtype)
    prunes = spec.prune and not _is_never_negative(build, spec)
    if ids.ignored is not None and not (prunes and ids.ignored < 0 and spec.buckets is None):
        tests.append(_compare(build, "NotEqual", values, dtype, ids.ignored))
    values = _cast(build, values, dtype, spec.dtype)
    if ids.stride and not flat:
        numbers = _column_numbers(build, ids.values, ids.dtype, spec.dtype, ids.stride)
        values = build.shared("ids", "AddV2", (values, numbers), {"T": spec.dtype})
    values = _in_buckets(build, spec, values)
    if prunes:
        tests.append(_compare(build, "GreaterEqual", values, spec.dtype, 0))
    return _Matrix(values, tests, prunes and len(tests) == 1)


def _of_matrix(build: NodeBuilder, spec: LookupSpec) -> Entries:
    """Returns the elements of a matrix that are entries, row after row."""
    ids, tests, _ = _matrix(build, spec)
    if not tests:
        tests = [build.shared("all", "Equal", (ids, ids), {"T": spec.dtype})]
    places = build.shared("keep", "Where", (_all(build, tests),), {"T": _BOOL})
    types = {"Tparams": spec.dtype, "Tindices": _INT64}
    picked = build.shared("ids", "GatherNd", (ids, places), types)
    count = None
    if spec.fill:
        types = {"T": spec.dtype, "out_type": _INT64}
        count = _first(build, build.shared("shape", "Shape", (ids,), types))
    return Entries(picked, _column(build, places), _INT64, None, count, None)


def _column_numbers(
    build: NodeBuilder, values: Tensor, given: int, dtype: int, stride: int
) -> Tensor:
    """Returns [L], what each column of [B, L] values of DataType `given` adds to an id."""
    shape = build.edit.view.shape(values)
    if shape is not None and shape[1] is not None:
        numbers = np.arange(shape[1], dtype=_numpy(dtype)) * stride
        return build.constant("column_numbers", numbers)
    measured = build.shared("shape", "Shape", (values,), {"T": given, "out_type": dtype})
    width = _sliced(build, measured, dtype, [1], [2], {"shrink_axis_mask": 1})
    limits = number(build, 0, dtype), width, number(build, 1, dtype)
    counted = build.shared("columns", "Range", limits, {"Tidx": dtype})
    return build.shared(
        "column_numbers", "Mul", (counted, number(build, stride, dtype)), {"T": dtype}
    )


def _is_never_negative(build: NodeBuilder, spec: LookupSpec) -> bool:
    low = lookup_range(build.edit.view, spec).low
    return low is not None and low >= 0


def _in_buckets(build: NodeBuilder, spec: LookupSpec, ids: Tensor) -> Tensor:
    """Replaces ids outside the buckets."""
    buckets = spec.buckets
    if buckets is None:
        return ids
    tests = [
        _compare(build, "GreaterEqual", ids, spec.dtype, 0),
        _compare(build, "Less", ids, spec.dtype, buckets.count),
    ]
    return _choose(build, spec, _all(build, tests), ids, buckets.default)


def _choose(build: NodeBuilder, spec: LookupSpec, valid: Tensor, ids: Tensor, other: int) -> Tensor:
    """Returns the ids, and another one where they are not valid."""
    inputs = (valid, ids, number(build, other, spec.dtype))
    return build.shared("ids", "SelectV2", inputs, {"T": spec.dtype})


def _all(build: NodeBuilder, tests: list[Tensor]) -> Tensor:
    found = tests[0]
    for test in tests[1:]:
        found = build.shared("and", "LogicalAnd", (found, test), {})
    return found


def _compare(build: NodeBuilder, op: str, values: Tensor, dtype: int, than: float) -> Tensor:
    return build.shared("test", op, (values, number(build, than, dtype)), {"T": dtype})


def number(build: NodeBuilder, value: float, dtype: int) -> Tensor:
    """Returns a scalar constant."""
    return build.constant("number", np.array(value, _numpy(dtype)))


def _numpy(dtype: int) -> npt.DTypeLike:
    numpy_type: npt.DTypeLike = dtypes.as_dtype(dtype).as_numpy_dtype
    return numpy_type


def _cast(build: NodeBuilder, tensor: Tensor, given: int, wanted: int) -> Tensor:
    if given == wanted:
        return tensor
    return build.shared("cast", "Cast", (tensor,), {"SrcT": given, "DstT": wanted})


def flattened(build: NodeBuilder, tensor: Tensor, dtype: int) -> Tensor:
    """Returns all elements of a tensor of this DataType as a vector."""
    shape = build.constant("flat", np.array([-1], np.int32))
    types = {"T": dtype, "Tshape": _INT32}
    return build.shared("flattened", "Reshape", (tensor, shape), types)


def _expanded(build: NodeBuilder, tensor: Tensor, axis: int) -> Tensor:
    """Returns an int64 tensor with one more axis of size 1."""
    place = build.constant("axis", np.array(axis, np.int32))
    types = {"T": _INT64, "Tdim": _INT32}
    return build.shared("expanded", "ExpandDims", (tensor, place), types)


def _picked(build: NodeBuilder, values: Tensor, dtype: int, keep: Tensor) -> Tensor:
    axis = build.constant("axis", np.array(0, np.int32))
    types = {"Tparams": dtype, "Tindices": _INT64, "Taxis": _INT32}
    return build.shared("kept", "GatherV2", (values, keep, axis), types, {"batch_dims": 0})


def _column(build: NodeBuilder, places: Tensor) -> Tensor:
    """Returns column 0 of an int64 matrix."""
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
    return _sliced(build, places, _INT64, [0, 0], [0, 1], masks)


def _first(build: NodeBuilder, shape: Tensor) -> Tensor:
    """Returns the first element of an int64 vector."""
    return _sliced(build, shape, _INT64, [0], [1], {"shrink_axis_mask": 1})


def _sliced(
    build: NodeBuilder,
    tensor: Tensor,
    dtype: int,
    begin: list[int],
    end: list[int],
    masks: Mapping[str, int],
) -> Tensor:
    places = (begin, end, [1] * len(begin))
    limits = (build.constant("slice", np.array(place, np.int32)) for place in places)
    types = {"T": dtype, "Index": _INT32}
    return build.shared("sliced", "StridedSlice", (tensor, *limits), types, masks)
