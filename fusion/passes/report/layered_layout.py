"""Layered drawing of an acyclic graph: every edge points down, few of them cross.

The usual steps: nodes get layers, long edges get a bend in every layer they pass, each layer is
sorted by the mean position of its nodes' neighbours, and nodes move as near to those as their
widths allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

_SWEEPS = 24
_BEND_WIDTH = 0.25

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Places, x to the right and y downwards; a node is 1 wide and a layer 1 high.

    Attributes:
        nodes: the centre of each node.
        edges: for each edge the points from its source to its target.
        width, height: the size of the whole.
    """

    nodes: dict[str, Point]
    edges: dict[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def layered(graph: nx.DiGraph) -> Layout:
    """Places the nodes of a graph, each just above the first node that reads it.

    Equal graphs, built in the same order, give equal layouts. Edges that close a cycle are drawn,
    but have no say.
    """
    acyclic = _without_cycles(graph)
    depth = _layers(acyclic)
    bent, bends = _bend(acyclic, depth)
    rows = _sorted_rows(bent)
    xs = _x_of_nodes(bent, rows)
    left = min(xs.values(), default=0.0)
    point = {n: (xs[n] - left + 0.5, bent.nodes[n]["layer"] + 0.5) for n in bent}
    edges = {
        (u, v): tuple(point[n] for n in (u, *bends.get((u, v), ()), v)) for u, v in graph.edges
    }
    width = max((x for x, _ in point.values()), default=0.0) + 0.5
    nodes = {name: point[name] for name in graph}
    return Layout(nodes, edges, width, float(len(rows)))


def _without_cycles(graph: nx.DiGraph) -> nx.DiGraph:
    acyclic = nx.DiGraph(graph)
    while not nx.is_directed_acyclic_graph(acyclic):
        acyclic.remove_edges_from(nx.find_cycle(acyclic)[-1:])
    return acyclic


def _layers(graph: nx.DiGraph) -> dict[str, int]:
    """Returns 0 for the top layer; as low as the readers allow."""
    height: dict[str, int] = {}
    for name in reversed(list(nx.topological_sort(graph))):
        height[name] = max((height[reader] + 1 for reader in graph.successors(name)), default=0)
    top = max(height.values(), default=0)
    return {name: top - value for name, value in height.items()}


def _bend(
    graph: nx.DiGraph, depth: dict[str, int]
) -> tuple[nx.DiGraph, dict[tuple[str, str], list[object]]]:
    """Returns the graph with edges of length 1 alone, and the bends of each longer edge."""
    bent = nx.DiGraph()
    bent.add_nodes_from((name, {"layer": depth[name], "width": 1.0}) for name in graph)
    bends: dict[tuple[str, str], list[object]] = {}
    for u, v in graph.edges:
        between: list[object] = [(u, v, layer) for layer in range(depth[u] + 1, depth[v])]
        bends[u, v] = between
        for layer, bend in enumerate(between, depth[u] + 1):
            bent.add_node(bend, layer=layer, width=_BEND_WIDTH)
        chain = [u, *between, v]
        bent.add_edges_from(pairwise(chain))
    return bent, bends


def _sorted_rows(graph: nx.DiGraph) -> list[list[object]]:
    """Returns the layers, each in an order with few crossings."""
    count = max((layer for _, layer in graph.nodes(data="layer")), default=-1) + 1
    rows: list[list[object]] = [[] for _ in range(count)]
    for name in nx.dfs_postorder_nodes(graph.reverse()):
        rows[graph.nodes[name]["layer"]].append(name)
    best, fewest = [list(row) for row in rows], _crossings(graph, rows)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = graph.predecessors if downwards else graph.successors
        order = range(1, count) if downwards else range(count - 2, -1, -1)
        for i in order:
            beside = rows[i - 1 if downwards else i + 1]
            position = {name: j for j, name in enumerate(beside)}
            own = {name: j for j, name in enumerate(rows[i])}
            rows[i].sort(key=lambda n: _mean([position[m] for m in neighbours(n)], own[n]))
        crossings = _crossings(graph, rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _crossings(graph: nx.DiGraph, rows: list[list[object]]) -> int:
    count = 0
    for upper, lower in pairwise(rows):
        position = {name: j for j, name in enumerate(lower)}
        ends = [j for name in upper for j in sorted(position[m] for m in graph.successors(name))]
        count += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return count


def _x_of_nodes(graph: nx.DiGraph, rows: list[list[object]]) -> dict[object, float]:
    """Returns x of each node: near the mean of its neighbours, without overlaps in a row."""
    xs: dict[object, float] = {}
    for row in rows:
        xs.update(zip(row, _spread([0.0] * len(row), _gaps(graph, row)), strict=True))
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            targets = [_mean_of_neighbours(graph, name, xs) for name in row]
            xs.update(zip(row, _spread(targets, _gaps(graph, row)), strict=True))
    return xs


def _mean_of_neighbours(graph: nx.DiGraph, name: object, xs: dict[object, float]) -> float:
    """Returns the mean of the neighbours' x; bends pull harder, for straight long edges."""
    widths = graph.nodes(data="width")
    pulls = [
        (xs[other], 1.0 / (widths[name] * widths[other])) for other in nx.all_neighbors(graph, name)
    ]
    total = sum(pull for _, pull in pulls)
    return sum(x * pull for x, pull in pulls) / total if total else xs[name]


def _gaps(graph: nx.DiGraph, row: Sequence[object]) -> list[float]:
    widths = [graph.nodes[name]["width"] for name in row]
    return [(a + b) / 2 for a, b in pairwise(widths)]


def _spread(targets: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Returns the x nearest to the targets (least squares) that keep order and gaps."""
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    # Without the gaps, what is left to find is the nearest sequence that does not decrease: pool
    # neighbours that are in the wrong order, give them their mean.
    pools: list[tuple[float, int]] = []
    for target, offset in zip(targets, offsets, strict=False):
        mean, size = target - offset, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
