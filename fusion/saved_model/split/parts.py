"""The graphs of the two models that a flat graph becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2, node_def_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.tensor import Shape
from fusion.saved_model.flat import reachable, tensor_names
from fusion.saved_model.model.meta_graph import node_name
from fusion.saved_model.split.cuts import Cut

Signatures = dict[str, meta_graph_pb2.SignatureDef]

#: The scope of nodes that are added.
SCOPE = "fusion_split"

#: The signature of a dense model that takes the embeddings of all lookups in one vector.
FLAT = "flat"


@dataclass(frozen=True)
class Part:
    """A graph with its signatures.

    Attributes:
        graph: only what the signatures need.
        signatures: by name.
    """

    graph: graph_pb2.GraphDef
    signatures: Signatures


def dense_part(
    graph: graph_pb2.GraphDef,
    signatures: Mapping[str, meta_graph_pb2.SignatureDef],
    cuts: Sequence[Cut],
) -> Part:
    """Returns the consumers of the lookups, with an input for the result of each."""
    cut_graph = graph_pb2.GraphDef()
    cut_graph.CopyFrom(graph)
    inputs = {cut.name: _placeholder(cut_graph, cut) for cut in cuts}
    renamed = {str(cut.tensor): inputs[cut.name] for cut in cuts}
    for node in cut_graph.node:
        node.input[:] = [renamed.get(text.removesuffix(":0"), text) for text in node.input]
    result: Signatures = {}
    for name, signature in signatures.items():
        dense = result[name] = meta_graph_pb2.SignatureDef(method_name=signature.method_name)
        for key, info in signature.outputs.items():
            dense.outputs[key].CopyFrom(info)
            if info.name.removesuffix(":0") in renamed:  # an output that is an embedding
                dense.outputs[key].name = f"{renamed[info.name.removesuffix(':0')]}:0"
        needed = _needed(cut_graph, dense)
        own = [cut for cut in cuts if inputs[cut.name] in needed]
        _copy_inputs(signature, dense, needed)
        for cut in own:
            dense.inputs[cut.name].CopyFrom(_info(inputs[cut.name], cut))
        is_served = name == "serving_default" and FLAT not in signatures
        if is_served and (flat := _flat(cut_graph, dense, own)) is not None:
            result[FLAT] = flat
        # What neither needs stays an input.
        of_lookups = {node.name for node in reachable(graph, [c.tensor.node for c in own]).node}
        idle = {node.name for node in graph.node} - needed - of_lookups
        _copy_inputs(signature, dense, idle)
    return Part(reachable(cut_graph, _nodes(result.values())), result)


def _copy_inputs(
    source: meta_graph_pb2.SignatureDef, target: meta_graph_pb2.SignatureDef, nodes: set[str]
) -> None:
    """Gives a signature those inputs of another that are among some nodes."""
    for key, info in source.inputs.items():
        if any(node_name(tensor) in nodes for tensor in tensor_names(info)):
            target.inputs[key].CopyFrom(info)


def lookup_part(
    graph: graph_pb2.GraphDef,
    signatures: Mapping[str, meta_graph_pb2.SignatureDef],
    dense: Mapping[str, meta_graph_pb2.SignatureDef],
    cuts: Sequence[Cut],
) -> Part:
    """Returns the lookups, with the ids among the inputs of signatures.

    Args:
        graph: the flat graph.
        signatures: of it.
        dense: those of the dense part.
        cuts: the lookups.
    """
    lookup_graph = graph_pb2.GraphDef()
    lookup_graph.CopyFrom(graph)
    outputs = {}
    for cut in cuts:
        node = lookup_graph.node.add(name=f"{SCOPE}/{cut.name}", op="Identity")
        node.input.append(str(cut.tensor))
        node.attr["T"].type = cut.dtype
        outputs[cut.name] = node.name
    result: Signatures = {}
    for name, signature in signatures.items():
        lookup = meta_graph_pb2.SignatureDef(method_name=signature.method_name)
        for cut in cuts:
            if cut.name in dense[name].inputs:
                lookup.outputs[cut.name].CopyFrom(_info(outputs[cut.name], cut))
        if not lookup.outputs:
            continue
        _copy_inputs(signature, lookup, _needed(lookup_graph, lookup))
        result[name] = lookup
    return Part(reachable(lookup_graph, _nodes(result.values())), result)


def _placeholder(graph: graph_pb2.GraphDef, cut: Cut) -> str:
    node = graph.node.add(name=f"{SCOPE}/{cut.name}", op="Placeholder")
    node.attr["dtype"].type = cut.dtype
    node.attr["shape"].shape.CopyFrom(shape_proto(cut.shape))
    return node.name


def _info(node: str, cut: Cut) -> meta_graph_pb2.TensorInfo:
    shape = shape_proto(cut.shape)
    return meta_graph_pb2.TensorInfo(name=f"{node}:0", dtype=cut.dtype, tensor_shape=shape)


def shape_proto(shape: Shape) -> tensor_shape_pb2.TensorShapeProto:
    """Returns a shape of these sizes, None where they are not known."""
    proto = tensor_shape_pb2.TensorShapeProto()
    for size in shape:
        proto.dim.add(size=-1 if size is None else size)
    return proto


def _needed(graph: graph_pb2.GraphDef, signature: meta_graph_pb2.SignatureDef) -> set[str]:
    """The nodes that the outputs of a signature need."""
    outputs = (t for info in signature.outputs.values() for t in tensor_names(info))
    return {node.name for node in reachable(graph, map(node_name, outputs)).node}


def _nodes(signatures: Iterable[meta_graph_pb2.SignatureDef]) -> list[str]:
    return [
        node_name(tensor)
        for signature in signatures
        for info in (*signature.inputs.values(), *signature.outputs.values())
        for tensor in tensor_names(info)
    ]


def _flat(
    graph: graph_pb2.GraphDef, dense: meta_graph_pb2.SignatureDef, cuts: Sequence[Cut]
) -> meta_graph_pb2.SignatureDef | None:
    """A signature that takes all embeddings in one vector, row by row of the batch.

    That is what a server of lookups gives whose results have one dimension. None if there are other
    inputs, sizes that are not known, or embeddings that have not a row for each of the batch. The
    graph gets a copy of all consumers of the embeddings.
    """
    if len(cuts) < len(dense.inputs) or not cuts or len({cut.dtype for cut in cuts}) > 1:
        return None
    if len({cut.shape[0] for cut in cuts}) > 1 or any(len(cut.shape) < 2 for cut in cuts):
        return None  # rows of constant ids, say, which are as many whatever the batch is
    widths = []
    for cut in cuts:
        width = 1
        for size in cut.shape[1:]:
            if size is None:
                return None
            width *= size
        widths.append(width)
    dtype = cuts[0].dtype
    nodes = _Adder(graph, f"{SCOPE}/{FLAT}")
    vector = nodes.add("embeddings", "Placeholder")
    vector.attr["dtype"].type = dtype
    vector.attr["shape"].shape.CopyFrom(shape_proto((None,)))
    rows = nodes.reshape("rows", vector.name, [-1, sum(widths)], dtype)
    split = nodes.add("split", "SplitV", rows, nodes.integers("widths", widths), nodes.axis())
    split.attr["T"].type, split.attr["num_split"].i = dtype, len(cuts)
    split.attr["Tlen"].type = types_pb2.DT_INT64
    parts = {}
    for index, cut in enumerate(cuts):
        sizes = [-1, *(size or 0 for size in cut.shape[1:])]
        part = f"{split.name}:{index}" if index else split.name
        parts[f"{SCOPE}/{cut.name}"] = nodes.reshape(cut.name, part, sizes, dtype)
    copies = _copied_consumers(graph, parts, f"{SCOPE}/{FLAT}/dense")
    flat = meta_graph_pb2.SignatureDef(method_name=dense.method_name)
    flat.inputs["embeddings"].CopyFrom(
        meta_graph_pb2.TensorInfo(
            name=f"{vector.name}:0", dtype=dtype, tensor_shape=shape_proto((None,))
        )
    )
    for key, info in dense.outputs.items():
        if info.WhichOneof("encoding") != "name":
            return None
        flat.outputs[key].CopyFrom(info)
        node, colon, index = info.name.partition(":")
        flat.outputs[key].name = f"{copies.get(node, node)}{colon}{index}"
    return flat


def _copied_consumers(
    graph: graph_pb2.GraphDef, renamed: Mapping[str, str], scope: str
) -> dict[str, str]:
    """Copies the direct and indirect consumers of nodes, to read what replaces these."""
    copies = dict(renamed)
    while True:  # until there are no more: nodes are in no order
        consumers = [
            node.name
            for node in graph.node
            if node.name not in copies and any(node_name(text) in copies for text in node.input)
            if not node.name.startswith(f"{scope}/")
        ]
        if not consumers:
            break
        copies.update((name, f"{scope}/{name}") for name in consumers)
    for node in [node for node in graph.node if copies.get(node.name) == f"{scope}/{node.name}"]:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.name = copies[node.name]
        copy.input[:] = [_copied(text, copies) for text in node.input]
    return copies


def _copied(text: str, copies: Mapping[str, str]) -> str:
    node = node_name(text)
    if node not in copies:
        return text
    before, _, after = text.partition(node)
    return f"{before}{copies[node]}{after}"


class _Adder:
    """Adds nodes to a graph, in a scope."""

    def __init__(self, graph: graph_pb2.GraphDef, scope: str) -> None:
        self.graph, self.scope = graph, scope

    def add(self, name: str, op: str, *inputs: str) -> node_def_pb2.NodeDef:
        """Adds a node."""
        return self.graph.node.add(name=f"{self.scope}/{name}", op=op, input=inputs)

    def integers(self, name: str, values: Sequence[int]) -> str:
        """Adds a constant vector of int64."""
        node = self.add(name, "Const")
        node.attr["dtype"].type = types_pb2.DT_INT64
        tensor = node.attr["value"].tensor
        tensor.dtype = types_pb2.DT_INT64
        tensor.tensor_shape.CopyFrom(shape_proto((len(values),)))
        tensor.int64_val.extend(values)
        return node.name

    def axis(self) -> str:
        """Adds the number of the second axis."""
        node = self.add("axis", "Const")
        node.attr["dtype"].type = types_pb2.DT_INT32
        tensor = node.attr["value"].tensor
        tensor.dtype = types_pb2.DT_INT32
        tensor.tensor_shape.SetInParent()
        tensor.int_val.append(1)
        return node.name

    def reshape(self, name: str, value: str, sizes: Sequence[int], dtype: int) -> str:
        """Adds a Reshape."""
        shape = self.integers(f"{name}/shape", sizes)
        node = self.add(f"{name}/reshaped", "Reshape", value, shape)
        node.attr["T"].type, node.attr["Tshape"].type = dtype, types_pb2.DT_INT64
        return node.name
