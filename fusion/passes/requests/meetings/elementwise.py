"""Ops on the elements at one place."""

from __future__ import annotations

from dataclasses import replace

from fusion.passes.analysis.rows.elementwise import BROADCAST, UNARY
from fusion.passes.analysis.rows.facts import Side
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.bits import depends_on_position
from fusion.passes.requests.meetings.registry import (
    applied,
    each_term,
    neighbours_joined,
    rule,
    without_sums,
)
from fusion.passes.requests.meetings.sums import _small_operands
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import Assembled, Sizes, Term


@rule(*UNARY)
def _unary(graph: NewGraph, node: Node) -> Assembled | None:
    """Of parts side by side; of sums only where the op is linear."""
    value = graph.assembled(node.input(0).tensor)
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or value is None or value.is_plain:
        return None
    if node.op in ("EnsureShape", "Bitcast") or (graph.exact and depends_on_position(node)):
        return None
    if node.op not in ("Identity", "StopGradient", "PreventGradient", "Snapshot", "Neg"):
        if len(value.parts) == 1 and len(value.terms) > 1:
            return None
        value = without_sums(graph, value, node.input(0).tensor)
    value = neighbours_joined(graph, value, node.input(0).tensor)

    def compute(term: Term) -> Term:
        return replace(term, tensor=applied(graph, node, [term.tensor], term.of_request))

    return each_term(value, compute, sizes)


@rule("BroadcastTo", "Tile")
def _broadcast(graph: NewGraph, node: Node) -> Assembled | None:
    """Of a tensor along axes of one element: it stays as it is."""
    value, sizes = graph.assembled(node.input(0).tensor), graph.sizes(node.output().tensor)
    if value is None or sizes is None or len(value.parts) > 1 or len(sizes) != len(value.sizes):
        return None
    if any(own not in (1, size) for own, size in zip(value.sizes, sizes, strict=True)):
        return None
    return replace(value, sizes=sizes)


@rule(*(BROADCAST - {"AddV2", "Add", "Sub", "ClipByValue"}))
def _by_parts(graph: NewGraph, node: Node) -> Assembled | None:
    """Of two tensors with parts of equal sizes side by side, or of one and a number."""
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or node.input_count != 2:
        return _small_operands(graph, node, sizes)
    left, right = (operand.tensor for operand in node.inputs)
    if graph.exact and depends_on_position(node):
        return _small_operands(graph, node, sizes)
    facts = [graph.fact(tensor) for tensor in (left, right)]
    if not facts[1].has_rows:
        return _by_number(graph, node, left, 0, sizes)
    if not facts[0].has_rows:
        return _by_number(graph, node, right, 1, sizes)
    values = [graph.assembled(tensor) for tensor in (left, right)]
    if any(value is None or value.sizes != sizes for value in values):
        return _small_operands(graph, node, sizes)
    one, other = (value for value in values if value is not None)
    joined = [
        neighbours_joined(graph, one, left),
        neighbours_joined(graph, other, right),
    ]
    if len({tuple(part.size for part in value.parts) for value in joined}) == 1:
        one, other = joined
    layouts = [[(part.size, part.places) for part in value.parts] for value in (one, other)]
    if len(one.parts) < 2 or layouts[0] != layouts[1]:
        return _small_operands(graph, node, sizes)
    if one.axis != other.axis:
        return None
    parts = []
    for a, b in zip(one.parts, other.parts, strict=True):
        of_request = a.of_request and b.of_request
        sides = ((one, a, left), (other, b, right))
        operands = [
            graph.request_part(*side) if of_request else graph.part_of_candidates(*side)
            for side in sides
        ]
        new = applied(graph, node, operands, of_request)
        parts.append(replace(a, terms=(Term(new, of_request, one.part_sizes(a)),)))
    return Assembled(sizes, one.axis, tuple(parts), one.factor)


def _by_number(
    graph: NewGraph, node: Node, tensor: Tensor, at: int, sizes: Sizes
) -> Assembled | None:
    value = graph.assembled(tensor)
    number = node.input(1 - at)
    if value is None or value.is_plain or number.shape != ():
        return None
    is_sum = any(len(part.terms) > 1 for part in value.parts)
    if is_sum and (graph.exact or node.op not in ("Mul", "RealDiv") or at):
        return None
    constant = graph.on(number.tensor, Side.NEITHER)
    value = neighbours_joined(graph, value, tensor)

    def compute(term: Term) -> Term:
        operands = [term.tensor, constant] if at == 0 else [constant, term.tensor]
        return replace(term, tensor=applied(graph, node, operands, term.of_request))

    return each_term(value, compute, sizes)
