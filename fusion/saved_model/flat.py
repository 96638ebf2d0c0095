"""A model as one graph without functions, so that it can be cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from fusion.passes.graph.calls import reached_functions
from fusion.passes.graph.networks import (
    dependencies,
    first_iteration,
    with_ancestors,
    with_descendants,
)
from fusion.running.imported import forget_contradictions
from fusion.runtime.tensorflow.private import op_def_registry, tf_optimizer
from fusion.saved_model.table_files.initial import init_op

_NO_EFFECT = frozenset(
    {"VarHandleOp", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "ResourceGather"}
    | {"HashTableV2", "MutableHashTableV2", "LookupTableFindV2", "LookupTableSizeV2"}
    | {"VariableShape", "VarIsInitializedOp"}
)
"""Ops that are stateful, and after which nothing has to come."""

_LOWERED, _FUNCTIONAL = "_lower_using_switch_merge", "_fusion_functional"
"""Has TensorFlow put branches and loops into the graph, and what it is called meanwhile."""

_IMPLEMENTS = "api_implements"
"""Marks a function that has another implementation for GPUs; the optimizer does not inline it."""

_SPECIALIZED = "_GrapplerSpecializedFunc"
"""How the optimizer marks functions that it changed, which `tf.saved_model.load` then refuses."""

_ENTERS, _MERGES = ("Enter", "RefEnter"), ("Merge", "RefMerge")
_STEPS = {
    **dict.fromkeys(("Switch", "RefSwitch", "_SwitchN", *_ENTERS), 1),
    **dict.fromkeys(_MERGES, -1),
    **dict.fromkeys(("Exit", "RefExit"), -2),
}


def flat_graph(meta: meta_graph_pb2.MetaGraphDef) -> graph_pb2.GraphDef:
    """Returns the graph that computes a model's signatures and initializes its tables.

    TensorFlow's own optimizer puts the bodies of functions in the place of their calls, as it does
    where a graph runs; those of branches and loops stay functions.
    """
    wanted = sorted({*signature_nodes(meta), *filter(None, [init_op(meta)])})
    subgraph = meta_graph_pb2.MetaGraphDef()
    subgraph.graph_def.CopyFrom(reachable(meta.graph_def, wanted))
    _rename_attr(subgraph.graph_def, _LOWERED, _FUNCTIONAL)
    for function in subgraph.graph_def.library.function:
        function.attr.pop(_IMPLEMENTS, None)
    _say_unknown_shapes(subgraph.graph_def)
    subgraph.collection_def["train_op"].node_list.value.extend(wanted)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.append("function")
    options.meta_optimizer_iterations = 1
    options.min_graph_nodes = -1
    options.fail_on_optimizer_errors = True
    graph = tf_optimizer.OptimizeGraph(config, subgraph)
    _rename_attr(graph, _FUNCTIONAL, _LOWERED)
    forget_contradictions(graph)
    for function in graph.library.function:
        function.attr.pop(_SPECIALIZED, None)
    forget_idle_controls(graph)
    return reachable(graph, wanted)


def _say_unknown_shapes(graph: graph_pb2.GraphDef) -> None:
    """Sets the shapes of inputs of any rank: the optimizer takes no graph that leaves them out."""
    for node in graph.node:
        if node.op == "Placeholder" and "shape" not in node.attr:
            node.attr["shape"].shape.unknown_rank = True


def _rename_attr(graph: graph_pb2.GraphDef, before: str, after: str) -> None:
    """Renames an attr of all nodes."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if before in node.attr:
                node.attr[after].CopyFrom(node.attr.pop(before))


def signature_nodes(meta: meta_graph_pb2.MetaGraphDef) -> list[str]:
    """Returns the nodes of the inputs and outputs of all signatures."""
    names: dict[str, None] = {}
    for signature in meta.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            names.update(dict.fromkeys(tensor_names(info)))
    return [name.partition(":")[0] for name in names if name]


