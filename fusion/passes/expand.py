"""Replaces by stock ops each fused op that no lookup could be made of.

That is the way back of what is trained: where a gradient reads what is inside a lookup, each op
alone is still what its definition by stock ops says.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.ops.bags.stock import NoDefinition
from fusion.ops.stock_definitions import DEFINITIONS
from fusion.passes.graph.edit import GraphEdit, apply_edits, bodies
from fusion.passes.graph.runtime_ops import TOO_OLD, drop_later_defaults, lacking
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import op_def_registry
from fusion.schema.names import GROUPED_IDS, OP_NAMES, PARSE_EXAMPLE, SINGLE
from fusion.schema.op_history import NEWEST, OLDEST, Release

_MATRICES = frozenset(
    {"emb_shards", "emb_rows", "top_grad", "other_top_grads", "row_splits"}
    | {"partition_permutation"}
    | {"sp_indices", "indices_before_unique", "partitioned_indices", "dense_ids"}
)
"""Inputs of rank 2; all others are vectors, but for the ids and rows of groups."""


class Expansion(NamedTuple):
    """A graph without fused ops; function "" is the main graph.

    Attributes:
        graph_def: the graph.
        results: for each function that had fused ops, the node that holds the first result of each.
        lacking: why other functions have theirs, where a TensorFlow release lacks what they become.
    """

    graph_def: graph_pb2.GraphDef
    results: dict[str, dict[str, str]]
    lacking: dict[str, str]


def expanded(
    graph_def: graph_pb2.GraphDef,
    preserved: frozenset[str] = frozenset(),
    runtime: Release = NEWEST,
    ops: Collection[str] = OP_NAMES,
) -> Expansion:
    """Replaces each fused op by stock ones.

    A function with an op that has no definition stays as it is: what is left would need our ops
    anyway. What outsiders refer to keeps its name and its values.

    Args:
        graph_def: the graph, which is not changed.
        preserved: names of main-graph nodes that outsiders refer to.
        runtime: the TensorFlow release that has to know the stock ops.
        ops: the names of those that are replaced.
    """
    edits, results, unknown = dict[str, GraphEdit](), dict[str, dict[str, str]](), dict[str, str]()
    for view in bodies(graph_def, preserved):
        edit = GraphEdit(view)
        names = [name for name, node in view.nodes.items() if node.op in ops]
        if any(view.op(name) not in DEFINITIONS for name in names):
            continue
        if view.has_loops:  # in which constants would need the frame of their iteration
            continue
        try:
            nodes = {name: _expand(edit, name) for name in names}
        except NoDefinition:
            continue
        if (why := _refuse(edit, runtime)) is not None:
            unknown[view.function] = why
        elif names:
            edits[view.function], results[view.function] = edit, nodes
    return Expansion(apply_edits(graph_def, edits) if edits else graph_def, results, unknown)


def _refuse(edit: GraphEdit, runtime: Release) -> str | None:
    """Returns why a TensorFlow release cannot load the new nodes; None if it can."""
    if not edit.added or runtime >= NEWEST:
        return None
    if runtime < OLDEST:
        return TOO_OLD
    for node in edit.added.values():
        drop_later_defaults(node, runtime)
    uses = (lacking(node, runtime, edit.view.nodes.values()) for node in edit.added.values())
    use = next((use for use in uses if use is not None), None)
    return None if use is None else use.refusal(runtime)


def _expand(edit: GraphEdit, name: str) -> str:
    """Replaces a fused op by stock ones; returns the node that holds the first result."""
    view, node = edit.view, edit.view.nodes[name]
    definition, inputs, outputs = _traced(_key(view, name))
    names = dict(zip(inputs, view.inputs(name), strict=True))
    new: dict[str, str] = {}
    for stock in definition.node:
        if stock.name in names:
            continue
        added = node_def_pb2.NodeDef()
        added.CopyFrom(stock)
        added.name = edit.unique_name(f"{name}/{stock.name}")
        added.device = node.device
        new[stock.name] = added.name
        del added.input[:]
        for text in stock.input:
            if text.startswith("^"):
                added.input.append(f"^{new[text[1:]]}")
            else:
                added.input.append(edit.text(_tensor(text, names, new)))
        edit.add(added, at=name)
    results = [_tensor(text, names, new) for text in outputs]
    made = next(iter(reversed(new.values())))
    for index, result in enumerate(results):
        edit.replace(Tensor(name, index), result)
    edit.remove([name], made)
    if name in view.preserved:
        edit.add(_same(edit, name, results), at=name)
    return results[0].node


def _same(edit: GraphEdit, name: str, results: list[Tensor]) -> node_def_pb2.NodeDef:
    """Returns a node of an old one's name, with its outputs, for those who know it."""
    node = node_def_pb2.NodeDef(name=name, op="IdentityN", device=edit.view.nodes[name].device)
    for result in results:
        node.input.append(edit.text(result))
        node.attr["T"].list.type.append(edit.added[result.node].attr["T"].type)
    return node


