"""Small nodes of stock ops; nodes that compute the same are emitted once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import LookupSpec
from fusion.runtime.tensorflow.private import dtypes

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64


def all_of(build: NodeBuilder, tests: list[Tensor]) -> Tensor:
    """Returns where all of the tests hold."""
    both = tests[0]
    for test in tests[1:]:
        both = build.shared("and", "LogicalAnd", (both, test), {})
    return both


def compared(build: NodeBuilder, op: str, values: Tensor, dtype: int, than: float) -> Tensor:
    """Returns how values of this DataType compare with a number."""
    return build.shared("test", op, (values, number(build, than, dtype)), {"T": dtype})


def number(build: NodeBuilder, value: float, dtype: int) -> Tensor:
    """Returns a scalar constant."""
    return build.constant("number", np.array(value, numpy_type(dtype)))


def numpy_type(dtype: int) -> npt.DTypeLike:
    """Returns NumPy's dtype of a DataType."""
    result: npt.DTypeLike = dtypes.as_dtype(dtype).as_numpy_dtype
    return result


def as_dtype(build: NodeBuilder, tensor: Tensor, dtype: int, new_dtype: int) -> Tensor:
    """Returns a tensor of the DataType `dtype` as one of `new_dtype`."""
    if dtype == new_dtype:
        return tensor
    return build.shared("cast", "Cast", (tensor,), {"SrcT": dtype, "DstT": new_dtype})


def flattened(build: NodeBuilder, tensor: Tensor, dtype: int) -> Tensor:
    """Returns all elements of a tensor of this DataType as a vector."""
    shape = build.constant("flat", np.array([-1], np.int32))
    types = {"T": dtype, "Tshape": _INT32}
    return build.shared("flattened", "Reshape", (tensor, shape), types)


def expanded(build: NodeBuilder, tensor: Tensor, axis: int) -> Tensor:
    """Returns an int64 tensor with one more axis of size 1."""
    operand = build.constant("axis", np.array(axis, np.int32))
    types = {"T": _INT64, "Tdim": _INT32}
    return build.shared("expanded", "ExpandDims", (tensor, operand), types)


def picked(build: NodeBuilder, values: Tensor, dtype: int, keep: Tensor) -> Tensor:
    """Returns the values of this DataType, or rows of them, at the int64 indices `keep`."""
    axis = build.constant("axis", np.array(0, np.int32))
    types = {"Tparams": dtype, "Tindices": _INT64, "Taxis": _INT32}
    return build.shared("kept", "GatherV2", (values, keep, axis), types, {"batch_dims": 0})


def first_column(build: NodeBuilder, indices: Tensor) -> Tensor:
    """Returns column 0 of an int64 matrix."""
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
    return sliced(build, indices, _INT64, [0, 0], [0, 1], masks)


def first_element(build: NodeBuilder, shape: Tensor) -> Tensor:
    """Returns the first element of an int64 vector."""
    return sliced(build, shape, _INT64, [0], [1], {"shrink_axis_mask": 1})


def sliced(
    build: NodeBuilder,
    tensor: Tensor,
    dtype: int,
    begin: list[int],
    end: list[int],
    masks: Mapping[str, int],
) -> Tensor:
    """Returns a part of a tensor of this DataType, by the masks of a StridedSlice."""
    bounds = (begin, end, [1] * len(begin))
    limits = (build.constant("slice", np.array(bound, np.int32)) for bound in bounds)
    types = {"T": dtype, "Index": _INT32}
    return build.shared("sliced", "StridedSlice", (tensor, *limits), types, masks)


def emit_clip(build: NodeBuilder, spec: LookupSpec, rows: Tensor) -> Tensor:
    """Scales rows down to a norm of max_norm, by the ops of tf.clip_by_norm."""
    dtype, limit = spec.table.dtype, spec.table.max_norm
    assert limit is not None
    types = {"T": dtype}

    def op(name: str, *inputs: Tensor) -> Tensor:
        return build.shared("clip", name, inputs, types)

    axis = build.constant("row_axis", np.array([1], np.int32))
    squares = op("Mul", rows, rows)
    reduced = {"T": dtype, "Tidx": types_pb2.DT_INT32}
    sums = build.shared("clip", "Sum", (squares, axis), reduced, {"keep_dims": True})
    is_positive = op("Greater", sums, number(build, 0, dtype))
    safe = op("SelectV2", is_positive, sums, number(build, 1, dtype))
    norms = op("SelectV2", is_positive, op("Sqrt", safe), sums)
    largest = number(build, limit, dtype)
    return op("RealDiv", op("Mul", rows, largest), op("Maximum", norms, largest))


def split_ids(build: NodeBuilder, spec: LookupSpec, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int32 [n], the shard of each id, and the number of its row in that shard.

    The arithmetic of `partition_strategy` in tf.nn.embedding_lookup.
    """
    table, dtype = spec.table, spec.dtype
    count = len(table.shards)

    def op(name: str, *inputs: Tensor) -> Tensor:
        return build.shared("split", name, inputs, {"T": dtype})

    if table.strategy == "mod":
        shards = number(build, count, dtype)
        shard = as_dtype(build, op("FloorMod", ids, shards), dtype, types_pb2.DT_INT32)
        return shard, op("FloorDiv", ids, shards)
    # The first `more` shards have a row more than the others.
    total = sum(table.split)
    min_rows, more = number(build, total // count, dtype), number(build, total % count, dtype)
    max_rows = number(build, total // count + 1, dtype)
    rest = op("Sub", ids, more)
    shard = op("Maximum", op("FloorDiv", ids, max_rows), op("FloorDiv", rest, min_rows))
    is_larger = op("Less", shard, more)
    local = op("SelectV2", is_larger, op("FloorMod", ids, max_rows), op("FloorMod", rest, min_rows))
    return as_dtype(build, shard, dtype, types_pb2.DT_INT32), local