def tensor_names(info: meta_graph_pb2.TensorInfo) -> list[str]:
    """Returns the tensors of an input or output; a sparse or composite one has several."""
    if info.WhichOneof("encoding") == "coo_sparse":
        sparse = info.coo_sparse
        return [
            sparse.indices_tensor_name,
            sparse.values_tensor_name,
            sparse.dense_shape_tensor_name,
        ]
    if info.WhichOneof("encoding") == "composite_tensor":
        return [name for part in info.composite_tensor.components for name in tensor_names(part)]
    return [info.name]


def reachable(graph: graph_pb2.GraphDef, wanted: Iterable[str]) -> graph_pb2.GraphDef:
    """Returns a graph of some nodes and of all that they need, in the old order."""
    names = with_ancestors(dependencies(graph.node), wanted)
    result = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
    result.node.extend(node for node in graph.node if node.name in names)
    _forget_functions(result)
    for node in result.node:
        _forget_neighbours(node, names)
    return result


def _forget_functions(graph: graph_pb2.GraphDef) -> None:
    """Removes the functions that a graph does not run, and gradients of such ones."""
    reached, library = reached_functions(graph), graph.library
    if len(reached) == len(library.function):
        return
    own = [function for function in library.function if function.signature.name in reached]
    gradients = [g for g in library.gradient if {g.function_name, g.gradient_func} <= reached]
    graph.library.Clear()
    graph.library.function.extend(own)
    graph.library.gradient.extend(gradients)


def add_functions(graph: graph_pb2.GraphDef, other: graph_pb2.GraphDef) -> None:
    """Adds the functions of another graph; those of one name are the same, as of one model."""
    known = {function.signature.name for function in graph.library.function}
    new = (f for f in other.library.function if f.signature.name not in known)
    graph.library.function.extend(new)


def _forget_neighbours(node: node_def_pb2.NodeDef, nodes: set[str]) -> None:
    """Drops colocations of a node with nodes that are not there."""
    if "_class" in node.attr:
        names = node.attr["_class"].list.s
        remaining = [name for name in names if name.decode().removeprefix("loc:@") in nodes]
        if not remaining:
            del node.attr["_class"]
        elif len(remaining) < len(names):
            names[:] = remaining


def forget_idle_controls(graph: graph_pb2.GraphDef) -> None:
    """Drops control edges from nodes that only compute."""
    # In branches and loops control edges decide whether and how often a node runs.
    awaited = _acting(graph) | inside_control_flow(graph)
    for node in graph.node:
        inputs = [text for text in node.input if not text.startswith("^") or text[1:] in awaited]
        if len(inputs) < len(node.input):
            node.input[:] = inputs


def _acting(graph: graph_pb2.GraphDef) -> set[str]:
    """The nodes with side effects, and their consumers."""
    acting = [node.name for node in graph.node if _has_effect(node.op)]
    return with_descendants(dependencies(graph.node), acting)


def _has_effect(op: str) -> bool:
    known = op_def_registry.get(op)
    return op not in _NO_EFFECT and (known is None or known.is_stateful)


def inside_control_flow(graph: graph_pb2.GraphDef) -> set[str]:
    """Returns the nodes in branches and loops of TensorFlow 1, which may run never or often.

    Each Switch and each Enter leads one step in, each Merge of branches and each Exit one step out;
    of a loop, whose Merge is of what enters it, Exit leads out of the Switch as well.
    """
    nodes = {node.name: node for node in graph.node}
    order = first_iteration(graph.node)
    depths = dict[str, int]()
    for name in nx.topological_sort(order):
        node, before = nodes[name], [*order.predecessors(name)]
        step = _STEPS.get(node.op, 0)
        if node.op in _MERGES and any(nodes[b].op in _ENTERS for b in before):
            step = 0
        depths[name] = max((depths[b] for b in before), default=0) + step
    return {name for name, depth in depths.items() if depth > 0}