def _tensor(text: str, names: dict[str, Tensor], new: dict[str, str]) -> Tensor:
    node, _, index = text.partition(":")
    return names[node] if node in names else Tensor(new[node], int(index or 0))


_Key = tuple[str, bytes]


def _key(view: GraphView, name: str) -> _Key:
    """Returns all that the definition of an op depends on."""
    node = node_def_pb2.NodeDef(op=view.op(name))
    definition = view.signatures.op_def(node.op)
    assert definition is not None, "fused ops are known"
    for attr in definition.attr:
        value = view.attr(name, attr.name)
        if value is not None:
            node.attr[attr.name].CopyFrom(value)
    return node.op, node.SerializeToString(deterministic=True)


@lru_cache(maxsize=256)
def _traced(key: _Key) -> tuple[graph_pb2.GraphDef, tuple[str, ...], tuple[str, ...]]:
    """Returns the definition of an op as a graph, the nodes of its inputs, and its outputs."""
    op, serialized = key
    node = node_def_pb2.NodeDef.FromString(serialized)
    attrs = {name: _plain(value) for name, value in node.attr.items()}
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(dtype, rank and [None] * rank, f"input_{index}")
            for index, (dtype, rank) in enumerate(_signature(node))
        ]
        results = [tf.identity(output) for output in DEFINITIONS[op](attrs, inputs)]
    names = tuple(tensor.op.name for tensor in inputs)
    definition = graph.as_graph_def()
    for stock in definition.node:
        stock.attr.pop("_class", None)  # gradients are beside nodes that have other names here
    return definition, names, tuple(tensor.name for tensor in results)


def _signature(node: node_def_pb2.NodeDef) -> list[tuple[tf.DType, int | None]]:
    """Returns dtype and rank of each input; None: any."""
    arguments: list[tuple[tf.DType, int | None]] = []
    for arg in op_def_registry.get(node.op).input_arg:
        if arg.type_list_attr:
            dtypes = list(node.attr[arg.type_list_attr].list.type)
        else:
            count = node.attr[arg.number_attr].i if arg.number_attr else 1
            dtypes = [arg.type or node.attr[arg.type_attr].type] * count
        forms = [form.decode() for form in node.attr["forms"].list.s]
        for index, dtype in enumerate(dtypes):
            rank: int | None = 2 if arg.name in _MATRICES else 1
            if node.op in (SINGLE, PARSE_EXAMPLE, GROUPED_IDS):
                rank = 2 if arg.name == "table" else None
            if forms and arg.name == "ids":
                rank = {"dense": 2, "each": None}.get(forms[index], 1)
            elif forms and arg.name == "entry_rows":
                rank = 2 if forms[index] == "indices" else 1
            arguments.append((tf.as_dtype(dtype), rank))
    return arguments


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "type":
        return tf.as_dtype(value.type)
    if kind == "list":
        values = value.list
        if values.type:
            return [tf.as_dtype(dtype) for dtype in values.type]
        if values.s:
            return [text.decode(errors="surrogateescape") for text in values.s]
        return [*values.b, *values.i, *values.f]
    return value.s.decode() if kind == "s" else getattr(value, kind)
