"""Stores the tables of a model as its rewrite requests: packed, in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.saved_model.errors import ModelError, graph_errors
from fusion.saved_model.model.meta_graph import update_op_list
from fusion.saved_model.model.source import SourceModel, model_files
from fusion.saved_model.rewriting.embedding_variables import keyed_tables_of
from fusion.saved_model.rewriting.options import RewriteOptions
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.initial import reads_of_files
from fusion.saved_model.table_files.keep import (
    VARIABLES,
    find_tables,
    keep_in_files,
    share_files,
    variable_numbers,
)
from fusion.saved_model.table_files.keyed import find_keyed
from fusion.saved_model.table_files.packed import FLOAT32, PackedTable, pack_model
from fusion.saved_model.table_files.tensor_bundle import Bundle, index_file, read_bundle


def store_tables(
    source: SourceModel,
    proto: saved_model_pb2.SavedModel,
    options: RewriteOptions,
    scratch: Path,
) -> tuple[Bundle | None, Sequence[PackedTable], Sequence[FileTable]]:
    """Makes a model read packed tables, and tables in files.

    Args:
        source: where the model is from.
        proto: the model, which is changed.
        options: how it is rewritten.
        scratch: a folder for packed tables, which has to stay until the result has been written.

    Returns:
        Its variables, None if they are those of the source; packed tables; tables in files.

    Raises:
        ModelError: it cannot.
    """
    nothing = None, (), ()
    if not options.changes_tables:
        return nothing
    if source.is_frozen:
        raise ModelError(
            f"{source.path}: a frozen graph has no variables that could be stored otherwise: "
            "rewrite the SavedModel that it is from"
        )
    if len(proto.meta_graphs) > 1:
        raise ModelError(
            f"{source.path}: {len(proto.meta_graphs)} graphs share its variables, which cannot be "
            "stored otherwise then: export the one that serves alone"
        )
    if not index_file(source.path / VARIABLES).is_file():
        return nothing
    (meta,), plain = proto.meta_graphs, read_bundle(source.path / VARIABLES)
    with graph_errors(source.path):
        others = () if options.table_dtypes().is_plain else tuple(_unpacked(source))
        bundle, packed = pack_model(meta, plain, options.table_dtypes(), scratch, others)
        tables = _move_to_files(source, meta, bundle, options) if options.has_table_files else []
        if bundle is plain and not tables:
            return None, packed, ()
        update_op_list(meta)
    return bundle, packed, tables


def _unpacked(source: SourceModel) -> Iterator[PackedTable]:
    """Yields the tables of a model that are no plain variables, and stay float32."""
    (meta,) = source.meta_graphs
    keyed = keyed_tables_of(source)
    for table in keyed:
        size = table.rows * table.dimension * tf.as_dtype(table.dtype).size
        why = "it is an embedding variable"
        yield PackedTable(table.name, FLOAT32, table.rows, table.dimension, size, refusal=why)
    names = {table.name for table in keyed}
    for name, read in reads_of_files(meta).items():
        if name not in names and read.attr["T"].type == types_pb2.DT_FLOAT:
            rows, width = read.attr["rows"].i, read.attr["width"].i
            why = "it is a file already: rewrite the model that this one is from"
            yield PackedTable(name, FLOAT32, rows, width, 4 * rows * width, refusal=why)


def _move_to_files(
    source: SourceModel,
    meta: meta_graph_pb2.MetaGraphDef,
    bundle: Bundle,
    options: RewriteOptions,
) -> list[FileTable]:
    """Makes a model read its tables from files; returns these."""
    in_memory = options.tables == "memory"
    files = model_files(source.path).files
    used = {PurePosixPath(*file.parts[1:]) for file in files if file.parts[0] == "assets"}
    min_bytes, numbers = options.least_table_bytes, variable_numbers(meta, bundle)
    plain = find_tables(meta, bundle, min_bytes, in_memory=in_memory, used=used)
    tables = share_files(bundle, plain)
    used.update(table.file for table in tables)
    tables += find_keyed(meta, bundle, numbers, min_bytes, in_memory=in_memory, used=used)
    if tables:
        keep_in_files(meta, bundle, tables)
    return tables
