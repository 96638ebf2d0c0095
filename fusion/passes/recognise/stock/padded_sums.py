"""Bags of padded sparse ids: the results of a lookup, added up over an axis.

    Sum(Reshape(lookup) * weights)    weights: [B, L, 1], of a SparseTensor that is made dense

Keras looks up a SparseTensor [B, L] as a matrix of B * L rows, in which what is no entry has the id
of empty rows, and makes [B, L, D] of the result. keras-rs adds that up, times weights.

No element may have two entries: stock has their mean. None has if the weights are of the same
entries: what makes them dense refuses entries that are not distinct and in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector, product
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import LookupSpec, SparseIds
from fusion.passes.recognise.stock.axis_sums import Terms, match_bags
from fusion.passes.recognise.stock.gathers import Gathered, Ids, gather_behind
from fusion.passes.recognise.stock.masks import Mask
from fusion.passes.recognise.stock.reduction import COMBINERS
from fusion.passes.recognise.stock.rows import Shaped
from fusion.passes.recognise.stock.table import Table


@dataclass(frozen=True, kw_only=True)
class PaddedSum(Shaped):
    """A sum of the results of a lookup, which is one without it, too."""


@dataclass(frozen=True)
class _Factors:
    """What is multiplied and added up.

    Attributes:
        reshape: the node that gives the results of a lookup another shape.
        results: these.
        weights: the other factor.
        nodes: what is between the sum and the results.
    """

    reshape: str
    results: Tensor
    weights: Tensor
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class _Matrix:
    """A sparse matrix that is made dense.

    Attributes:
        indices: int64 [nnz, 2].
        dense_shape: int64 [2].
        sizes: its elements.
        column: the matrix with an axis of size 1 behind.
    """

    indices: Tensor
    dense_shape: Tensor
    sizes: Vector
    column: Tensor


def padded_sums(view: GraphView) -> Iterator[str]:
    """Yields the sums of the results of lookups, in file order."""
    return (name for name in view.named("Sum") if lookup_behind(view, name))


def lookup_behind(view: GraphView, total: str) -> str:
    """Returns the segment reduction whose results are added up; "" if none are, but other rows."""
    if gather_behind(view, view.inputs(total)[0]) is not None:
        return ""
    factors = _factors(view, total)
    return "" if factors is None else factors.results.node


def _factors(view: GraphView, total: str) -> _Factors | None:
    added = view.inputs(total)[0]
    times = view.resolve(added).node
    if view.op(times) != "Mul":
        return None
    operands = view.inputs(times)
    for rows, weights in (operands, operands[::-1]):
        reshape = view.resolve(rows).node
        if view.op(reshape) != "Reshape":
            continue
        results = view.inputs(reshape)[0]
        if view.op(view.resolve(results).node) in COMBINERS:
            passed = (name for one in (added, rows, results) for name in view.aliases(one))
            nodes = (times, reshape, *passed)
            return _Factors(reshape, view.resolve(results), weights, nodes)
    return None


def match_padded_sum(
    view: GraphView, total: str, lookup: LookupSpec, table: Table, parts: Iterable[Match]
) -> PaddedSum | NoMatch:
    """Says what a sum of the results of a lookup looks up.

    Args:
        view: the graph.
        total: the sum.
        lookup: what is looked up.
        table: where.
        parts: all that was explained of the lookup.
    """
    factors = _factors(view, total)
    assert factors is not None, "an anchor adds up the results of a lookup"
    ids, width = lookup.ids, lookup.table.shape[1]
    is_plain = lookup.weights is None and lookup.buckets is None and lookup.table.max_norm is None
    if not isinstance(ids, SparseIds) or not is_plain or lookup.default_id != 0:
        return NoMatch("the lookup is not one of sparse ids whose default id is 0", total)
    if len(view.shape(ids.values) or ()) != 1 or width is None:
        return NoMatch("the ids are not known to be a vector, or rows to be of one size", total)
    matrix = _match_matrix(view, factors.weights)
    if isinstance(matrix, NoMatch):
        return matrix
    if not _are_elements(view, ids, matrix):
        return NoMatch("the weights are not known to be those of the ids", matrix.column.node)
    math = ShapeMath(view, {lookup.output: (Dim(lookup.output, 0), width)})
    target = math.vector(view.inputs(factors.reshape)[1])
    if factors.results != lookup.output or target != (*matrix.sizes, width):
        return NoMatch("the results do not get the shape of the ids", factors.reshape)
    rows = Gathered(
        node=factors.reshape,
        table=table,
        dtype=lookup.table.dtype,
        ids_dtype=lookup.dtype,
        ids=Ids(ids.values, lookup.dtype, False, (), frozenset()),
        shape=target,
    )
    terms = Terms(rows, Mask((), weights=matrix.column), factors.nodes, is_product=True)
    bags = match_bags(view, total, terms)
    if isinstance(bags, NoMatch):
        return bags
    nodes, front = [*bags.nodes], [*view.aliases(factors.weights)]
    for part in parts:
        # Others may share what finds the entries, as they may without the sum.
        front += part.front
        (front if part.stage is Stage.IDS else nodes).extend(part.nodes)
    return PaddedSum(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        spec=replace(
            lookup,
            anchor=total,
            ids=SparseIds(ids.values, matrix.indices, matrix.dense_shape, False, padded=True),
            weights=bags.weights,
            combiner=bags.combiner,
            divide_no_nan=bags.divide_no_nan,
            output=bags.output,
            addition=bags.addition,
        ),
        shape=bags.shape,
    )


def _match_matrix(view: GraphView, weights: Tensor) -> _Matrix | NoMatch:
    """Explains weights [B, L, 1] as a sparse matrix that is made dense."""
    column = view.resolve(weights)
    failure = NoMatch("the weights are not known to be a SparseTensor's", column.node)
    if view.op(column.node) != "ExpandDims":
        return failure
    matrix, axis = view.inputs(column.node)
    at, dense = view.constant(axis), view.resolve(matrix).node
    if at is None or at.size != 1 or int(at.reshape(())) not in (2, -1):
        return failure
    if view.op(dense) != "SparseToDense" or not view.flag_attr(dense, "validate_indices"):
        return failure
    indices, dense_shape = map(view.resolve, view.inputs(dense)[:2])
    sizes, shape = ShapeMath(view).vector(dense_shape), view.shape(indices)
    if sizes is None or len(sizes) != 2 or shape is None or shape[1:] != (2,):
        return failure
    is_int64 = view.type_attr(dense, "Tindices") == types_pb2.DT_INT64
    return _Matrix(indices, dense_shape, sizes, column) if is_int64 else failure


def _are_elements(view: GraphView, ids: SparseIds, matrix: _Matrix) -> bool:
    """Whether ids are those of the entries of a matrix, each element being a row of its own."""
    node, math = ids.indices.node, ShapeMath(view)
    if view.op(node) != "SparseReshape" or ids.dense_shape != Tensor(node, 1):
        return False
    indices, dense_shape, target = view.inputs(node)
    if math.vector(dense_shape) != (*matrix.sizes, 1):
        return False
    return math.vector(target) == (product(matrix.sizes), 1) and _are_expanded(
        math, indices, matrix.indices
    )


def _are_expanded(math: ShapeMath, indices: Tensor, of: Tensor) -> bool:
    """Whether indices are others with a 0 behind each, as tf.sparse.expand_dims makes them."""
    view = math.view
    joined = view.resolve(indices).node
    if view.op(joined) != "ConcatV2":
        return False
    first, zeros, *others, axis = view.inputs(joined)
    at = view.constant(axis)
    if at is None or at.size != 1 or int(at.reshape(())) not in (1, -1):
        return False
    is_same = view.resolve(first) == of or _is_slice(math, first, of, 0, 2)
    # What is behind the new axis: nothing.
    is_all = all(_is_slice(math, other, of, 2, 0) for other in others)
    return is_same and is_all and _are_zeros(math, zeros, of)


def _is_slice(math: ShapeMath, tensor: Tensor, of: Tensor, begin: int, count: int) -> bool:
    """Whether a tensor is the last columns of all rows of a matrix of two."""
    view = math.view
    node = view.resolve(tensor).node
    if view.op(node) != "Slice":
        return False
    source, start, size = view.inputs(node)
    is_there = view.resolve(source) == of and math.vector(start) == (0, begin)
    # -1: all that is left, which it is here.
    return is_there and math.vector(size) in ((-1, count), (-1, -1))


def _are_zeros(math: ShapeMath, tensor: Tensor, of: Tensor) -> bool:
    """Whether a tensor is one column of zeros, as many as a matrix has rows."""
    view = math.view
    node, shape = view.resolve(tensor).node, math.shape_of(of)
    if view.op(node) != "Fill" or shape is None:
        return False
    sizes, number = view.inputs(node)
    value = view.constant(number)
    is_zero = value is not None and not value.ndim and value == 0
    return is_zero and math.vector(sizes) == (shape[0], 1)
