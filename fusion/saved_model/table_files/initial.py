"""The nodes that give variables their tables when a session has restored the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import PurePosixPath

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.table_files.file_table import SCOPE, FileTable, element_bytes
from fusion.schema.names import READ_TABLE_FILE

_SIGNATURE, _ASSETS = "__saved_model_init_op", "saved_model_assets"
_MAIN_OP, _OLD_MAIN_OP = "saved_model_main_op", "legacy_init_op"


def assets_of(meta: meta_graph_pb2.MetaGraphDef) -> list[meta_graph_pb2.AssetFileDef]:
    """Returns the assets of a model, where either TensorFlow lists them."""
    if meta.asset_file_def or _ASSETS not in meta.collection_def:
        return list(meta.asset_file_def)
    assets = []
    for packed in meta.collection_def[_ASSETS].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        if packed.Unpack(asset):
            assets.append(asset)
    return assets


def count_reads(meta: meta_graph_pb2.MetaGraphDef) -> int:
    """Returns how many tables a model reads from files already."""
    nodes, count = {node.name for node in meta.graph_def.node}, 0
    while f"{FileTable.scope(count)}/read" in nodes:
        count += 1
    return count


def reads_of_files(meta: meta_graph_pb2.MetaGraphDef) -> dict[str, node_def_pb2.NodeDef]:
    """Returns the nodes that read tables from files, by the names of their variables."""
    nodes, reads = {node.name: node for node in meta.graph_def.node}, {}
    for index in range(count_reads(meta)):
        scope = FileTable.scope(index)
        handle = nodes[nodes[f"{scope}/assign"].input[0]]
        name = handle.attr["shared_name"].s.decode(errors="replace") or handle.name
        reads[name] = nodes[f"{scope}/read"]
    return reads


def add_reads(
    meta: meta_graph_pb2.MetaGraphDef, tables: Sequence[FileTable], first: int = 0
) -> None:
    """Adds the assets of tables, and has the init op assign them to their variables.

    Args:
        meta: the model.
        tables: those to add.
        first: the number of the first one, the count of those that are there.
    """
    graph = meta.graph_def
    if not meta.asset_file_def:  # else the collection is not read any more
        meta.asset_file_def.extend(assets_of(meta))
    assigned, paths = [], dict[PurePosixPath, str]()
    for index, table in enumerate(tables, first):
        scope = FileTable.scope(index)
        if table.file not in paths:
            paths[table.file] = f"{scope}/path"
            _add_asset(meta, f"{scope}/path", table.file)
        table.set_read(graph.node.add(name=f"{scope}/read", input=[paths[table.file]]))
        assign = graph.node.add(
            name=f"{scope}/assign", op="AssignVariableOp", input=[table.handle, f"{scope}/read"]
        )
        assign.attr["dtype"].type = table.dtype
        if table.is_restored:
            release(graph.node.add(name=f"{scope}/release", input=[table.handle]), assign)
        assigned.append(f"^{assign.name}")
    name = init_op(meta)
    init = next((node for node in graph.node if node.name == name), None)
    if init is not None and init.op == "NoOp":
        init.input.extend(assigned)
        return
    after = [f"^{name}"] if init is not None else []
    graph.node.add(name=f"{SCOPE}/init", op="NoOp", input=[*after, *assigned])
    set_init_op(meta, f"{SCOPE}/init")


def release(node: node_def_pb2.NodeDef, assign: node_def_pb2.NodeDef) -> None:
    """Makes a node, which has its input, a DisableCopyOnRead of a variable before it is assigned.

    Without it the variable would copy its new value: it does not share memory any more once rows
    have been written to it or looked up in it.
    """
    node.op = "DisableCopyOnRead"
    assign.input.append(f"^{node.name}")


def _add_asset(meta: meta_graph_pb2.MetaGraphDef, node: str, file: PurePosixPath) -> None:
    """Adds an asset, and the node that gives its path."""
    path = meta.graph_def.node.add(name=node, op="Placeholder")
    path.attr["dtype"].type = types_pb2.DT_STRING
    path.attr["shape"].shape.SetInParent()
    asset = meta.asset_file_def.add(filename=str(file))
    asset.tensor_info.name = f"{node}:0"
    asset.tensor_info.dtype = types_pb2.DT_STRING
    asset.tensor_info.tensor_shape.SetInParent()


def set_mapped_bytes(meta: meta_graph_pb2.MetaGraphDef) -> None:
    """Notes at each table that is read from a file how large all of those are that are mapped."""
    sizes = dict[str, int]()
    for node in meta.graph_def.node:
        in_memory = "in_memory" in node.attr and node.attr["in_memory"].b
        if node.op == READ_TABLE_FILE and not in_memory:
            size = node.attr["rows"].i * node.attr["width"].i * element_bytes(node.attr["T"].type)
            sizes[node.input[0]] = size
    functions = (function.node_def for function in meta.graph_def.library.function)
    for node in chain(meta.graph_def.node, *functions):
        if node.op == READ_TABLE_FILE:
            node.attr["mapped_bytes"].i = sum(sizes.values())


def init_op(meta: meta_graph_pb2.MetaGraphDef) -> str:
    """Returns the node that is run when a model has been restored; "" for none."""
    if _SIGNATURE in meta.signature_def:
        return meta.signature_def[_SIGNATURE].outputs[_SIGNATURE].name.partition(":")[0]
    for key in (_MAIN_OP, _OLD_MAIN_OP):
        names = meta.collection_def[key].node_list.value if key in meta.collection_def else ()
        if names:
            return names[0].partition(":")[0]
    return ""


def set_init_op(meta: meta_graph_pb2.MetaGraphDef, name: str) -> None:
    """Has a node run when a model has been restored."""
    if _SIGNATURE in meta.signature_def:
        meta.signature_def[_SIGNATURE].outputs[_SIGNATURE].name = name
    key = _OLD_MAIN_OP if _OLD_MAIN_OP in meta.collection_def else _MAIN_OP
    names = meta.collection_def[key].node_list.value
    del names[:]
    names.append(name)
