"""The embedding variables of a SavedModel, by its checkpoint; nothing is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.model.source import SourceModel, read_saved_model
from fusion.saved_model.table_files.initial import reads_of_files
from fusion.schema.names import KEY_ENTRIES
from fusion.tables.keyed_rows import TABLE_TENSORS
from fusion.tables.statistics import TableStatistics

#: Between an object and its tensors in a checkpoint of TensorFlow 2.
_ATTRIBUTES = "/.ATTRIBUTES"


def keyed_tables(path: str | os.PathLike[str]) -> tuple[TableStatistics, ...]:
    """How full the embedding variables of a SavedModel are, by name.

    Raises:
        ModelError: the model or its checkpoint cannot be read.
    """
    return keyed_tables_of(read_saved_model(path))


def keyed_tables_of(source: SourceModel) -> tuple[TableStatistics, ...]:
    """As `keyed_tables`, of a model that was read."""
    checkpoint = source.path / "variables" / "variables"
    if not any(_has_keyed_tables(meta) for meta in source.meta_graphs):
        return ()
    try:
        reader = tf.train.load_checkpoint(str(checkpoint))
        tables = _tables(reader, source.meta_graphs[0])
        return tuple(sorted(tables, key=lambda table: table.name))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{source.path}: its variables cannot be read: {reason_of(error)}"
        ) from error


def _has_keyed_tables(meta: meta_graph_pb2.MetaGraphDef) -> bool:
    functions = (function.node_def for function in meta.graph_def.library.function)
    return any(
        node.op == KEY_ENTRIES for nodes in (meta.graph_def.node, *functions) for node in nodes
    )


def _tables(
    reader: tf.train.CheckpointReader, meta: meta_graph_pb2.MetaGraphDef
) -> Iterator[TableStatistics]:
    in_files = _rows_in_files(meta)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    suffix = f"/{TABLE_TENSORS[0]}"
    for key in shapes:
        prefix = key.removesuffix(suffix)
        parts = [f"{prefix}/{part}" for part in TABLE_TENSORS]
        if prefix == key or any(part not in shapes for part in parts):
            continue
        keys, values = parts[0], parts[-1]
        if len(shapes[values]) != 2:
            continue
        name, capacity = _table(meta, prefix)
        (count,), (rows, dimension) = shapes[keys], shapes[values]
        if name in in_files:  # which have room for their keys alone
            count = rows = capacity = in_files[name]
        yield TableStatistics(name, dimension, dtypes[values].name, count, rows, capacity)


def _rows_in_files(meta: meta_graph_pb2.MetaGraphDef) -> dict[str, int]:
    """Row counts of the tables that a model reads from files, by name."""
    return {name: read.attr["rows"].i for name, read in reads_of_files(meta).items()}


def _table(meta: meta_graph_pb2.MetaGraphDef, prefix: str) -> tuple[str, int | None]:
    """The name and the capacity of a table; None for a capacity that the model does not record."""
    nodes = meta.object_graph_def.nodes
    if not prefix.endswith(_ATTRIBUTES):  # a Saver's: the name of the variable
        named = (n for n in meta.graph_def.node if n.attr["shared_name"].s.decode() == prefix)
        sizes = (n.attr["shape"].shape.dim for n in named if n.op == "VarHandleOp")
        return prefix, next((dims[0].size for dims in sizes if len(dims) == 2), None)
    place = 0
    names = [_plain(name) for name in prefix.removesuffix(_ATTRIBUTES).split("/")]
    for name in [*names, "table"]:
        children = {child.local_name: child.node_id for child in nodes[place].children}
        if name not in children:
            return "/".join(names), None
        place = children[name]
    variable = nodes[place].variable
    dims = variable.shape.dim
    return variable.name or "/".join(names), dims[0].size if len(dims) == 2 else None


def _plain(name: str) -> str:
    """A name of an object, of which a checkpoint escapes the dots and slashes."""
    return re.sub(r"\.[.S]", lambda match: "." if match[0] == ".." else "/", name)
