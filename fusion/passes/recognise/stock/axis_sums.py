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
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import Addition, DenseIds, WeightsSpec
from fusion.passes.recognise.stock.gathers import (
    Gathered,
    NoBag,
    gather_behind,
    lookup_of,
    match_added,
)
from fusion.passes.recognise.stock.masks import Mask, match_mask, match_weights
from fusion.passes.recognise.stock.quotients import Quotient, match_quotient
from fusion.passes.recognise.stock.rows import Shaped

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
        combiner, divide_no_nan, weights, addition, output: fields of the spec.
        shape: the symbolic shape of `output`.
        nodes: what is between the rows and it.
    """

    combiner: str
    divide_no_nan: bool
    weights: WeightsSpec | None
    addition: Addition
    output: Tensor
    shape: Vector
    nodes: tuple[str, ...]


def axis_sums(view: GraphView) -> Iterator[str]:
    """Yields the sums, means and maxima of gathered rows, in file order."""
    return (
        name
        for name in view.named(*REDUCTIONS)
        if gather_behind(view, view.inputs(name)[0]) is not None
    )


def match_axis_sum(view: GraphView, reduction: str) -> Shaped | NoMatch:
    """Says what a sum, mean or maximum of gathered rows over an axis looks up."""
    found = _match(view, reduction)
    return NoBag.of(found, view, reduction) if isinstance(found, NoMatch) else found


def _match(view: GraphView, reduction: str) -> Shaped | NoMatch:
    terms = _match_terms(view, view.inputs(reduction)[0], reduction)
    if isinstance(terms, NoMatch):
        return terms
    bags = match_bags(view, reduction, terms)
    if isinstance(bags, NoMatch):
        return bags
    gather, mask = terms.gather, terms.mask
    ids = gather.ids
    dense = DenseIds(
        ids.values,
        ids.dtype,
        mask.ignored,
        0,
        wraps=ids.wraps,
        lengths=mask.lengths,
        lengths_dtype=mask.lengths_dtype or DenseIds.lengths_dtype,
    )
    spec = lookup_of(
        view,
        gather,
        reduction,
        dense,
        bags.output,
        combiner=bags.combiner,
        divide_no_nan=bags.divide_no_nan,
        weights=bags.weights,
        addition=bags.addition,
    )
    front = (*ids.nodes, *mask.nodes)
    return Shaped(
        stage=Stage.OUTPUT,
        nodes=(*bags.nodes, gather.node),
        front=tuple(dict.fromkeys(front)),
        spec=spec,
        shape=bags.shape,
    )


def match_bags(view: GraphView, reduction: str, terms: Terms) -> Bags | NoMatch:
    """Says what a sum, mean or maximum makes of its terms."""
    gather, mask = terms.gather, terms.mask
    shape = gather.shape
    if shape is None or len(shape) < 3:
        return NoMatch("the rows that are added up are not those of a matrix of ids", reduction)
    axis = view.constant(view.inputs(reduction)[1])
    at = None if axis is None or axis.size != 1 else int(axis.reshape(()))
    if at not in (-2, len(shape) - 2):
        return NoMatch("rows are not added up over the last axis of the ids", reduction)
    width = shape[-1]
    if not isinstance(width, int) or not 0 < width <= _MAX_ELEMENTS:
        return NoMatch(f"the width of rows is not known to be at most {_MAX_ELEMENTS}", reduction)
    keeps = view.flag_attr(reduction, "keep_dims")
    op = view.op(reduction)
    if op == "Mean" and not mask.is_all:
        return NoMatch("a mean of what a mask leaves is divided by the number of all", reduction)
    if op == "Sum":
        quotient = match_quotient(view, reduction, gather, mask, keeps)
    else:
        quotient = Quotient(*_OF_ALL[op], 0.0, Tensor(reduction), ())
    weights = None if mask.weights is None else WeightsSpec(mask.weights, False, 1.0)
    is_masked = terms.is_product and weights is None and not mask.is_all
    return Bags(
        combiner=quotient.combiner,
        divide_no_nan=quotient.no_nan,
        weights=weights,
        addition=Addition("axis", is_masked, terms.penalty, quotient.epsilon),
        output=quotient.output,
        shape=(*shape[:-2], *([1] if keeps else []), width),
        nodes=tuple(dict.fromkeys((reduction, *terms.nodes, *quotient.nodes))),
    )


def _match_terms(view: GraphView, added: Tensor, reduction: str) -> Terms | NoMatch:
    found = match_added(view, added)
    if isinstance(found, NoMatch):
        return found
    source, gather = found
    name = gather.node
    between = view.aliases(added)
    if source.node == name:
        return Terms(gather, Mask(()), between)
    inputs = view.inputs(source.node)
    is_product, penalty = view.op(source.node) == "Mul", 0.0
    if is_product:
        rows, by = inputs if view.resolve(inputs[0]).node == name else reversed(inputs)
        mask = match_weights(view, by, gather)
    elif view.op(source.node) == "Sub":
        rows, less = inputs
        mask, penalty = _match_penalty(view, less, gather)
    else:
        condition, rows, zeros = inputs
        if not _are_zeros(view, zeros, gather.node):
            return NoMatch("what a mask leaves out is not replaced by zeros", source.node)
        if view.op(source.node) == "Select":
            return NoMatch("the mask is not spread by the op itself", source.node)
        mask = match_mask(view, condition, gather)
    if isinstance(mask, NoMatch):
        return mask
    nodes = (*between, source.node, *view.aliases(rows))
    return Terms(gather, mask, nodes, is_product, penalty)


def _match_penalty(view: GraphView, less: Tensor, gather: Gathered) -> tuple[Mask | NoMatch, float]:
    """Explains `(1 - mask) * c`, which is subtracted from rows: the mask and c."""
    product = view.resolve(less)
    failure = NoMatch("what is subtracted is not a number where a mask is 0", product.node)
    if view.op(product.node) != "Mul":
        return failure, 0.0
    number, other = view.inputs(product.node)
    if view.constant(number) is None:
        number, other = other, number
    value, rest = view.constant(number), view.resolve(other)
    # An attr is a float32, and 0 stands for none.
    if value is None or value.ndim or float(np.float32(value)) != float(value) or not value:
        return failure, 0.0
    if view.op(rest.node) != "Sub":
        return failure, 0.0
    one, by = view.inputs(rest.node)
    ones = view.constant(one)
    if ones is None or ones.ndim or ones != 1:
        return failure, 0.0
    mask = match_weights(view, by, gather)
    if isinstance(mask, NoMatch):
        return mask, 0.0
    if mask.weights is not None:
        return failure, 0.0
    nodes = (*view.aliases(less), product.node, *view.aliases(other), rest.node, *mask.nodes)
    return replace(mask, nodes=nodes), float(value)


def _are_zeros(view: GraphView, tensor: Tensor, gather: str) -> bool:
    source = view.resolve(tensor)
    if view.op(source.node) == "ZerosLike":
        return view.resolve(view.inputs(source.node)[0]).node == gather
    value = view.constant(source)
    return value is not None and value.ndim == 0 and value == 0 and not np.signbit(value)
