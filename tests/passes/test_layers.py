"""Drawings of graphs: edges point down, boxes do not overlap, few edges cross."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest

from fusion.passes.report.layered_layout import Layout, layered


def random_graph(seed: int, count: int = 40) -> nx.DiGraph:
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph()
    graph.add_nodes_from(f"n{i}" for i in range(count))
    for i in range(count):
        for j in rng.integers(0, count, 2):
            if i < j:
                graph.add_edge(f"n{i}", f"n{j}")
    return graph


def overlaps(layout: Layout) -> list[tuple[str, str]]:
    return [
        (a, b)
        for (a, (xa, ya)), (b, (xb, yb)) in combinations(layout.nodes.items(), 2)
        if ya == yb and abs(xa - xb) < 1 - 1e-9
    ]


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    layout = layered(graph)
    assert set(layout.nodes) == set(graph)
    assert set(layout.edges) == set(graph.edges)
    assert overlaps(layout) == []
    for x, y in layout.nodes.values():
        assert 0.5 <= x <= layout.width - 0.5 + 1e-9
        assert 0.5 <= y <= layout.height - 0.5
    for (u, v), points in layout.edges.items():
        assert points[0] == layout.nodes[u]
        assert points[-1] == layout.nodes[v]
        # One point in each layer, downwards.
        assert np.all(np.diff([y for _, y in points]) == 1)


def test_a_node_stands_just_above_the_first_that_reads_it() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "d"), ("late", "d"), ("a", "d")])
    layout = layered(graph)
    heights = {name: y for name, (_, y) in layout.nodes.items()}
    assert heights == {"a": 0.5, "b": 1.5, "c": 2.5, "late": 2.5, "d": 3.5}
    assert len(layout.edges["a", "d"]) == 4


def crossings(layout: Layout) -> int:
    lines = [line for points in layout.edges.values() for line in pairwise(points)]
    return sum(
        (a[0] - c[0]) * (b[0] - d[0]) < 0
        for (a, b), (c, d) in combinations(lines, 2)
        if a[1] == c[1]
    )


@pytest.mark.parametrize("seed", range(5))
def test_crossings_that_need_not_be_are_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph()
    # A ladder: two chains of 5 nodes with rungs, its nodes met in any order.
    graph.add_nodes_from(rng.permutation(np.array([f"{s}{i}" for s in "lr" for i in range(5)])))
    for i in range(4):
        graph.add_edges_from([(f"l{i}", f"l{i + 1}"), (f"r{i}", f"r{i + 1}")])
    graph.add_edges_from((f"l{i}", f"r{i + 1}") for i in range(4))
    assert crossings(layered(graph)) == 0


def test_a_chain_is_straight() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "d")])
    assert {x for x, _ in layered(graph).nodes.values()} == {0.5}


def test_a_cycle_is_drawn_all_the_same() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "c"), ("c", "d")])
    layout = layered(graph)
    assert set(layout.edges) == set(graph.edges)
    assert overlaps(layout) == []


def test_nothing_takes_no_room() -> None:
    layout = layered(nx.DiGraph())
    assert (layout.nodes, layout.edges, layout.height) == ({}, {}, 0.0)


def test_equal_graphs_have_equal_layouts() -> None:
    assert layered(random_graph(1)) == layered(random_graph(1))
    assert layered(random_graph(1)) != layered(random_graph(2))
