"""Embedding variables of a model whose rows, and the index of whose keys, are files.

    AddEmbeddingKeys(table, index, the checkpoint's keys)     stays, without keys
    table, index                                              ReadTableFile(asset) after it

So a model restores what it did, and its checkpoint has no keys. What is in the files has room for
these keys and no others: it is for serving.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.ops.tables.cpu_kernels.layout import KeyIndex, index_bytes
from fusion.saved_model.table_files.file_table import FileTable, file_name
from fusion.saved_model.table_files.key_index import (
    SavedKeys,
    SavedVector,
    count_rows,
    write_key_index,
)
from fusion.saved_model.table_files.saver import restored_keys
from fusion.saved_model.table_files.tensor_bundle import Bundle, empty_entry
from fusion.schema.attributes import TABLE_TYPES
from fusion.schema.names import GROUPED_KEYED, GROUPED_KEYED_PRE, KEYED_GATHER
from fusion.tables.keyed_rows import TABLE_TENSORS

_SHAPES = "_output_shapes"

#: The ops that add keys if they are in training.
_LOOKUPS = frozenset({KEYED_GATHER, GROUPED_KEYED, GROUPED_KEYED_PRE})


@dataclass(frozen=True)
class KeyedFile(FileTable):
    """The rows of an embedding variable, or the index of its keys, in a file.

    Attributes:
        prefix: what the names of the tensors begin with that a checkpoint has of it.
    """

    prefix: str = ""

    @property
    def is_restored(self) -> bool:
        """It had: it was empty then."""
        return True

    @property
    def is_index(self) -> bool:
        """Whether it is the index, whose rows are words."""
        return self.key == f"{self.prefix}/keys"


def find_keyed(
    meta: meta_graph_pb2.MetaGraphDef,
    bundle: Bundle,
    numbers: Mapping[str, int],
    min_bytes: int,
    *,
    in_memory: bool,
    used: Collection[PurePosixPath] = (),
) -> list[KeyedFile]:
    """Returns the files of the embedding variables of a model, two of each.

    Those in partitions have none: their keys are spread when they are restored. Nor has a model any
    of which a lookup trains, and adds keys.

    Args:
        meta: the model.
        bundle: its variables.
        numbers: of tables and indices among its objects, by the checkpoint keys of rows and keys.
        min_bytes: what has smaller rows stays where it is.
        in_memory: whether the files are read when the model is loaded, not mapped.
        used: files that it has among its assets.

    Raises:
        ModelError: the variables cannot be read.
    """
    nodes = {node.name: node for node in meta.graph_def.node if node.op == "VarHandleOp"}
    files = list[KeyedFile]()
    if _trains(meta):
        return files
    for prefix, table, index in dict.fromkeys(restored_keys(meta)):  # savers may do alike
        if table not in nodes or index not in nodes:
            continue
        keys = f"{prefix}/values", f"{prefix}/keys"
        if meta.object_graph_def.nodes and any(key not in numbers for key in keys):
            continue
        shape, dtype = _shape(bundle, prefix), nodes[table].attr["dtype"].type
        size = bundle.entries[keys[0].encode()].size if shape is not None else 0
        if shape is None or dtype not in TABLE_TYPES or size < max(min_bytes, 1):
            continue
        name = nodes[table].attr["shared_name"].s.decode(errors="replace") or table
        words = index_bytes(shape[0]) // 8
        for key, handle, shown, (rows, width), stored_dtype in (
            (keys[0], table, name, shape, dtype),
            (keys[1], index, f"{name}.keys", (words, 1), types_pb2.DT_DOUBLE),
        ):
            file = file_name(shown, {*used, *(one.file for one in files)})
            fields = key, handle, shown, rows, width, stored_dtype, file, in_memory, prefix
            files.append(KeyedFile(*fields))
    return files


def _shape(bundle: Bundle, prefix: str) -> tuple[int, int] | None:
    """The shape of the rows of an embedding variable; None if it is not saved as one is."""
    if any(name not in bundle.entries or bundle.entries[name].slices for name in _names(prefix)):
        return None
    shape = tuple(dim.size for dim in bundle.entries[f"{prefix}/values".encode()].shape.dim)
    if len(shape) != 2 or count_rows(_saved_keys(bundle, prefix)) != shape[0]:
        return None
    return shape[0], shape[1]


def _trains(meta: meta_graph_pb2.MetaGraphDef) -> bool:
    functions = (function.node_def for function in meta.graph_def.library.function)
    return any(
        node.attr["is_training"].b or any(node.attr["is_training"].list.b)
        for node in chain(meta.graph_def.node, *functions)
        if node.op in _LOOKUPS and "is_training" in node.attr  # else it would be there then
    )


def _names(prefix: str) -> list[bytes]:
    return [f"{prefix}/{name}".encode() for name in TABLE_TENSORS]


def _saved_keys(bundle: Bundle, prefix: str) -> SavedKeys:
    vectors = []
    for name, dtype in zip(_names(prefix), ("<i8", "<i4", "<i8"), strict=False):
        file, offset, size = bundle.data(name)
        vectors.append(SavedVector(file, offset, size // np.dtype(dtype).itemsize, dtype))
    return SavedKeys(*vectors)


def write_keys(bundle: Bundle, index: KeyedFile, out: BinaryIO) -> None:
    """Writes the file of an index.

    Args:
        bundle: the variables of the model, with keys.
        index: the index.
        out: an empty file.

    Raises:
        ModelError: the keys cannot be read.
        OSError: the file cannot be written.
    """
    rows = bundle.entries[f"{index.prefix}/values".encode()].shape.dim[0].size
    write_key_index(_saved_keys(bundle, index.prefix), rows, _empty_head(rows), out)


def _empty_head(capacity: int) -> NDArray[np.int64]:
    """The head of an index without keys. Training would fail for lack of room for more."""
    import tensorflow as tf

    from fusion import ops
    from fusion.runtime.tensorflow.private import context

    with context.eager_mode(), tf.device("CPU"):  # whatever the caller is building
        sizes = tf.constant([capacity], tf.int64)
        index = ops.embedding_key_index(capacity=sizes, admission=1, seed=0, waits=False)
        head: NDArray[np.int64] = index[: KeyIndex.SIZE].numpy().view(np.int64)
    return head


def without_keys(bundle: Bundle, tables: Sequence[FileTable]) -> Bundle:
    """Returns the variables without the keys and rows that are in files."""
    gone = {
        name for table in tables if isinstance(table, KeyedFile) for name in _names(table.prefix)
    }
    empty = {name: empty_entry(bundle.entries[name]) for name in gone}
    return replace(bundle, entries={**bundle.entries, **empty})


def forget_sizes(
    meta: meta_graph_pb2.MetaGraphDef, tables: Sequence[FileTable], numbers: Mapping[str, int]
) -> None:
    """Lets variables have any size: empty ones are of their capacity, and files are smaller.

    Args:
        meta: the model.
        tables: those in files.
        numbers: as in `find_keyed`.
    """
    keyed = {table.handle: table for table in tables if isinstance(table, KeyedFile)}
    for node in meta.graph_def.node:
        if node.op == "VarHandleOp" and node.name in keyed:
            _set_any_size(node.attr["shape"].shape, keyed[node.name])
        elif node.op == "ReadVariableOp" and node.input[0] in keyed:
            node.attr.pop(_SHAPES, None)
    for table in keyed.values():
        if table.key in numbers:
            variable = meta.object_graph_def.nodes[numbers[table.key]].variable
            _set_any_size(variable.shape, table)


def _set_any_size(shape: tensor_shape_pb2.TensorShapeProto, table: KeyedFile) -> None:
    shape.Clear()
    if table.is_index:  # a vector, which is a column in its file
        shape.unknown_rank = True
    else:
        shape.dim.add(size=-1)
        shape.dim.add(size=table.width)
