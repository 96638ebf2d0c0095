"""The id side of a lookup: where the ids come from, pruning, and filling of empty rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.match import Match, NoMatch, Stage
from fusion.passes.row_gather import is_row_gather
from fusion.passes.shapes import Element, Item, ShapeMath

_ID_DTYPES = (types_pb2.DT_INT32, types_pb2.DT_INT64)


@dataclass(frozen=True, kw_only=True)
class Fill(Match):
    """SparseFillEmptyRows: every empty row gets the id `default`.

    Attributes:
        indices, values, dense_shape: its inputs.
        default: the constant id, >= 0.
        ids: the filled ids, its output 1.
        is_row_empty: which rows were empty, its output 2.
        dtype: DataType of the ids.
    """

    indices: Tensor
    values: Tensor
    dense_shape: Tensor
    default: int
    ids: Tensor
    is_row_empty: Tensor
    dtype: int


@dataclass(frozen=True, kw_only=True)
class Prune(Match):
    """Only entries with id >= 0 are kept: `indices` and `values` are those before pruning."""

    indices: Tensor
    values: Tensor


@dataclass(frozen=True, kw_only=True)
class IdSource(Match):
    """The sparse matrix of ids that the fused op reads.

    Attributes:
        indices: int64 [nnz, 2].
        values: [nnz].
        dense_shape: int64 [2].
        flattened: True when they come out of a SparseReshape that merges leading dimensions; False
            when the ids are a matrix to begin with.
        batch: the number of rows, symbolically.
    """

    indices: Tensor
    values: Tensor
    dense_shape: Tensor
    flattened: bool
    batch: Element


def match_fill(view: GraphView, name: str) -> Fill | NoMatch:
    """Explains a SparseFillEmptyRows node."""
    indices, values, dense_shape, default = view.inputs(name)
    value = view.constant(default)
    if value is None or value.ndim != 0:
        return NoMatch("the id for empty rows is not a constant", default.node)
    if int(value) < 0:
        return NoMatch("the id for empty rows is negative", default.node)
    dtype = view.type_attr(name, "T")
    if dtype not in _ID_DTYPES:
        return NoMatch("the ids are neither int32 nor int64", name)
    return Fill(
        stage=Stage.IDS,
        nodes=(name,),
        indices=indices,
        values=values,
        dense_shape=dense_shape,
        default=int(value),
        ids=Tensor(name, 1),
        is_row_empty=Tensor(name, 2),
        dtype=dtype,
    )


def match_prune(view: GraphView, fill: Fill) -> Prune | NoMatch:
    """Explains the fill's indices and values as those entries of a sparse tensor with id >= 0."""
    indices = _gathered_rows(view, fill.indices)
    if isinstance(indices, NoMatch):
        return indices
    values = _gathered_rows(view, fill.values)
    if isinstance(values, NoMatch):
        return values
    if view.resolve(indices.kept) != view.resolve(values.kept):
        return NoMatch("indices and values are pruned differently", values.kept.node)
    kept = _match_kept(view, indices.kept, values.source)
    if isinstance(kept, NoMatch):
        return kept
    nodes, compare = kept
    return Prune(
        stage=Stage.IDS,
        nodes=tuple(dict.fromkeys((*indices.nodes, *values.nodes, *nodes))),
        front=(compare, *view.aliases(view.inputs(compare)[0])),
        indices=indices.source,
        values=values.source,
    )


def match_source(view: GraphView, fill: Fill, prune: Prune) -> IdSource | NoMatch:
    """Finds the sparse matrix of ids: the original one, or its flattened form.

    A SparseReshape whose target is provably the shape that it is given changes nothing and is
    passed. Any other one stays, and the fused op reads its outputs.
    """
    math = ShapeMath(view)
    indices, front = _pass_reshape(math, prune.indices)
    dense_shape, more = _pass_reshape(math, fill.dense_shape)
    if not _is_matrix(view, indices, dense_shape):
        return NoMatch("the ids are not known to form a matrix", indices.node)
    elements = math.vector(dense_shape)
    return IdSource(
        stage=Stage.IDS,
        nodes=(),
        front=tuple(dict.fromkeys((*front, *more, *view.aliases(prune.values)))),
        indices=indices,
        values=view.resolve(prune.values),
        dense_shape=dense_shape,
        flattened=view.op(indices.node) == "SparseReshape",
        batch=elements[0] if elements else Item(dense_shape, 0),
    )


