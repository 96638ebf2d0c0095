"""Ids that are made one tensor first, and what else is multiplied in products of encoded ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import AttrValue, NodeBuilder
from fusion.passes.emit.stock_nodes import (
    all_of,
    as_dtype,
    compared,
    flattened,
    number,
    numpy_type,
    sliced,
)
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import DenseIds, EncodedIds, JoinedIds, LookupSpec, SparseIds
from fusion.passes.recognise.stock.products import Dense, Product

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_NONE = -1


def with_plain_ids(build: NodeBuilder, spec: LookupSpec) -> LookupSpec:
    """Returns a lookup whose ids are one tensor that holds nothing else."""
    ids = spec.ids
    if isinstance(ids, JoinedIds):
        blocks = [_block(build, parts) for parts in _blocks(ids.parts)]
        return replace(spec, ids=DenseIds(_concat(build, blocks, 1, _INT64), _INT64, None, 0))
    if isinstance(ids, SparseIds) and ids.columns:
        return _of_columns(build, spec, ids)
    if isinstance(ids, SparseIds) and ids.padded:
        return _padded(build, spec, ids)
    return spec


def finish(build: NodeBuilder, product: Product, bag: Tensor) -> None:
    """Adds the product of the dense inputs, and the ops that follow; the last is the result."""
    dtype = product.spec.table.dtype
    steps = [*product.then]
    if product.dense:
        # Of unequal batch sizes an AddN makes an error, and an AddV2 may make a sum.
        steps.insert(0, ("AddN", (_other_columns(build, product, dtype),)))
    for index, (op, read) in enumerate(steps):
        inputs, attrs = (bag, *read), _attrs(build, product, op)
        if index + 1 == len(steps):
            build.result(op, inputs, {"T": dtype}, attrs)
        else:
            bag = build.shared("product", op, inputs, {"T": dtype}, attrs)


def replace_sizes(build: NodeBuilder, product: Product) -> None:
    """Lets those who read sizes of one-hots have them from the ids."""
    edit = build.edit
    for one in product.sizes:
        kind = edit.view.type_attr(one.node, "out_type") or _INT32
        types = {"T": one.ids.dtype, "out_type": kind}
        sizes = build.shared("sizes", "Shape", (one.ids.values,), types)
        last = build.constant("classes", np.array([one.ids.classes], numpy_type(kind)))
        edit.replace(Tensor(one.node), _concat(build, [sizes, last], 0, kind))
        edit.remove([one.node], build.base)


def _attrs(build: NodeBuilder, product: Product, op: str) -> dict[str, AttrValue]:
    if op == "AddN":
        return {"N": 2}
    alpha = build.edit.view.attr(product.spec.anchor, "leakyrelu_alpha")
    return {"alpha": alpha.f} if op == "LeakyRelu" and alpha is not None else {}


def _blocks(parts: Sequence[EncodedIds]) -> Iterator[tuple[EncodedIds, ...]]:
    """Yields parts that are made rows of the table together: those of known width, then others."""
    fixed = tuple(part for part in parts if part.width is not None and not part.is_distinct)
    if fixed:
        yield fixed
    yield from ((part,) for part in parts if part not in fixed)


def _block(build: NodeBuilder, parts: Sequence[EncodedIds]) -> Tensor:
    """Returns int64 [B, K], rows of the table; what is no entry is negative."""
    ids = _side_by_side(build, parts)
    if parts[0].is_distinct:
        ids = _distinct(build, ids)
    limits, moves = list[int](), list[int]()
    for part in parts:
        # The columns of one part of unknown width are all alike.
        for column in range(part.width or 1):
            limits.append(part.classes)
            moves.append(part.start + column * part.stride)
    is_alike = len({*limits}) == len({*moves}) == 1
    limit, move = (
        number(build, numbers[0], _INT64)
        if is_alike
        else build.constant("classes", np.array(numbers, np.int64))
        for numbers in (limits, moves)
    )
    types = {"T": _INT64}
    tests = [
        compared(build, "GreaterEqual", ids, _INT64, 0),
        build.shared("test", "Less", (ids, limit), types),
        *(_are_accepted(build, part) for part in parts if part.refuses),
    ]
    inside = all_of(build, tests)
    rows = build.shared("rows", "AddV2", (ids, move), types)
    return build.shared("ids", "SelectV2", (inside, rows, number(build, _NONE, _INT64)), types)


def _side_by_side(build: NodeBuilder, parts: Sequence[EncodedIds]) -> Tensor:
    """Returns the ids of parts, int64 [B, K]."""
    values = [
        flattened(build, part.values, part.dtype) if part.is_flat else part.values for part in parts
    ]
    kinds = {part.dtype for part in parts}
    dtype = kinds.pop() if len(kinds) == 1 else _INT64
    pairs = zip(values, parts, strict=True)
    values = [as_dtype(build, tensor, part.dtype, dtype) for tensor, part in pairs]
    if all(part.is_vector or part.is_flat for part in parts):
        packed = build.shared(
            "joined", "Pack", tuple(values), {"T": dtype}, {"N": len(values), "axis": 1}
        )
        return as_dtype(build, packed, dtype, _INT64)
    axis = build.constant("axis", np.array(1, np.int32))
    types = {"T": dtype, "Tdim": _INT32}
    matrices = [
        build.shared("column", "ExpandDims", (tensor, axis), types)
        if part.is_vector or part.is_flat
        else tensor
        for tensor, part in zip(values, parts, strict=True)
    ]
    return as_dtype(build, _concat(build, matrices, 1, dtype), dtype, _INT64)


def _are_accepted(build: NodeBuilder, part: EncodedIds) -> Tensor:
    """Returns bool [1], true if stock's own op accepts the least of a part's ids.

    It is an operand of what is computed: a control edge alone would be optimized away.
    """
    types = {"T": part.dtype, "Tidx": _INT32}
    axes = build.constant("axes", np.array([0, 1], np.int32))
    min_id = build.shared("least", "Min", (part.values, axes), types)
    stock = build.edit.view.nodes[part.refuses]
    size = number(build, 1, part.dtype)
    types = {"Tidx": part.dtype, "T": stock.attr["T"].type}
    weights = build.edit.view.inputs(part.refuses)[2]
    inputs = (flattened(build, min_id, part.dtype), size, weights)
    counted = build.shared("check", "DenseBincount", inputs, types)
    return compared(build, "GreaterEqual", counted, stock.attr["T"].type, 0)


def _distinct(build: NodeBuilder, ids: Tensor) -> Tensor:
    """Returns ids of which each is in a row once: sorted, with NONE instead of repeats."""
    shape = build.shared("shape", "Shape", (ids,), {"T": _INT64, "out_type": _INT32})
    width = sliced(build, shape, _INT32, [1], [2], {"shrink_axis_mask": 1})
    # Without Tk and index_type, which TensorFlow before 2.13 does not know: both are int32.
    ordered = build.shared("sorted", "TopKV2", (ids, width), {"T": _INT64}, {"sorted": True})
    # Each is compared with the one on its left; there is none left of the first.
    masks = {"begin_mask": 3, "end_mask": 1}
    before = sliced(build, ordered, _INT64, [0, 0], [0, -1], masks)
    paddings = build.constant("paddings", np.array([[0, 0], [1, 0]], np.int32))
    inputs = (before, paddings, number(build, _NONE, _INT64))
    before = build.shared("before", "PadV2", inputs, {"T": _INT64, "Tpaddings": _INT32})
    repeats = build.shared("repeats", "Equal", (ordered, before), {"T": _INT64})
    inputs = (repeats, number(build, _NONE, _INT64), ordered)
    return build.shared("distinct", "SelectV2", inputs, {"T": _INT64})


def _concat(build: NodeBuilder, parts: Sequence[Tensor], axis: int, dtype: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    inputs = (*parts, build.constant("axis", np.array(axis, np.int32)))
    types = {"T": dtype, "Tidx": _INT32}
    return build.shared("joined", "ConcatV2", inputs, types, {"N": len(parts)})


def _other_columns(build: NodeBuilder, product: Product, dtype: int) -> Tensor:
    """Returns the product of the columns that are no ids."""
    dense = product.dense
    values = _concat(build, [one.values for one in dense], 1, dtype)
    rows = [_rows(build, product.kernel, start, count, dtype) for start, count in _runs(dense)]
    inputs = (values, _concat(build, rows, 0, dtype))
    return build.shared("product", "MatMul", inputs, {"T": dtype})


def _runs(dense: Sequence[Dense]) -> Iterator[tuple[int, int]]:
    """Yields the rows of the matrix, those next to each other at once: the first and how many."""
    start, count = dense[0].start, 0
    for one in dense:
        if one.start != start + count:
            yield start, count
            start, count = one.start, 0
        count += one.width
    yield start, count


def _rows(build: NodeBuilder, kernel: Tensor, start: int, count: int, dtype: int) -> Tensor:
    begin = build.constant("begin", np.array([start, 0], np.int32))
    size = build.constant("size", np.array([count, -1], np.int32))
    return build.shared("rows", "Slice", (kernel, begin, size), {"T": dtype, "Index": _INT32})


def _of_columns(build: NodeBuilder, spec: LookupSpec, ids: SparseIds) -> LookupSpec:
    """Returns the lookup of a sparse matrix's columns; stock's own op checks how many there are."""
    assert ids.dense_shape is not None, "a sparse matrix has a shape"
    dtype = spec.table.dtype
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
    columns = sliced(build, ids.indices, _INT64, [0, 1], [0, 2], masks)
    if not _has_columns(build, ids.dense_shape, spec.table.shape[0]):
        no_indices = build.constant("no_indices", np.zeros([0, 2], np.int64))
        none = build.constant("none", np.zeros([0], numpy_type(dtype)))
        no_rows = build.constant("no_rows", np.array([0, 1], np.int64))
        shape = build.shared("shape", "Mul", (ids.dense_shape, no_rows), {"T": _INT64})
        inputs = (no_indices, none, shape, spec.table.shards[0].tensor)
        types = {"T": dtype, "Tindices": _INT64}
        check = build.shared("check", "SparseTensorDenseMatMul", inputs, types)
        # The sum of nothing; a control edge alone would be optimized away.
        axes = build.constant("axes", np.array([0, 1], np.int32))
        zero = build.shared("zero", "Sum", (check, axes), {"T": dtype, "Tidx": _INT32})
        operands = (columns, as_dtype(build, zero, dtype, _INT64))
        columns = build.shared("columns", "AddV2", operands, {"T": _INT64})
    return replace(spec, ids=replace(ids, values=columns, columns=False))


def _padded(build: NodeBuilder, spec: LookupSpec, ids: SparseIds) -> LookupSpec:
    """Returns the lookup of all elements of a sparse matrix."""
    assert ids.dense_shape is not None, "a sparse matrix has a shape"
    assert spec.column.default_id == 0, "what is no entry has the id 0"
    dtype, values, zero = spec.dtype, ids.values, number(build, 0, spec.dtype)
    if spec.column.prune:
        values = build.shared("ids", "Maximum", (values, zero), {"T": dtype})
    inputs = (ids.indices, ids.dense_shape, values, zero)
    types = {"T": dtype, "Tindices": _INT64}
    dense = build.shared("padded", "SparseToDense", inputs, types, {"validate_indices": True})
    column = replace(spec.column, prune=False, default_id=_NONE)
    return replace(spec, ids=DenseIds(dense, dtype, None, 0), column=column)


def _has_columns(build: NodeBuilder, shape: Tensor, rows: int | None) -> bool:
    """Whether a sparse matrix is known to have a column for each row of a table."""
    value = build.edit.view.constant(shape)
    return value is not None and value.shape == (2,) and value[1] == rows
