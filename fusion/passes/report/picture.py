"""The part of a graph that a column is, before and after a rewrite.

The role of a node is the value of the `Stage` whose emitted op takes it over (also of that op
itself), or one of the roles below. Constants are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

import networkx as nx

from fusion.passes.graph.tensor import VALUE_READS
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.bucketize import folded_bucketize
from fusion.passes.recognise.control_dependencies import input_tensors
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds
from fusion.schema.names import GROUPED

INPUT = "input"
"""Read by the column, computed elsewhere."""
FRONT = "front"
"""Computes only inputs of the column; goes away when it has no other consumers."""
STOP = "stop"
"""Where the explanation broke off."""
UNEXPLAINED = "unexplained"
"""Leads to where it broke off."""

_STEPS_BEFORE = 4
_STEPS_BETWEEN = 12
_LONGEST = 30


@dataclass(frozen=True)
class PictureNode:
    """A node to draw.

    Attributes:
        op: its op.
        label: its name, short.
        role: what it is to the column.
    """

    op: str
    label: str
    role: str


@dataclass(frozen=True)
class Picture:
    """A part of a graph to draw.

    Attributes:
        nodes: by name, in file order, inputs last.
        edges: pairs of names, from producer to consumer.
    """

    nodes: dict[str, PictureNode]
    edges: tuple[tuple[str, str], ...]

    @property
    def own_count(self) -> int:
        """How many nodes are no inputs."""
        return sum(node.role != INPUT for node in self.nodes.values())


def stock_picture(view: GraphView, lookup: LookupMatch, failure: NoMatch | None = None) -> Picture:
    """Returns what was explained of a column, the tensors that it reads, and where it stopped.

    Args:
        failure: why the column stays as it is, if it does.
    """
    roles = dict.fromkeys(lookup.front(), FRONT)
    for stage in Stage:
        roles.update(dict.fromkeys(lookup.nodes(stage), stage.value))
    roles.setdefault(lookup.anchor, UNEXPLAINED)
    if failure is not None:
        for name in _around(view, failure.node, lookup.anchor):
            roles.setdefault(name, UNEXPLAINED)
        roles[failure.node] = STOP
    return _picture(view, roles, _scope(lookup.anchor))


def emitted_picture(
    before: GraphView, after: GraphView, lookup: LookupMatch, output: str
) -> Picture:
    """Returns the new nodes that compute the column's result, and the tensors that they read.

    Args:
        output: the node in whose place the result is found. Of a group, what it reads for others is
            left out.
    """
    roles: dict[str, str] = {}
    stack = [output]
    others = _of_others(before, after, lookup, output)
    while stack:
        name = stack.pop()
        is_new = name == output or before.op(name) != after.op(name)
        if name not in roles and name not in others and is_new:
            roles[name] = _emitted_role(name, output, after.op(name))
            stack.extend(tensor.node for tensor in after.inputs(name))
    return _picture(after, roles, _scope(lookup.anchor), others)


def _of_others(before: GraphView, after: GraphView, lookup: LookupMatch, output: str) -> set[str]:
    """Returns the nodes that a group reads for other columns only."""
    spec = lookup.spec
    if spec is None or after.op(output) != GROUPED:
        return set()
    inputs = {tensor.node for tensor in input_tensors(spec)}
    folded = folded_bucketize(before, spec.ids) if isinstance(spec.ids, DenseIds) else None
    inputs |= set() if folded is None else {folded.values.node}
    read = {tensor.node for tensor in after.inputs(output)}
    return {
        name
        for name in read - inputs
        if name in before.nodes or inputs.isdisjoint(t.node for t in after.inputs(name))
    }


def _emitted_role(name: str, output: str, op: str) -> str:
    if name == output:
        return Stage.OUTPUT.value
    return (Stage.ROWS if "Gather" in op or op in VALUE_READS else Stage.IDS).value


def _picture(
    view: GraphView, roles: dict[str, str], scope: str, left_out: Container[str] = ()
) -> Picture:
    inside = [name for name in view.nodes if name in roles and view.op(name) != "Const"]
    edges = [
        (source, name)
        for name in inside
        for source in _sources(view, name)
        if source not in left_out
    ]
    nodes = {}
    for name in dict.fromkeys((*inside, *(source for source, _ in edges))):
        label = _short(name.removeprefix(f"{scope}/") if scope else name)
        nodes[name] = PictureNode(view.op(name), label, roles.get(name, INPUT))
    return Picture(nodes, tuple(edges))


def _sources(view: GraphView, name: str) -> Iterator[str]:
    sources = dict.fromkeys(tensor.node for tensor in view.inputs(name))
    return (source for source in sources if view.op(source) not in ("Const", ""))


def _around(view: GraphView, stop: str, anchor: str) -> Iterator[str]:
    """Yields the nodes that lead to `stop`, and those between it and the anchor."""
    graph = nx.DiGraph([(source, name) for name in view.nodes for source in _sources(view, name)])
    graph.add_nodes_from((stop, anchor))
    back = graph.reverse(copy=False)
    yield from nx.single_source_shortest_path_length(back, stop, _STEPS_BEFORE)
    for first, last in ((stop, anchor), (anchor, stop)):
        towards = nx.single_source_shortest_path_length(back, last, _STEPS_BETWEEN)
        reachable = nx.single_source_shortest_path_length(graph, first, _STEPS_BETWEEN)
        yield from (name for name in reachable if name in towards)


def _scope(anchor: str) -> str:
    return anchor.rpartition("/")[0]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
