"""Frozen graphs: a file with a GraphDef, seen as a SavedModel with one signature.

So whatever reads, rewrites and runs SavedModels does so with frozen graphs. The signature's inputs
are the placeholders without default; its outputs are the requested ones, or else those of the nodes
that no other node reads, as in `fuse_graph`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.running.graphs import final_nodes
from fusion.saved_model.errors import ModelError

PRESERVED = "fusion_kept_nodes"
"""The collection of the nodes that a rewrite keeps, beside those of the signature."""

_SIGNATURE = "serving_default"
_MAIN_OP = "saved_model_main_op"
_PLACEHOLDERS = frozenset(["Placeholder", "PlaceholderV2"])
_DEFAULTED = "PlaceholderWithDefault"
_NOT_COMPUTED = (
    _PLACEHOLDERS | {_DEFAULTED} | {"Const", "NoOp", "VarHandleOp", "VariableV2", "Variable"}
)
_INITIALIZERS = frozenset(
    [f"{op}{version}" for op in ("InitializeTable", "LookupTableImport") for version in ("", "V2")]
    + ["InitializeTableFromTextFile", "InitializeTableFromTextFileV2"]
)
_EMPTY_IS_SCALAR = 24
"""The first producer version of graphs in which a placeholder's empty shape is that of a scalar."""


def parse_graph(file: Path, content: bytes) -> graph_pb2.GraphDef:
    """Returns the GraphDef in `content`, the bytes of `file`.

    Raises:
        ModelError: they are something else.
    """
    graph_def = graph_pb2.GraphDef()
    try:
        graph_def.ParseFromString(content)
    except DecodeError:
        graph_def.Clear()
    if not graph_def.node or not all(node.name and node.op for node in graph_def.node):
        raise ModelError(
            f"{file}: not a directory, and no frozen graph ({len(content)} bytes that are no "
            "GraphDef); give the folder of a SavedModel, or a file with a binary GraphDef"
        )
    return graph_def


def as_saved_model(
    file: Path, graph_def: graph_pb2.GraphDef, outputs: Iterable[str] | None = None
) -> saved_model_pb2.SavedModel:
    """Returns a frozen graph as a SavedModel.

    Args:
        file: where the graph is from, for messages.
        graph_def: the graph.
        outputs: names of nodes or tensors; by default all nodes that no other node reads.

    Raises:
        ModelError: the graph has no such output.
    """
    proto = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    meta = proto.meta_graphs.add(graph_def=graph_def)
    meta.meta_info_def.tags.append("serve")
    signature = meta.signature_def[_SIGNATURE]
    old = graph_def.versions.producer < _EMPTY_IS_SCALAR
    for node in graph_def.node:
        if node.op in _PLACEHOLDERS or _is_dense_shape(node):
            signature.inputs[node.name].CopyFrom(_input(node, old))
    named = None if outputs is None else tuple(outputs)
    for tensor in _outputs(file, graph_def, named):
        signature.outputs[tensor.removesuffix(":0")].name = tensor
    preserved = {n for n in final_nodes(graph_def) if named is None} | _named_nodes(graph_def)
    meta.collection_def[PRESERVED].node_list.value.extend(sorted(preserved))
    return proto


def _is_dense_shape(node: node_def_pb2.NodeDef) -> bool:
    """Whether a placeholder with a default is the dense shape of a sparse placeholder.

    Its default is no shape. Others, such as a rate of dropout, keep theirs.
    """
    return (
        node.op == _DEFAULTED
        and node.attr["dtype"].type == types_pb2.DT_INT64
        and len(node.attr["shape"].shape.dim) == 1
    )


def _input(node: node_def_pb2.NodeDef, empty_is_unknown: bool) -> meta_graph_pb2.TensorInfo:
    info = meta_graph_pb2.TensorInfo(name=f"{node.name}:0")
    info.dtype = node.attr["dtype"].type if "dtype" in node.attr else 0
    if "shape" in node.attr:
        info.tensor_shape.CopyFrom(node.attr["shape"].shape)
    if "shape" not in node.attr or (empty_is_unknown and not info.tensor_shape.dim):
        info.tensor_shape.unknown_rank = True
    return info


def _outputs(
    file: Path, graph_def: graph_pb2.GraphDef, named: tuple[str, ...] | None
) -> Iterator[str]:
    """Yields the names of the tensors, `node:0`."""
    signatures = OpSignatures(graph_def.library.function)
    nodes = {node.name: node for node in graph_def.node}
    if named is None:
        final = final_nodes(graph_def)
        for name, node in nodes.items():
            if name in final and node.op not in _NOT_COMPUTED:
                yield from (f"{name}:{i}" for i in range(_output_count(node, signatures)))
        return
    for text in named:
        name, colon, index = text.partition(":")
        if name not in nodes:
            raise ModelError(f"{file}: the graph has no node {name!r} (an output to keep)")
        count = _output_count(nodes[name], signatures)
        number = index if colon else "0"
        if not number.isdecimal() or int(number) >= count:
            raise ModelError(f"{file}: node {name!r} ({nodes[name].op}) has no output {text!r}")
        yield f"{name}:{int(number)}"


def _output_count(node: node_def_pb2.NodeDef, signatures: OpSignatures) -> int:
    outputs = signatures.outputs(node)
    return 1 if outputs is None else len(outputs)


def _named_nodes(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """Returns the nodes that a program runs by name to initialize its tables."""
    return frozenset(node.name for node in graph_def.node if node.op in _INITIALIZERS)


@contextmanager
def loadable(model: Path, proto: saved_model_pb2.SavedModel | None = None) -> Iterator[Path]:
    """Yields the folder of a SavedModel: `model` itself, or a temporary one for a frozen graph.

    Args:
        model: a SavedModel's folder, or the file of a frozen graph.
        proto: what the frozen graph is seen as; by default with all its outputs.
    """
    if proto is None and model.is_dir():
        yield model
        return
    if proto is None:
        proto = as_saved_model(model, parse_graph(model, model.read_bytes()))
    with tempfile.TemporaryDirectory(prefix="fusion-graph-") as name:
        write_loadable(proto, Path(name))
        yield Path(name)


def write_loadable(proto: saved_model_pb2.SavedModel, folder: Path) -> None:
    """Writes a frozen graph as a SavedModel; its tables are initialized when it is loaded."""
    runnable = saved_model_pb2.SavedModel()
    runnable.CopyFrom(proto)
    for meta in runnable.meta_graphs:
        if initializers := sorted(_named_nodes(meta.graph_def)):
            names = {node.name for node in meta.graph_def.node}
            name = "fusion_initialize"
            while name in names:
                name += "_"
            meta.graph_def.node.add(
                name=name, op="NoOp", input=[f"^{before}" for before in initializers]
            )
            meta.collection_def[_MAIN_OP].node_list.value.append(name)
    try:
        content = runnable.SerializeToString(deterministic=True)
    except ValueError as error:
        message = "the graph exceeds the 2 GiB limit of a protocol buffer"
        raise ModelError(message) from error
    (folder / "saved_model.pb").write_bytes(content)
