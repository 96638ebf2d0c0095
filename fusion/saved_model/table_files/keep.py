"""Moves tables out of a model's checkpoint into files of their own, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, trackable_object_graph_pb2
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from fusion.passes.analysis.handles import VARIABLE_OPS
from fusion.passes.analysis.variables import Variable, VariableSearch
from fusion.passes.graph.tensor import Tensor, dims
from fusion.passes.graph.view import GraphView
from fusion.saved_model.errors import ModelError
from fusion.saved_model.model.copies import copy_range, same_range
from fusion.saved_model.model.meta_graph import bound_arguments
from fusion.saved_model.table_files.file_table import FileTable, file_name
from fusion.saved_model.table_files.initial import add_reads, count_reads, set_mapped_bytes
from fusion.saved_model.table_files.keyed import KeyedFile, forget_sizes, without_keys, write_keys
from fusion.saved_model.table_files.objects import add_initializers, forget_values, variables_by_key
from fusion.saved_model.table_files.saver import leave_out, restored_variables
from fusion.saved_model.table_files.tensor_bundle import (
    Bundle,
    data_file,
    string_entry,
    strings_of,
    write_index,
)
from fusion.schema.attributes import TABLE_TYPES
from fusion.schema.names import GROUPED, GROUPED_GATHER, READ_TABLES, SINGLE

#: The bundle of a model's variables.
VARIABLES = Path("variables", "variables")

_OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"
#: What reads rows of values.
_READERS = ("GatherV2", "Gather", SINGLE, GROUPED)


def find_tables(
    meta: meta_graph_pb2.MetaGraphDef,
    bundle: Bundle,
    min_bytes: int,
    *,
    in_memory: bool,
    used: Collection[PurePosixPath] = (),
) -> list[FileTable]:
    """Returns the variables of a model that can be files.

    These are matrices of floats, saved in one piece, of which the model reads rows. Slots of an
    optimizer are none: it creates them again when the model is loaded, after the others.

    Args:
        meta: the model.
        bundle: its variables.
        min_bytes: what is smaller stays where it is.
        in_memory: whether the files are read when the model is loaded, not mapped.
        used: files that it has among its assets.
    """
    graph, tables = meta.graph_def, list[FileTable]()
    handles = {node.name: node for node in graph.node if node.op == "VarHandleOp"}
    restored = {one.handle: one for one in restored_variables(meta) if not one.part}
    numbers = variable_numbers(meta, bundle)
    for handle in _read_by_rows(meta, bundle, {one.key: name for name, one in restored.items()}):
        node, one = handles.get(handle), restored.get(handle)
        if one is not None and meta.object_graph_def.nodes and one.key not in numbers:
            continue
        entry = bundle.entries.get(one.key.encode()) if one is not None else None
        if node is None or one is None or entry is None or entry.slices:
            continue
        shape = tuple(dim.size for dim in entry.shape.dim)
        is_same = node.attr["shape"].shape.unknown_rank or dims(node.attr["shape"].shape) == shape
        is_same &= node.attr["dtype"].type == entry.dtype
        if not is_same or len(shape) != 2 or entry.dtype not in TABLE_TYPES:
            continue
        if entry.size < max(min_bytes, 1):
            continue
        rows, width = shape
        name = _name(meta, numbers.get(one.key), node)
        file = file_name(name, {*used, *(table.file for table in tables)})
        tables.append(FileTable(one.key, handle, name, rows, width, entry.dtype, file, in_memory))
    return tables


def _name(meta: meta_graph_pb2.MetaGraphDef, number: int | None, node: node_def_pb2.NodeDef) -> str:
    """Returns the name of a variable for people: its object's, where the model has objects.

    Nodes of exports of Keras have other names: "users/embeddings_1" and "Variable_4" for one table.

    Args:
        meta: the model.
        number: of the variable among its objects.
        node: the node of its handle.
    """
    name = "" if number is None else meta.object_graph_def.nodes[number].variable.name
    return name or node.attr["shared_name"].s.decode(errors="replace") or node.name


def _read_by_rows(
    meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle, handles: dict[str, str]
) -> list[str]:
    """Returns the nodes of the handles of variables of which rows are read.

    Args:
        meta: the model.
        bundle: its variables.
        handles: of variables, by their checkpoint keys.
    """
    # Exports of Keras have each variable twice: one for sessions, one for who loads objects. The
    # functions have both, so that they are searched for each.
    library = graph_pb2.GraphDef(library=meta.graph_def.library)
    functions = ["", *(f.signature.name for f in library.library.function)]
    names: dict[str, None] = {}
    for search in (
        VariableSearch(meta.graph_def),
        VariableSearch(library, _bound(meta, bundle, handles)),
    ):
        for function in functions:
            view = search.view(function)
            for tensor in _tables(view):
                variable = search.behind(function, tensor)
                source = view.origin(tensor) if tensor.node in view.nodes else tensor
                if variable is not None:
                    names[variable.name] = None
                elif not function and view.op(source.node) in VARIABLE_OPS:
                    names[source.node] = None
    return list(names)


def _tables(view: GraphView) -> Iterator[Tensor]:
    """Yields the handles of what a graph reads rows of."""
    for name in view.named("ResourceGather"):
        yield view.inputs(name)[0]
    for name in view.named(READ_TABLES):
        yield from view.inputs(name)
    for name in view.named(GROUPED_GATHER):
        yield from view.inputs(name)[: view.int_attr(name, "num_columns")]
    for op in _READERS:
        for name in view.named(op):
            count = view.int_attr(name, "num_columns") if op == GROUPED else 1
            for table in view.inputs(name)[:count]:
                handle = view.read_handle(table)
                if handle is not None:
                    yield handle


def _bound(
    meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle, handles: dict[str, str]
) -> Iterator[tuple[str, str, Variable]]:
    """Yields the variables that arguments of functions are, by the nodes of their handles."""
    numbers = variable_numbers(meta, bundle)
    names = {number: handles[key] for key, number in numbers.items() if key in handles}
    for function, argument, number in bound_arguments(meta):
        if number in names:
            shape = dims(meta.object_graph_def.nodes[number].variable.shape)
            yield function, argument, Variable(names[number], shape)


def variable_numbers(meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle) -> dict[str, int]:
    """Returns the numbers of variables among the objects of a model, by their checkpoint keys."""
    return variables_by_key(meta.object_graph_def, _saved_objects(bundle))


def _saved_objects(bundle: Bundle) -> trackable_object_graph_pb2.TrackableObjectGraph:
    """The objects of a checkpoint; none in one of TensorFlow 1."""
    if _OBJECTS not in bundle.entries:
        return trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        (content,) = strings_of(bundle, _OBJECTS)
        return trackable_object_graph_pb2.TrackableObjectGraph.FromString(content)
    except (DecodeError, ValueError) as error:
        file, _, _ = bundle.data(_OBJECTS)
        raise ModelError(f"{file}: truncated or damaged (its objects do not parse)") from error


def share_files(bundle: Bundle, tables: Sequence[FileTable]) -> list[FileTable]:
    """Returns the tables, with one file for those with the same bytes.

    Raises:
        ModelError: the variables cannot be read.
    """
    result, alike = list[FileTable](), dict[tuple[int, int], list[FileTable]]()
    for table in tables:
        entry = bundle.entries[table.key.encode()]
        others = alike.setdefault((entry.size, entry.crc32c), [])
        place = bundle.data(table.key.encode())
        same = (t for t in others if same_range(*place, *bundle.data(t.key.encode())[:2]))
        first = next(same, table)
        if first is table:
            others.append(table)
        result.append(replace(table, file=first.file))
    return result


def keep_in_files(
    meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle, tables: Sequence[FileTable]
) -> None:
    """Makes a model read its tables from files.

    Args:
        meta: the model, which is changed.
        bundle: its variables.
        tables: of these, at least one.
    """
    numbers = variable_numbers(meta, bundle)
    first = count_reads(meta)
    leave_out(meta, _keys(tables))
    add_reads(meta, tables, first)
    add_initializers(meta, tables, numbers, first)
    forget_sizes(meta, tables, numbers)
    set_mapped_bytes(meta)


def _keys(tables: Sequence[FileTable]) -> set[str]:
    """The checkpoint keys that are dropped when tables are files."""
    return {table.key for table in tables if not isinstance(table, KeyedFile)}


def write_tables(bundle: Bundle, tables: Sequence[FileTable], model: Path) -> None:
    """Writes the files of tables into the folder of a model, and its variables without them.

    Raises:
        ModelError: a source cannot be read.
        OSError: a file cannot be written.
    """
    for table in {table.file: table for table in tables}.values():
        file = model / "assets" / table.file
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "xb") as out:
            if isinstance(table, KeyedFile) and table.is_index:
                write_keys(bundle, table, out)
            else:
                copy_range(*bundle.data(table.key.encode()), out)
            out.flush()
            os.fsync(out.fileno())
    rest = without_keys(bundle, tables)
    write_rest(rest, {key.encode() for key in _keys(tables)}, model / VARIABLES)


def write_rest(bundle: Bundle, dropped: Collection[bytes], prefix: Path) -> None:
    """Writes a bundle without some of its entries, in one data file.

    Raises:
        ModelError: the source cannot be read.
        OSError: a file cannot be written.
    """
    objects = _saved_objects(bundle)
    forget_values(objects, dropped)
    changed = {_OBJECTS: objects.SerializeToString(deterministic=True)}
    sources = {name: bundle for name in bundle.entries if name not in dropped}
    _write_bundle(bundle.header, sources, changed, prefix)


def merge_bundles(bundles: Sequence[Bundle], prefix: Path) -> None:
    """Writes one bundle of several, at least one; of entries of one name, that of the first.

    Raises:
        ModelError: a source cannot be read.
        OSError: a file cannot be written.
    """
    sources: dict[bytes, Bundle] = {}
    for bundle in bundles:
        for name in bundle.entries:
            sources.setdefault(name, bundle)
    _write_bundle(bundles[0].header, sources, {}, prefix)


def _write_bundle(
    header: BundleHeaderProto,
    entries: Mapping[bytes, Bundle],
    changed: Mapping[bytes, bytes],
    prefix: Path,
) -> None:
    """Writes a bundle with one data file.

    Args:
        header: of what kind it is.
        entries: where each entry is from, by its name.
        changed: scalar strings that are others now.
        prefix: of the bundle.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    own, written = BundleHeaderProto(), dict[bytes, BundleEntryProto]()
    own.CopyFrom(header)
    own.num_shards = 1
    with open(data_file(prefix, 0, 1), "xb") as out:
        for name, bundle in sorted(entries.items()):
            entry = written[name] = BundleEntryProto()
            entry.CopyFrom(bundle.entries[name])
            entry.shard_id, entry.offset = 0, out.tell()
            if name in changed:
                out.write(string_entry(entry, changed[name]))
            else:
                copy_range(*bundle.data(name), out)
        out.flush()
        os.fsync(out.fileno())
    write_index(prefix, own, written)


def total_bytes(tables: Sequence[FileTable]) -> int:
    """The bytes of the files of tables."""
    return sum({table.file: table.size for table in tables}.values())
