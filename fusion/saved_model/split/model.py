"""A SavedModel from a graph without functions: its saver, its initializers and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2, types_pb2, variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saver_pb2

from fusion.runtime.tensorflow.private import tensor_util
from fusion.saved_model.flat import add_functions, reachable
from fusion.saved_model.model.meta_graph import node_name, update_op_list
from fusion.saved_model.split.parts import Part
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.initial import (
    add_reads,
    assets_of,
    init_op,
    set_init_op,
    set_mapped_bytes,
)

_SAVE = "save"
_RESOURCES = frozenset({"VarHandleOp", "HashTableV2", "MutableHashTableV2", "HashTable"})
_INIT = "fusion_init"


@dataclass(frozen=True)
class Origin:
    """The model that a graph is from.

    Attributes:
        meta: the model.
        graph: all of it, without functions.
        keys: of variables in the checkpoint, by the nodes of their handles.
    """

    meta: meta_graph_pb2.MetaGraphDef
    graph: graph_pb2.GraphDef
    keys: Mapping[str, str]


def assemble(
    origin: Origin, part: Part, tables: Sequence[FileTable]
) -> meta_graph_pb2.MetaGraphDef:
    """Returns a model of a part of another.

    Args:
        origin: the other.
        part: the part.
        tables: the variables of it that are in files; the others are restored.
    """
    meta = meta_graph_pb2.MetaGraphDef()
    meta.meta_info_def.CopyFrom(origin.meta.meta_info_def)
    meta.graph_def.CopyFrom(part.graph)
    for name, signature in part.signatures.items():
        meta.signature_def[name].CopyFrom(signature)
    initializers = _initializers(origin, part.graph)
    known = {node.name for node in meta.graph_def.node}
    more = reachable(origin.graph, initializers)
    meta.graph_def.node.extend(node for node in more.node if node.name not in known)
    add_functions(meta.graph_def, more)
    names = {node.name for node in meta.graph_def.node}
    for asset in assets_of(origin.meta):
        if node_name(asset.tensor_info.name) in names:
            meta.asset_file_def.add().CopyFrom(asset)
    if initializers:
        controls = [f"^{name}" for name in initializers]
        meta.graph_def.node.add(name=_INIT, op="NoOp", input=controls)
        set_init_op(meta, _INIT)
    files = {table.handle for table in tables}
    keys = variables_of(part.graph, origin.keys)
    restored = {handle: key for handle, key in keys.items() if handle not in files}
    definitions = list(_add_restored(meta, restored))
    if definitions or tables:
        _add_saver(meta, len(definitions))
    if tables:
        definitions += [_table_definition(meta, table, index) for index, table in enumerate(tables)]
        add_reads(meta, tables)
        set_mapped_bytes(meta)
    for collection in ("variables", "trainable_variables") if definitions else ():
        values = meta.collection_def[collection].bytes_list.value
        values.extend(definition.SerializeToString() for definition in definitions)
    update_op_list(meta)
    return meta


def variables_of(graph: graph_pb2.GraphDef, keys: Mapping[str, str]) -> dict[str, str]:
    """Returns the checkpoint keys of the variables of a graph, by the nodes of their handles."""
    names = (node.name for node in graph.node if node.op == "VarHandleOp")
    return {name: keys[name] for name in names if name in keys}


def _initializers(origin: Origin, graph: graph_pb2.GraphDef) -> list[str]:
    """The nodes that initialize what a graph uses other than variables, such as hash tables."""
    name = init_op(origin.meta)
    nodes = {node.name: node for node in origin.graph.node}
    if name not in nodes:
        return []
    branches = {node_name(text): set[str]() for text in nodes[name].input}
    for branch in branches:
        own = reachable(origin.graph, [branch]).node
        branches[branch] = {node.name for node in own if node.op in _RESOURCES}
    used = {node.name for node in graph.node if node.op in _RESOURCES}
    result: dict[str, None] = {}
    while more := [b for b, own in branches.items() if b not in result and own & used]:
        for branch in more:
            result[branch] = None
            used |= branches[branch]
    return list(result)


def _add_restored(
    meta: meta_graph_pb2.MetaGraphDef, keys: Mapping[str, str]
) -> Iterator[variable_pb2.VariableDef]:
    """Adds the nodes that restore and read variables; yields what TensorFlow knows of each."""
    if not keys:
        return
    graph = meta.graph_def
    nodes = {node.name: node for node in graph.node}
    handles = sorted(keys, key=lambda handle: keys[handle])
    dtypes = [nodes[handle].attr["dtype"].type for handle in handles]
    for kind in ("RestoreV2", "SaveV2"):
        _strings(graph, f"{kind}/tensor_names", [keys[handle] for handle in handles])
        _strings(graph, f"{kind}/shape_and_slices", ["" for _ in handles])
        node = graph.node.add(name=f"{_SAVE}/{kind}", op=kind)
        parts = ("filename", f"{kind}/tensor_names", f"{kind}/shape_and_slices")
        node.input.extend(f"{_SAVE}/{part}" for part in parts)
        node.attr["dtypes"].list.type.extend(dtypes)
        if kind == "SaveV2":
            node.input.extend(f"{_SAVE}/Read_{index}" for index in range(len(handles)))
    for index, (handle, dtype) in enumerate(zip(handles, dtypes, strict=True)):
        value = f"{_SAVE}/RestoreV2:{index}" if index else f"{_SAVE}/RestoreV2"
        assign = graph.node.add(
            name=f"{_SAVE}/Assign_{index}", op="AssignVariableOp", input=[handle, value]
        )
        read = graph.node.add(name=f"{_SAVE}/Read_{index}", op="ReadVariableOp", input=[handle])
        assign.attr["dtype"].type = read.attr["dtype"].type = dtype
        yield variable_pb2.VariableDef(
            variable_name=f"{handle}:0",
            initial_value_name=f"{_SAVE}/RestoreV2:{index}",
            initializer_name=assign.name,
            snapshot_name=f"{read.name}:0",
            is_resource=True,
            trainable=True,
        )


def _add_saver(meta: meta_graph_pb2.MetaGraphDef, restored: int) -> None:
    """Adds the saver; without one a loader makes one of all variables, those in files too."""
    graph = meta.graph_def
    _strings(graph, "filename", ["model"], is_scalar=True)
    assigned = [f"^{_SAVE}/Assign_{index}" for index in range(restored)]
    graph.node.add(name=f"{_SAVE}/restore_all", op="NoOp", input=assigned)
    done = graph.node.add(name=f"{_SAVE}/saved", op="Identity", input=[f"{_SAVE}/filename"])
    done.input.extend([f"^{_SAVE}/SaveV2"] if restored else [])
    done.attr["T"].type = types_pb2.DT_STRING
    meta.saver_def.CopyFrom(
        saver_pb2.SaverDef(
            filename_tensor_name=f"{_SAVE}/filename:0",
            save_tensor_name=f"{_SAVE}/saved:0",
            restore_op_name=f"{_SAVE}/restore_all",
            max_to_keep=5,
            version=saver_pb2.SaverDef.V2,
        )
    )


def _strings(
    graph: graph_pb2.GraphDef, name: str, values: Sequence[str], is_scalar: bool = False
) -> None:
    node = graph.node.add(name=f"{_SAVE}/{name}", op="Const")
    node.attr["dtype"].type = types_pb2.DT_STRING
    encoded = [value.encode(errors="surrogateescape") for value in values]
    tensor = tensor_util.make_tensor_proto(
        encoded[0] if is_scalar else encoded, types_pb2.DT_STRING, [] if is_scalar else None
    )
    node.attr["value"].tensor.CopyFrom(tensor)


def _table_definition(
    meta: meta_graph_pb2.MetaGraphDef, table: FileTable, index: int
) -> variable_pb2.VariableDef:
    """The VariableDef of a variable whose value is in a file."""
    read = meta.graph_def.node.add(
        name=f"{_SAVE}/Table_{index}", op="ReadVariableOp", input=[table.handle]
    )
    read.attr["dtype"].type = table.dtype
    return variable_pb2.VariableDef(
        variable_name=f"{table.handle}:0",
        initial_value_name=f"{FileTable.scope(index)}/read:0",
        initializer_name=f"{FileTable.scope(index)}/assign",
        snapshot_name=f"{read.name}:0",
        is_resource=True,
        trainable=True,
    )