@dataclass(frozen=True)
class _Gathered:
    """`source[kept]` along axis 0, and the nodes that compute it."""

    source: Tensor
    kept: Tensor
    nodes: tuple[str, ...]


def _gathered_rows(view: GraphView, tensor: Tensor) -> _Gathered | NoMatch:
    nodes = view.aliases(tensor)
    tensor = view.resolve(tensor)
    if not is_row_gather(view, tensor.node):
        return NoMatch("the ids are not pruned by a gather of the kept entries", tensor.node)
    source, kept = view.inputs(tensor.node)[:2]
    return _Gathered(source, kept, (*nodes, tensor.node, *view.aliases(kept)))


def _match_kept(
    view: GraphView, kept: Tensor, values: Tensor
) -> tuple[tuple[str, ...], str] | NoMatch:
    """Explains positions as reshape(where(values >= 0), [-1]): its nodes, and the comparison."""
    flat = view.resolve(kept)
    if not _flattens(view, flat.node):
        return NoMatch("the kept positions are not a flattened Where", flat.node)
    inner = view.inputs(flat.node)[0]
    where = view.resolve(inner)
    if view.op(where.node) != "Where":
        return NoMatch("the kept positions do not come from a Where", where.node)
    condition = view.inputs(where.node)[0]
    test = view.resolve(condition)
    if view.op(test.node) == "LogicalAnd":
        return NoMatch("entries are pruned by more than their id, e.g. by weight", test.node)
    if view.op(test.node) != "GreaterEqual":
        return NoMatch("ids are not pruned by `id >= 0`", test.node)
    compared, bound = view.inputs(test.node)
    limit = view.constant(bound)
    if limit is None or limit.ndim != 0 or int(limit) != 0:
        return NoMatch("ids are not compared with 0", bound.node)
    if view.resolve(compared) != view.resolve(values):
        return NoMatch("ids are pruned by the values of another tensor", compared.node)
    nodes = (flat.node, *view.aliases(inner), where.node, *view.aliases(condition))
    return nodes, test.node


def _flattens(view: GraphView, name: str) -> bool:
    """Whether the node turns an [n, 1] matrix into an [n] vector."""
    if view.op(name) == "Reshape":
        target = view.constant(view.inputs(name)[1])
        return target is not None and np.array_equal(target, [-1])
    if view.op(name) == "Squeeze":
        dims = view.attr(name, "squeeze_dims")
        return dims is not None and list(dims.list.i) in ([1], [-1])
    return False


def _pass_reshape(math: ShapeMath, tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Returns where the tensor comes from behind reshapes to the same shape, and what it passed."""
    view = math.view
    passed: tuple[str, ...] = view.aliases(tensor)
    tensor = view.resolve(tensor)
    while view.op(tensor.node) == "SparseReshape" and not view.controls(tensor.node):
        _, shape, target = inputs = view.inputs(tensor.node)
        before, after = math.vector(shape), math.vector(target)
        if before is None or len(before) != 2 or before != after:
            break
        passed += (tensor.node, *view.aliases(inputs[tensor.index]))
        tensor = view.resolve(inputs[tensor.index])
    return tensor, passed


def _is_matrix(view: GraphView, indices: Tensor, dense_shape: Tensor) -> bool:
    index_shape, length = view.shape(indices), view.shape(dense_shape)
    columns = index_shape[1] if index_shape is not None and len(index_shape) == 2 else None
    return 2 in (columns, length[0] if length else None)
