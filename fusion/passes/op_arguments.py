"""Inputs and attrs that the ops of all forms of a lookup have in common."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes

from fusion.passes.forms import clips_in_op
from fusion.passes.node_builder import AttrValue, NodeBuilder
from fusion.passes.spec import DenseIds, Hashing, LookupSpec, SparseIds
from fusion.passes.tensor import Tensor

NONE = -1
"""Value of default_id, ignored_id and max_norm that means "none"."""


def fill_attrs(spec: LookupSpec) -> dict[str, AttrValue]:
    """What is done with rows without entries."""
    default_id = NONE if spec.default_id is None else spec.default_id
    return {"fill_empty_row": spec.fill, "default_id": default_id}


def prune_attrs(spec: LookupSpec) -> dict[str, AttrValue]:
    """What is done with an id before it is looked up."""
    buckets = spec.buckets
    return {
        "prune": spec.prune,
        "num_buckets": 0 if buckets is None else buckets.count,
        "bucket_default": 0 if buckets is None else buckets.default,
    }


def dense_attrs(ids: DenseIds) -> dict[str, AttrValue]:
    """How entries are made of the elements of a dense matrix."""
    return {
        "use_ignored_id": ids.ignored is not None or ids.hashed is not None,
        "ignored_id": NONE if ids.ignored is None else ids.ignored,
        "column_stride": ids.stride,
    }


def dense_values(build: NodeBuilder, ids: DenseIds) -> Tensor:
    """Returns the matrix of ids; where a value is hashed, NONE stands for what is no entry.

    To hash all elements takes less than to gather those that are entries first.
    """
    if ids.hashed is None:
        return ids.values
    hashes = hashed_values(build, ids.values, ids.hashed)
    none = build.constant("none", np.array(NONE, np.int64), build.device)
    inputs = (ids.hashed.kept, hashes, none)
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
    if key not in build.known:
        hashes = values
        for stock in hashed.by:
            node = build.copy("hash", stock)
            node.attr.pop("_output_shapes", None)
            build.replace_input(node, 0, hashes)
            hashes = Tensor(build.add(node))
        build.known[key] = hashes.node
    return Tensor(build.known[key])


def weight_attrs(spec: LookupSpec) -> dict[str, AttrValue]:
    """What weights do to the entries."""
    weighted = spec.weights
    return {
        "use_sparse_weights": weighted is not None,
        "prune_sparse_weights": weighted is not None and weighted.prune,
        "default_weight": 1.0 if weighted is None else weighted.default,
    }


def combine_attrs(spec: LookupSpec) -> dict[str, AttrValue]:
    """How rows become bags."""
    limit = spec.table.max_norm
    return {
        "combiner": spec.combiner,
        "max_norm": limit if limit is not None and clips_in_op(spec) else float(NONE),
        "row_count": "dense_shape" if spec.fill else "last_row",
        "divide_no_nan": spec.divide_no_nan,
    }


def weights(build: NodeBuilder, spec: LookupSpec) -> Tensor:
    """Returns the weights, one for each id; without weights, a tensor that nobody reads."""
    if spec.weights is None:
        return unused(build, "weights", spec.table.dtype)
    return each_weight(build, spec, spec.weights.values, spec.ids.values, spec.dtype)


def each_weight(
    build: NodeBuilder, spec: LookupSpec, values: Tensor, entries: Tensor, dtype: int
) -> Tensor:
    """Returns weights, one for each of the entries, a vector of this DataType."""
    values = weight_vector(build, values)
    if spec.fill or spec.combiner != "sum":
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
