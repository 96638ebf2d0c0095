"""Splits a graph by what its tensors depend on: requests, of which there are few, or candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.analysis.rows.facts import Fact, Kind, Side
from fusion.passes.analysis.rows.sizes import shaped
from fusion.passes.analysis.rows.walk import rows_of
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.bags import bags_of
from fusion.passes.requests.bits import (
    depends_on_one_row,
    depends_on_position,
    fused_with_position,
)
from fusion.passes.requests.meetings import MEETINGS
from fusion.passes.requests.new_graph import NewGraph, Refused
from fusion.passes.requests.partitions import partitions_of

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_SHAPE, _SIZE = "Shape", "Size"


@dataclass(frozen=True)
class SplitGraph:
    """A graph that has rows of requests and rows of candidates.

    Attributes:
        graph: it.
        outputs: its outputs, by the tensors of the original graph; a row for each candidate.
        meetings: the tensors of requests that are repeated for candidates, in the original graph.
    """

    graph: graph_pb2.GraphDef
    outputs: Mapping[Tensor, Tensor]
    meetings: Sequence[str]


def split_by_request(
    graph: graph_pb2.GraphDef,
    inputs: Mapping[Tensor, Fact],
    outputs: Sequence[Tensor],
    counts: str | None = None,
    *,
    exact: bool = False,
) -> SplitGraph | NoMatch:
    """Returns a graph in which tensors that depend on requests alone have a row for each request.

    Args:
        graph: a graph without functions that are called.
        inputs: the rows of its inputs, whose sides are REQUEST and CANDIDATE.
        outputs: its outputs.
        counts: the name of an input that is added, int64 [requests], the number of candidates of
            each request; None: there is one request.
        exact: whether all numbers of two candidates or more have to be the original ones to the
            bit.
    """
    view = GraphView.of_graph(graph)
    bags = [*partitions_of(view), *bags_of(view)]
    wanted = [tensor.node for tensor in outputs]
    can_repeat = all(f.kind is Kind.ROWS for f in inputs.values() if f.side is Side.REQUEST)

    fused = fused_with_position(view) if exact else set[str]()

    def repeats(node: Node) -> bool:
        if shaped(node.name) in fused or depends_on_position(node):
            return True
        return not can_repeat and depends_on_one_row(node)

    facts = rows_of(view, graph, inputs, wanted, bags, repeats if exact else lambda node: False)
    for tensor in outputs:
        fact = facts.facts[tensor]
        if fact.kind is Kind.MIXED:
            return NoMatch(fact.reason, fact.node)
        if fact.kind is not Kind.ROWS or fact.axis or fact.layout != (1, 1):
            return NoMatch(
                f"an output has {fact.kind.value}, and no row for each candidate", tensor.node
            )
    try:
        functions = graph.library.function
        split = _written(NewGraph(view, facts, inputs, counts, exact, functions), outputs)
    except Refused as refused:
        return refused.why
    split.graph.library.CopyFrom(graph.library)
    return split


def _written(graph: NewGraph, outputs: Sequence[Tensor]) -> SplitGraph:
    """Writes all that outputs are made of."""
    inputs = graph.input_nodes()
    for name in sorted(graph.facts.order, key=lambda name: name not in inputs):
        _write(graph, name)
    results = {one: graph.awaiting(graph.of_candidates(one), one) for one in outputs}
    return SplitGraph(graph.writer.graph, results, [*graph.meetings])


def _write(graph: NewGraph, name: str) -> None:
    """Writes a node where its rows are; what has none of its own is written when it is read."""
    fact, tensor = graph.node_fact(name), Tensor(name)
    if tensor in graph.facts.bags:
        graph.inside(name, fact.side if fact.side is Side.REQUEST else Side.CANDIDATE)
    elif graph.is_alias(name):
        # Its results may be of different sides: what it reads is taken.
        graph.waits |= dict.fromkeys(map(graph.awaited, graph.view.controls(name)))
    elif fact.kind is Kind.MIXED or fact.side is Side.NEITHER or fact.kind is Kind.SIZES:
        return
    elif fact.side is Side.REQUEST or fact.kind is not Kind.ROWS:
        graph.copy(name, fact.side)
        if graph.fills and tensor in graph.inputs and fact.side is Side.REQUEST:
            graph.fill(name)
        if graph.copies > 1 and tensor in graph.inputs:
            graph.write_twice(name)
    elif not _is_met(graph, Node(graph.view, name)):
        graph.copy(name, Side.CANDIDATE)


def _is_met(graph: NewGraph, node: Node) -> bool:
    """Whether a rule says what a tensor of candidates is made of."""
    rule = MEETINGS.get(node.op)
    if rule is None or node.name in graph.input_nodes() or node.controls:
        return False
    found = rule(graph, node)
    if found is not None:
        graph.parts[node.output().tensor] = found
    return found is not None
