"""Bags of padded ids: gathered rows put together over the axis of the ids of a row.

    Sum(rows)                      rows of [B, L, D]
    Sum(select(mask, rows, 0))     what a mask leaves out counts as zeros
    Sum(rows * weights)            weights, or a mask as numbers: [B, L, 1], or tiles of that
    Sum(rows - (1 - mask) * c)     what a mask leaves out counts less a number

and `Mean(rows)`, or the quotient of such a sum and of that of the mask or the weights; and Max in
place of Sum. A mask may be of ids that are not the one of padding, or of as many as a row's length
says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fusion.passes.analysis.symbolic_shapes import Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.gathers import (
    Gathered,
    NoBag,
    lookup_of,
    match_added,
    source_gather,
)
from fusion.passes.recognise.stock.masks import Mask, match_mask, match_weights
from fusion.passes.recognise.stock.quotients import Quotient, match_quotient
from fusion.passes.recognise.stock.rows import Shaped
from fusion.schema.columns import Column

_OF_ALL = {"Max": ("max", True), "Mean": ("mean", False)}
"""Combiner and `divide_no_nan` of what is no quotient of sums."""

REDUCTIONS = frozenset({*_OF_ALL, "Sum"})

_MAX_ELEMENTS = 4096
"""The op has zeros for rows of no more."""


@dataclass(frozen=True)
class Terms:
    """What is added up.

    Attributes:
        gather: where the rows come from.
        mask: which of them count.
        nodes: what is between.
        is_product: whether they are multiplied by it.
        penalty: what is subtracted from those that do not count.
    """

    gather: Gathered
    mask: Mask
    nodes: tuple[str, ...]
    is_product: bool = False
    penalty: float = 0.0


@dataclass(frozen=True)
class Bags:
    """What becomes of the terms of a sum.

    Attributes:
        column, weights, output: fields of the spec.
        shape: the symbolic shape of `output`.
        nodes: what is between the rows and it.
    """

    column: Column
    weights: Tensor | None
    output: Value
    shape: Vector
    nodes: tuple[str, ...]


def axis_sums(view: GraphView) -> Iterator[Node]:
    """Yields the sums, means and maxima of gathered rows, in file order."""
    reductions = named(view, *REDUCTIONS)
    return (node for node in reductions if source_gather(node.input(0)) is not None)


def match_axis_sum(reduction: Node) -> Shaped | NoMatch:
    """Says what a sum, mean or maximum of gathered rows over an axis looks up."""
    match = _match(reduction)
    return NoBag.of(match, reduction) if isinstance(match, NoMatch) else match


def _match(reduction: Node) -> Shaped | NoMatch:
    terms = _match_terms(reduction.input(0))
    if isinstance(terms, NoMatch):
        return terms
    bags = match_bags(reduction, terms)
    if isinstance(bags, NoMatch):
        return bags
    gather, mask = terms.gather, terms.mask
    ids = gather.ids
    dense = DenseIds(
        ids.values.tensor,
        ids.dtype,
        mask.ignored,
        0,
        wraps=ids.wraps,
        lengths=None if mask.lengths is None else mask.lengths.tensor,
        lengths_dtype=mask.lengths_dtype or DenseIds.lengths_dtype,
    )
    spec = lookup_of(gather, reduction, dense, bags.output, bags.column, bags.weights)
    front = (*ids.nodes, *mask.nodes)
    return Shaped(
        stage=Stage.OUTPUT,
        nodes=(*bags.nodes, gather.node.name),
        front=tuple(dict.fromkeys(front)),
        spec=spec,
        shape=bags.shape,
    )


def match_bags(reduction: Node, terms: Terms) -> Bags | NoMatch:
    """Says what a sum, mean or maximum makes of its terms."""

    def refused(reason: str) -> NoMatch:
        return NoMatch(reason, reduction.name)

    gather, mask = terms.gather, terms.mask
    shape = gather.shape
    if shape is None or len(shape) < 3:
        return refused("the rows that are added up are not those of a matrix of ids")
    if reduction.input(1).item not in (-2, len(shape) - 2):
        return refused("rows are not added up over the last axis of the ids")
    width = shape[-1]
    if not isinstance(width, int) or not 0 < width <= _MAX_ELEMENTS:
        return refused(f"the width of rows is not known to be at most {_MAX_ELEMENTS}")
    keeps, op = reduction.flag_attr("keep_dims"), reduction.op
    if op == "Mean" and not mask.is_all:
        return refused("a mean of what a mask leaves is divided by the number of all")
    if op == "Sum":
        quotient = match_quotient(reduction, gather, mask, keeps)
    else:
        quotient = Quotient(*_OF_ALL[op], 0.0, reduction.output(), ())
    epsilon = quotient.epsilon
    weights = epsilon if isinstance(epsilon, Value) else mask.weights
    column = Column(
        combiner=quotient.combiner,
        fill_empty_row=True,
        use_sparse_weights=mask.weights is not None,
        divide_no_nan=quotient.no_nan,
        sum_order="axis",
        mask_product=terms.is_product and mask.weights is None and not mask.is_all,
        mask_penalty=terms.penalty,
        divisor_epsilon=0.0 if isinstance(epsilon, Value) else epsilon,
        epsilon_input=isinstance(epsilon, Value),
    )
    return Bags(
        column=column,
        weights=None if weights is None else weights.tensor,
        output=quotient.output,
        shape=(*shape[:-2], *([1] if keeps else []), width),
        nodes=tuple(dict.fromkeys((reduction.name, *terms.nodes, *quotient.nodes))),
    )


def _match_terms(added: Value) -> Terms | NoMatch:
    match = match_added(added)
    if isinstance(match, NoMatch):
        return match
    source, gather = match
    between = added.aliases
    if source == gather.node:
        return Terms(gather, Mask(()), between)
    is_product, penalty = source.op == "Mul", 0.0
    if is_product:
        rows, by = source.inputs
        if rows.producer != gather.node:
            rows, by = by, rows
        mask = match_weights(by, gather)
    elif source.op == "Sub":
        rows, less = source.inputs
        mask, penalty = _match_penalty(less, gather)
    else:
        condition, rows, zeros = source.inputs
        if not _are_zeros(zeros, gather.node):
            return NoMatch("what a mask leaves out is not replaced by zeros", source.name)
        if source.op == "Select":
            return NoMatch("the mask is not spread by the op itself", source.name)
        mask = match_mask(condition, gather)
    if isinstance(mask, NoMatch):
        return mask
    nodes = (*between, source.name, *rows.aliases)
    return Terms(gather, mask, nodes, is_product, penalty)


def _match_penalty(less: Value, gather: Gathered) -> tuple[Mask | NoMatch, float]:
    """Explains `(1 - mask) * c`, which is subtracted from rows: the mask and c."""
    product = less.producer
    failure = NoMatch("what is subtracted is not a number where a mask is 0", product.name)
    if product.op != "Mul":
        return failure, 0.0
    number, other = product.inputs
    if number.constant is None:
        number, other = other, number
    penalty, rest = number.scalar, other.producer
    # An attr is a float32, and 0 stands for none.
    if not penalty or float(np.float32(penalty)) != float(penalty) or rest.op != "Sub":
        return failure, 0.0
    one, by = rest.inputs
    if one.scalar != 1:
        return failure, 0.0
    mask = match_weights(by, gather)
    if isinstance(mask, NoMatch):
        return mask, 0.0
    if mask.weights is not None:
        return failure, 0.0
    return replace(mask, nodes=(*less.path, *other.path, *mask.nodes)), float(penalty)


def _are_zeros(zeros: Value, gather: Node) -> bool:
    if zeros.producer.op == "ZerosLike":
        return zeros.producer.input(0).producer == gather
    value = zeros.constant
    return value is not None and value.ndim == 0 and value == 0 and not np.signbit(value)
