"""Questions about graphs, of passes and of commands."""

from __future__ import annotations

import random

import networkx as nx
import pytest
from tensorflow.core.framework import graph_pb2

from fusion.passes.graph.networks import (
    dependencies,
    first_iteration,
    with_ancestors,
    with_descendants,
)
from fusion.passes.graph.reach import reached
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

LOOP = """
%limit = Placeholder() {dtype=int32 shape=[]}
%enter = Enter(limit) {T=int32 frame_name='loop'}
%merge = Merge(enter, next) {N=2 T=int32}
%next = NextIteration(merge) {T=int32}
%exit = Exit(merge, ^limit) {T=int32}
"""


def random_graph(seed: int, nodes: int = 30) -> graph_pb2.GraphDef:
    """A graph without cycles, with control edges."""
    rng, graph = random.Random(seed), graph_pb2.GraphDef()
    for index in range(nodes):
        names = [f"n{other}" for other in rng.sample(range(index), min(index, rng.randrange(3)))]
        inputs = [rng.choice((name, f"{name}:1", f"^{name}")) for name in names]
        graph.node.add(name=f"n{index}", op="Op", input=sorted(inputs, key=lambda t: t[0] == "^"))
    return graph


@pytest.mark.parametrize("seed", range(3))
def test_passes_and_commands_get_the_same_answer(seed: int) -> None:
    graph_def = random_graph(seed)
    view, graph = GraphView.of_graph(graph_def), dependencies(graph_def.node)
    for starts in (["n29"], ["n7", "n22"], []):
        wanted = set(starts).union(*(nx.ancestors(graph, name) for name in starts))
        assert set(reached(starts, view.before)) == with_ancestors(graph, starts) == wanted
        wanted = set(starts).union(*(nx.descendants(graph, name) for name in starts))
        assert with_descendants(graph, starts) == wanted


def test_it_goes_depth_first_and_ends_in_cycles() -> None:
    steps = {"a": "bc", "b": "a", "c": "d", "d": "ac"}
    assert [*reached("a", steps.__getitem__)] == ["a", "c", "d", "b"]
    assert not reached("", steps.__getitem__)


def test_a_loop_is_no_cycle_in_its_first_iteration() -> None:
    nodes = parse_graph(LOOP).node
    assert not nx.is_directed_acyclic_graph(dependencies(nodes))
    order = [*nx.topological_sort(first_iteration(nodes))]
    assert order.index("merge") < order.index("next")
    assert {*order} == {node.name for node in nodes}


def test_nodes_that_are_not_there_are_left_out() -> None:
    graph = graph_pb2.GraphDef()
    graph.node.add(name="a", op="Op", input=["nowhere", "^gone"])
    assert set(dependencies(graph.node)) == {"a"}
    assert with_ancestors(dependencies(graph.node), ["a", "nowhere"]) == {"a"}
