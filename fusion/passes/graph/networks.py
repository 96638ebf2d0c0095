"""Graphs as networkx has them, for questions of commands and of people.

Passes ask `GraphView` instead: to import networkx takes 0.1 seconds and 11 MB in each process that
trains, and one that serves need not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
from tensorflow.core.framework import node_def_pb2

from fusion.passes.graph.calls import callees
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
    graph = nx.DiGraph()
    for node in nodes:
        graph.add_node(node.name)
        sources = (text.removeprefix("^").partition(":")[0] for text in node.input)
        graph.add_edges_from((source, node.name) for source in sources)
    return graph
