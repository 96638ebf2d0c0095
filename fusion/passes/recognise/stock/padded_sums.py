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
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import LookupSpec, SparseIds
from fusion.passes.recognise.stock.axis_sums import Terms, match_bags
from fusion.passes.recognise.stock.gathers import Gathered, Ids, source_gather
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

    reshape: Node
    results: Value
    weights: Value
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

    indices: Value
    dense_shape: Value
    sizes: Vector
    column: Value


def padded_sums(view: GraphView) -> Iterator[Node]:
    """Yields the sums of the results of lookups, in file order."""
    return (node for node in named(view, "Sum") if source_lookup(node) is not None)


def source_lookup(total: Node) -> Node | None:
    """Returns the segment reduction whose results are added up; None if other rows are."""
    if source_gather(total.input(0)) is not None:
        return None
    factors = _factors(total)
    return None if factors is None else factors.results.producer


def _factors(total: Node) -> _Factors | None:
    added = total.input(0)
    times = added.producer
    if times.op != "Mul":
        return None
    operands = times.inputs
    for rows, weights in (operands, operands[::-1]):
        reshape = rows.producer
        if reshape.op != "Reshape":
            continue
        results = reshape.input(0)
        if results.producer.op in COMBINERS:
            passed = (name for one in (added, rows, results) for name in one.aliases)
            nodes = (times.name, reshape.name, *passed)
            return _Factors(reshape, results.resolved, weights, nodes)
    return None


def match_padded_sum(
    total: Node, lookup: LookupSpec, table: Table, parts: Iterable[Match]
) -> PaddedSum | NoMatch:
    """Says what a sum of the results of a lookup looks up.

    Args:
        total: the sum.
        lookup: what is looked up.
        table: where.
        parts: all that was explained of the lookup.
    """
    factors = _factors(total)
    assert factors is not None, "an anchor adds up the results of a lookup"
    ids, width = lookup.ids, lookup.table.shape[1]
    column = lookup.column
    is_plain = lookup.weights is None and not column.num_buckets and lookup.table.max_norm is None
    if not isinstance(ids, SparseIds) or not is_plain or column.default_id != 0:
        return NoMatch("the lookup is not one of sparse ids whose default id is 0", total.name)
    values = Value(total.view, ids.values)
    if len(values.shape or ()) != 1 or width is None:
        why = "the ids are not known to be a vector, or rows to be of one size"
        return NoMatch(why, total.name)
    matrix = _match_matrix(factors.weights)
    if isinstance(matrix, NoMatch):
        return matrix
    if not _are_elements(total.view, ids, matrix):
        return NoMatch("the weights are not known to be those of the ids", matrix.column.node)
    math = ShapeMath({lookup.output: (Dim(lookup.output, 0), width)})
    target = math.vector(factors.reshape.input(1))
    if factors.results.tensor != lookup.output or target != (*matrix.sizes, width):
        return NoMatch("the results do not get the shape of the ids", factors.reshape.name)
    rows = Gathered(
        node=factors.reshape,
        table=table,
        dtype=lookup.table.dtype,
        ids_dtype=lookup.dtype,
        ids=Ids(values, lookup.dtype, False, (), frozenset()),
        shape=target,
    )
    terms = Terms(rows, Mask((), weights=matrix.column), factors.nodes, is_product=True)
    bags = match_bags(total, terms)
    if isinstance(bags, NoMatch):
        return bags
    nodes, front = [*bags.nodes], [*factors.weights.aliases]
    for part in parts:
        # Others may share what finds the entries, as they may without the sum.
        front += part.front
        (front if part.stage is Stage.IDS else nodes).extend(part.nodes)
    indices, dense_shape = matrix.indices.tensor, matrix.dense_shape.tensor
    return PaddedSum(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        spec=replace(
            lookup,
            anchor=total.name,
            ids=SparseIds(ids.values, indices, dense_shape, False, padded=True),
            column=replace(bags.column, prune=column.prune, default_id=0),
            output=bags.output.tensor,
            weights=bags.weights,
        ),
        shape=bags.shape,
    )


def _match_matrix(weights: Value) -> _Matrix | NoMatch:
    """Explains weights [B, L, 1] as a sparse matrix that is made dense."""
    column = weights.producer
    failure = NoMatch("the weights are not known to be a SparseTensor's", column.name)
    if column.op != "ExpandDims":
        return failure
    matrix, axis = column.inputs
    dense = matrix.producer
    if axis.item not in (2, -1):
        return failure
    if dense.op != "SparseToDense" or not dense.flag_attr("validate_indices"):
        return failure
    indices, dense_shape = (one.resolved for one in dense.inputs[:2])
    sizes, shape = ShapeMath().vector(dense_shape), indices.shape
    if sizes is None or len(sizes) != 2 or shape is None or shape[1:] != (2,):
        return failure
    is_int64 = dense.type_attr("Tindices") == types_pb2.DT_INT64
    return _Matrix(indices, dense_shape, sizes, weights.resolved) if is_int64 else failure


def _are_elements(view: GraphView, ids: SparseIds, matrix: _Matrix) -> bool:
    """Whether ids are those of the entries of a matrix, each element being a row of its own."""
    reshape, math = Value(view, ids.indices).producer, ShapeMath()
    if reshape.op != "SparseReshape" or ids.dense_shape != reshape.output(1).tensor:
        return False
    indices, dense_shape, target = reshape.inputs
    if math.vector(dense_shape) != (*matrix.sizes, 1):
        return False
    return math.vector(target) == (product(matrix.sizes), 1) and _are_expanded(
        math, indices, matrix.indices
    )


def _are_expanded(math: ShapeMath, indices: Value, of: Value) -> bool:
    """Whether indices are others with a 0 behind each, as tf.sparse.expand_dims makes them."""
    if indices.producer.op != "ConcatV2":
        return False
    first, zeros, *others, axis = indices.producer.inputs
    if axis.item not in (1, -1):
        return False
    is_same = first.resolved == of or _is_slice(math, first, of, 0, 2)
    # What is behind the new axis: nothing.
    is_all = all(_is_slice(math, other, of, 2, 0) for other in others)
    return is_same and is_all and _are_zeros(math, zeros, of)


def _is_slice(math: ShapeMath, value: Value, of: Value, begin: int, count: int) -> bool:
    """Whether a tensor is the last columns of all rows of a matrix of two."""
    if value.producer.op != "Slice":
        return False
    source, start, size = value.producer.inputs
    is_there = source.resolved == of and math.vector(start) == (0, begin)
    # -1: all that is left, which it is here.
    return is_there and math.vector(size) in ((-1, count), (-1, -1))


def _are_zeros(math: ShapeMath, value: Value, of: Value) -> bool:
    """Whether a tensor is one column of zeros, as many as a matrix has rows."""
    shape = math.shape_of(of)
    if value.producer.op != "Fill" or shape is None:
        return False
    sizes, number = value.producer.inputs
    return number.scalar == 0 and math.vector(sizes) == (shape[0], 1)
