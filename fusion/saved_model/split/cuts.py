"""The tensors at which a model is cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.variables import writers
from fusion.passes.graph.calls import reached_functions
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import DenseIds, LookupSpec
from fusion.running.imported import imported_graph
from fusion.saved_model.flat import inside_control_flow

#: What nodes that are added are called, which no result is.
_RESERVED = ("init",)

_WRITES = re.compile("Assign.*VariableOp|Resource(Scatter|.*Apply|StridedSliceAssign)")


@dataclass(frozen=True)
class Cut:
    """The result of a lookup, which is an output of one model and an input of the other.

    Attributes:
        label: of the lookup.
        name: of that output and input.
        tensor: in the flat graph.
        dtype: its DataType.
        shape: as far as it is static.
        handles: the nodes that give the handles of the table's variables.
        combiner: how the rows of a bag are combined; None if each id gives a row of its own.
    """

    label: str
    name: str
    tensor: Tensor
    dtype: int
    shape: Shape
    handles: tuple[str, ...]
    combiner: str | None


def find_cuts(
    graph: graph_pb2.GraphDef, outputs: Iterable[str], inputs: Iterable[str]
) -> list[Cut]:
    """Returns the results of the lookups of a flat graph whose tables are variables.

    Without tables that the graph writes: one part alone would have the new values.

    Args:
        graph: it.
        outputs: the nodes that are fetched.
        inputs: the names of inputs, which none of the results has.
    """
    view = GraphView(graph.node, OpSignatures(graph.library.function), frozenset(outputs))
    matches = outermost(match for match in recognise_all(view) if match.spec is not None)
    inferred = imported_graph(graph)
    inside = inside_control_flow(graph)
    cuts: dict[Tensor, Cut] = {}
    for match in matches:
        cut = _cut(view, inferred, match)
        if cut is None or cut.tensor in cuts or cut.tensor.node in inside:
            continue
        if not any(_is_written(view, graph, handle) for handle in cut.handles):
            cuts[cut.tensor] = cut
    return with_names(cuts.values(), inputs)


def _is_written(view: GraphView, graph: graph_pb2.GraphDef, handle: str) -> bool:
    """Whether an op of a graph, or of a branch or a loop of it, writes a variable."""
    ops = set[str]()
    for name in writers(view, Tensor(handle)):
        node = view.nodes[name]
        ops.add(node.op)
        reached = reached_functions(graph_pb2.GraphDef(node=[node], library=graph.library))
        for function in graph.library.function:
            if function.signature.name in reached:
                ops.update(inner.op for inner in function.node_def)
    return any(_WRITES.match(op) for op in ops)


def with_names(cuts: Iterable[Cut], inputs: Iterable[str]) -> list[Cut]:
    """Returns cuts with names, none of which is another's or that of an input."""
    named, names = list[Cut](), {*inputs, *_RESERVED}
    for cut in cuts:
        named.append(replace(cut, name=_free_name(cut.label, names)))
        names.add(named[-1].name)
    return named


def _cut(view: GraphView, inferred: tf.Graph, match: LookupMatch) -> Cut | None:
    spec = match.spec
    assert spec is not None
    handles = []
    for shard in spec.table.shards:
        source = view.origin(shard.tensor)
        handle = view.read_handle(source) if shard.kind != "resource" else source
        source = source if handle is None else view.origin(handle)
        if view.op(source.node) != "VarHandleOp":
            return None
        handles.append(source.node)
    shape = _shape(inferred, spec)
    if shape is None:
        return None
    combiner = None if _is_each(spec) else spec.combiner
    name, output, dtype = match.name, spec.output, spec.table.dtype
    return Cut(name, name, output, dtype, shape, tuple(handles), combiner)


def _is_each(spec: LookupSpec) -> bool:
    """Whether each id gives a row of its own."""
    return isinstance(spec.ids, DenseIds) and spec.ids.is_each


def _shape(inferred: tf.Graph, spec: LookupSpec) -> Shape | None:
    """The shape of a result, as far as it is static; None if not even the rank is."""
    tensor = inferred.get_tensor_by_name(f"{spec.output.node}:{spec.output.index}")
    _, dim = spec.table.shape
    if tensor.shape.rank is not None and tensor.shape.rank > 0:
        *sizes, last = tensor.shape.as_list()
        return (*sizes, dim if last is None else last)
    return None if _is_each(spec) else (None, dim)


def _free_name(name: str, names: set[str]) -> str:
    """A name for an embedding, of letters that names of nodes may have."""
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
    plain, number = plain or "embedding", 1
    free = plain
    while free in names:
        number += 1
        free = f"{plain}_{number}"
    return free
