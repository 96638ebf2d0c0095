"""The objects of a model whose variables have their values from files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import function_pb2, types_pb2
from tensorflow.core.protobuf import (
    meta_graph_pb2,
    saved_object_graph_pb2,
    trackable_object_graph_pb2,
)

from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.initial import release

#: What a loader calls once it has restored variables, and the function that is called.
_INITIALIZE = "_initialize"
_FUNCTION = "__inference_fusion_read_table_{}"

#: The variables of an embedding variable, by the tensors that are saved in their place.
_OF_KEYS = {"values": "table", "keys": "index"}


def variables_by_key(
    objects: saved_object_graph_pb2.SavedObjectGraph,
    saved: trackable_object_graph_pb2.TrackableObjectGraph,
) -> dict[str, int]:
    """Returns the numbers of variables among the objects of a model, by their checkpoint keys.

    Those of the table and the index of an embedding variable by those of its rows and keys.

    Args:
        objects: those of the model.
        saved: those of its checkpoint, which have other numbers and the same names.
    """
    result: dict[str, int] = {}
    for number, node in _pairs(objects, saved):
        is_variable = objects.nodes[number].WhichOneof("kind") == "variable"
        children = {child.local_name: child.node_id for child in objects.nodes[number].children}
        for attribute in node.attributes:
            if is_variable:
                result[attribute.checkpoint_key] = number
            elif (name := _OF_KEYS.get(attribute.name)) in children:
                result[attribute.checkpoint_key] = children[name]
    return result


def _pairs(objects: Any, saved: Any) -> Iterator[tuple[int, Any]]:
    """Yields the number of each object of a model, and the checkpoint's node of it."""
    if not objects.nodes or not saved.nodes:
        return
    seen, pending = {0}, [(0, 0)]
    while pending:
        number, other = pending.pop()
        yield number, saved.nodes[other]
        names = {child.local_name: child.node_id for child in saved.nodes[other].children}
        for child in objects.nodes[number].children:
            if child.local_name in names and child.node_id not in seen:
                seen.add(child.node_id)
                pending.append((child.node_id, names[child.local_name]))


def forget_values(
    saved: trackable_object_graph_pb2.TrackableObjectGraph, dropped: Collection[bytes]
) -> None:
    """Drops the values of these names from the objects of a checkpoint."""
    for node in saved.nodes:
        remaining = [a for a in node.attributes if a.checkpoint_key.encode() not in dropped]
        if len(remaining) < len(node.attributes):
            copies = [type(a).FromString(a.SerializeToString()) for a in remaining]
            del node.attributes[:]
            node.attributes.extend(copies)


def forget_slots(meta: meta_graph_pb2.MetaGraphDef, variables: Collection[int]) -> None:
    """Drops optimizer slots of variables, by the variables' numbers.

    A loader makes slots in the shape of their variables, whatever it restores then.
    """
    for node in meta.object_graph_def.nodes:
        remaining = [s for s in node.slot_variables if s.original_variable_node_id not in variables]
        if len(remaining) < len(node.slot_variables):
            copies = [type(s).FromString(s.SerializeToString()) for s in remaining]
            del node.slot_variables[:]
            node.slot_variables.extend(copies)


def add_initializers(
    meta: meta_graph_pb2.MetaGraphDef,
    tables: Sequence[FileTable],
    numbers: Mapping[str, int],
    first: int,
) -> None:
    """Adds the objects by which a loader of TensorFlow 2 gives variables their tables.

    Args:
        meta: the model, the files of tables among its assets.
        tables: those of the variables.
        numbers: of these, by their checkpoint keys.
        first: how many tables are in files already.
    """
    objects = meta.object_graph_def
    assets = {asset.filename: number for number, asset in enumerate(meta.asset_file_def)}
    for index, table in enumerate(tables):
        if table.key not in numbers:
            continue
        function = _function(_FUNCTION.format(first + index), table)
        meta.graph_def.library.function.append(function)
        asset = len(objects.nodes)
        objects.nodes.add().asset.asset_file_def_index = assets[str(table.file)]
        objects.nodes.add().bare_concrete_function.concrete_function_name = function.signature.name
        # Nothing refers to it: what a checkpoint restores are the objects that the root leads to.
        initializer = objects.nodes.add()
        initializer.resource.SetInParent()
        initializer.children.add(node_id=asset + 1, local_name=_INITIALIZE)
        saved = objects.concrete_functions[function.signature.name]
        saved.bound_inputs.extend([asset, numbers[table.key]])
        saved.canonicalized_input_signature.CopyFrom(_structure((), {}))
        saved.output_signature.none_value.SetInParent()


def _structure(*values: Any) -> Any:
    from fusion.runtime.tensorflow.private import nested_structure_coder

    return nested_structure_coder.encode_structure(values)


def _function(name: str, table: FileTable) -> function_pb2.FunctionDef:
    """A function (path, handle) that assigns a variable the table of a file."""
    definition = function_pb2.FunctionDef()
    signature = definition.signature
    signature.name, signature.is_stateful = name, True
    signature.input_arg.add(name="path", type=types_pb2.DT_STRING)
    signature.input_arg.add(name="handle", type=types_pb2.DT_RESOURCE)
    signature.control_output.append("assign")
    definition.control_ret["assign"] = "assign"
    read = definition.node_def.add(name="read", input=["path"])
    table.set_read(read)
    assign = definition.node_def.add(
        name="assign", op="AssignVariableOp", input=["handle", "read:table:0"]
    )
    assign.attr["dtype"].type = table.dtype
    if table.is_restored:
        release(definition.node_def.add(name="release", input=["handle"]), assign)
    return definition
