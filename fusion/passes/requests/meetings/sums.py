"""What is added up: terms of both sides, and elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.rows.facts import Side
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.meetings.registry import (
    applied,
    factor_of,
    neighbours_joined,
    rule,
    sum_of,
)
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import ROWS, Assembled, Sizes, Term, joined_sizes, plain

#: Sums of these are put together in another order.
_FLOATS = frozenset(
    {types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16}
)


@rule("AddV2", "Add", "Sub")
def _added(graph: NewGraph, node: Node) -> Assembled | None:
    sizes = graph.sizes(node.output().tensor)
    operands = [value.tensor for value in node.inputs]
    constants = [k for k, tensor in enumerate(operands) if not graph.fact(tensor).has_rows]
    is_float = graph.dtype(node.output().tensor) in _FLOATS
    if sizes is None or graph.exact or len(constants) > 1 or not is_float:
        return _small_operands(graph, node, sizes)
    values = [graph.assembled(one) for k, one in enumerate(operands) if k not in constants]
    if any(value is None or not value.terms or len(value.sizes) != len(sizes) for value in values):
        return _small_operands(graph, node, sizes)
    known = [value for value in values if value is not None]
    if not any(value.has_request for value in known):
        return _small_operands(graph, node, sizes)
    if constants:
        return _with_constant(graph, node, replace(known[0], sizes=sizes), constants[0])
    terms = [*known[0].terms]
    for value, operand in zip(known[1:], operands[1:], strict=True):
        negates = node.op == "Sub"
        terms += [_negative(graph, t, operand) if negates else t for t in value.terms]
    return sum_of(known[0], sizes, _merged(graph, node, terms))


def _small_operands(graph: NewGraph, node: Node, sizes: Sizes | None) -> Assembled | None:
    """Broadcasts what is the same along an axis, or for all candidates, within the op."""
    if sizes is None:
        return None
    operands, own = list[Tensor](), list[Sizes]()
    is_smaller = False
    for operand in node.inputs:
        if not graph.fact(operand.tensor).has_rows:
            operands.append(graph.on(operand.tensor, Side.NEITHER))
            continue
        value = graph.assembled(operand.tensor)
        if value is None or len(value.sizes) != len(sizes) or len(value.terms) != 1:
            return None
        (term,), tensor = value.terms, value.terms[0].tensor
        term_sizes = term.sizes
        if term.of_request:
            if not graph.is_one_request or value.factor != 1:
                tensor = graph.of_candidates(operand.tensor)
                term_sizes = value.sizes
            else:
                tensor = graph.of_one_request(tensor, term.sizes, (1, 1), operand.tensor)
                term_sizes = tuple(1 if size == ROWS else size for size in term.sizes)
        is_smaller |= term_sizes != value.sizes
        operands.append(tensor)
        own.append(term_sizes)
    if not is_smaller or not own or joined_sizes(own) != sizes:
        return None
    new = Term(applied(graph, node, operands, False), False, sizes)
    return plain(new, factor_of(graph, node))


def _negative(graph: NewGraph, term: Term, like: Tensor) -> Term:
    name, types = f"{term.tensor.node}/negative", {"T": graph.dtype(like)}
    return replace(term, tensor=graph.writer.add(name, "Neg", [term.tensor], types))


def _merged(graph: NewGraph, node: Node, terms: Sequence[Term]) -> list[Term]:
    """Adds up terms of one side and of equal sizes."""
    merged: dict[tuple[bool, Sizes], list[Term]] = {}
    for term in terms:
        merged.setdefault((term.of_request, term.sizes), []).append(term)
    like = node.output().tensor
    return [replace(same[0], tensor=graph.added_up(same, like)[0]) for same in merged.values()]


def _with_constant(graph: NewGraph, node: Node, value: Assembled, index: int) -> Assembled | None:
    """Adds a constant to the smallest term that it does not make larger."""
    shape = node.input(index).shape
    if shape is None or None in shape or (node.op == "Sub" and index == 0):
        return None
    for term in sorted(value.terms, key=lambda term: not term.of_request):
        if _is_below(shape, term.sizes):
            operands = [term.tensor, graph.on(node.input(index).tensor, Side.NEITHER)]
            operands = operands if index else operands[::-1]
            new = replace(term, tensor=applied(graph, node, operands, term.of_request))
            terms = [new if one is term else one for one in value.terms]
            return sum_of(value, value.sizes, terms)
    return None


def _is_below(shape: Sequence[int | None], sizes: Sizes) -> bool:
    """Whether a constant of this shape is broadcast to these sizes."""
    if len(shape) > len(sizes):
        return False
    behind = sizes[len(sizes) - len(shape) :]
    return all(own in (1, size) for own, size in zip(shape, behind, strict=True))


@rule("BiasAdd")
def _biased(graph: NewGraph, node: Node) -> Assembled | None:
    value = graph.assembled(node.input(0).tensor, may_be_flat=True)
    if graph.exact or value is None or value.is_plain or not value.terms:
        return None
    if node.text_attr("data_format") == "NCHW" or not value.has_request:
        return None
    return _with_constant(graph, node, value, 1)


@rule("Sum")
def _summed(graph: NewGraph, node: Node) -> Assembled | None:
    value = graph.assembled(node.input(0).tensor)
    sizes = graph.sizes(node.output().tensor)
    axes = node.input(1).constant
    if sizes is None or value is None or len(value.parts) == 1 or axes is None:
        return None
    if not value.is_whole or any(len(part.terms) > 1 for part in value.parts):
        return None
    rank = len(value.sizes)
    over = sorted({int(axis) % rank for axis in axes.reshape(-1)})
    if value.axis not in over:
        return _inner_sums(graph, node, value, over, sizes)
    if graph.exact:
        return None
    write, dtype = graph.writer, graph.dtype(node.input(0).tensor)
    own_axes = graph.on(node.input(1).tensor, Side.NEITHER)
    terms = []
    for of_request in (True, False):
        own = [p.terms[0].tensor for p in value.parts if p.of_request is of_request]
        if own:
            name = f"{node.name}/{'request' if of_request else 'candidates'}"
            joined = write.concat(name, own, value.axis, dtype)
            new = applied(graph, node, [joined, own_axes], of_request)
            terms.append(Term(new, of_request, sizes))
    return sum_of(value, sizes, terms)


def _inner_sums(
    graph: NewGraph, node: Node, value: Assembled, over: Sequence[int], sizes: Sizes
) -> Assembled | None:
    """Sums inside of each part."""
    value = neighbours_joined(graph, value, node.input(0).tensor)
    axes = graph.on(node.input(1).tensor, Side.NEITHER)
    keeps = node.flag_attr("keep_dims")
    axis = value.axis if keeps else value.axis - sum(one < value.axis for one in over)
    parts = []
    for part in value.parts:
        (term,) = part.terms
        new = applied(graph, node, [term.tensor, axes], term.of_request)
        own = (*sizes[:axis], part.size, *sizes[axis + 1 :])
        parts.append(replace(part, terms=(Term(new, term.of_request, own),)))
    return Assembled(sizes, axis, tuple(parts), value.factor)
