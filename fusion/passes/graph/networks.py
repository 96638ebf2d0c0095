"""Graphs as networkx has them, for questions of commands and of people.

Passes ask `GraphView` instead: to import networkx takes 0.1 seconds and 11 MB in each process that
trains, and one that serves need not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
from tensorflow.core.framework import node_def_pb2

from fusion.passes.graph.calls import callees
from fusion.passes.graph.tensor import NEXT_ITERATIONS
from fusion.passes.graph.view import GraphView

CONTROL = -1
"""Stands for the output and the input of a control edge, as in TensorFlow."""


def network(view: GraphView) -> nx.MultiDiGraph:
    """Returns a main graph or function with an edge for each input, from producer to consumer.

    `FusionReport.to_networkx` has the attributes.
    """
    graph = nx.MultiDiGraph()
    functions = view.signatures.functions
    for name, node in view.nodes.items():
        is_returned = any(use.position < 0 for use in view.uses(name))
        graph.add_node(
            name,
            node=name,  # pydot takes no attribute `name`
            op=node.op,
            device=node.device,
            calls=", ".join(callees(node, functions)),
            returned=is_returned or name in view.preserved,
        )
    for name in view.nodes:
        for position, tensor in enumerate(view.inputs(name)):
            graph.add_edge(tensor.node, name, output=tensor.index, input=position)
        for before in view.controls(name):
            graph.add_edge(before, name, output=CONTROL, input=CONTROL)
    return graph


def dependencies(nodes: Iterable[node_def_pb2.NodeDef]) -> nx.DiGraph:
    """Returns which nodes of a main graph others read or wait for, from producer to consumer."""
    nodes, graph = list(nodes), nx.DiGraph()
    graph.add_nodes_from(node.name for node in nodes)
    for node in nodes:
        sources = (text.removeprefix("^").partition(":")[0] for text in node.input)
        graph.add_edges_from((source, node.name) for source in sources if source in graph)
    return graph


def first_iteration(nodes: Iterable[node_def_pb2.NodeDef]) -> nx.DiGraph:
    """Returns the dependencies without the cycles that later iterations of v1 loops make."""
    nodes = list(nodes)
    graph = dependencies(nodes)
    back = [node.name for node in nodes if node.op in NEXT_ITERATIONS]
    graph.remove_edges_from([*graph.out_edges(back)])
    return graph


def with_descendants(graph: nx.DiGraph, names: Iterable[str]) -> set[str]:
    """Returns those of some nodes that are in a graph, and all that depend on them."""
    layers = nx.bfs_layers(graph, [name for name in names if name in graph])
    return {name for layer in layers for name in layer}


def with_ancestors(graph: nx.DiGraph, names: Iterable[str]) -> set[str]:
    """Returns those of some nodes that are in a graph, and all that they depend on."""
    return with_descendants(graph.reverse(copy=False), names)
