"""`serve_from_store`: the lookups of a split model with their rows from a table store.

variable -> gather(ids)      becomes  TableStoreGather(ids), one for all tables
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.ops.registered import DEVICES
from fusion.passes.gather_lookups import GatherLookups
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.networks import first_iteration
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.running.imported import imported_graph
from fusion.runtime.tensorflow.private import tensor_util
from fusion.saved_model.errors import ModelError, graph_errors
from fusion.saved_model.flat import (
    inside_control_flow,
    reachable,
    signature_nodes,
    tensor_names,
)
from fusion.saved_model.model.copies import copy_file
from fusion.saved_model.model.meta_graph import node_name
from fusion.saved_model.model.source import MANIFEST_FILE, MODEL_FILE, read_saved_model
from fusion.saved_model.model.staging import check_destination, staged_directory, write_file
from fusion.saved_model.split.folder import LOOKUP, TABLES, is_split
from fusion.saved_model.split.join import tables_in_files
from fusion.saved_model.split.model import Origin, assemble
from fusion.saved_model.split.parts import SCOPE, Part, shape_proto
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.keep import VARIABLES, merge_bundles
from fusion.saved_model.table_files.saver import restored_variables
from fusion.saved_model.table_files.tensor_bundle import index_file, read_bundle
from fusion.schema.names import TABLE_STORE_GATHER
from fusion.stores.config import TableConfig, table_name

_GATHERS = ("ResourceGather", "GatherV2")

#: Whose values float32 has, too, as the files of tables do.
_EXACT = (types_pb2.DT_FLOAT, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16)


def serve_from_store(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    store: str = "default",
    model: str = "",
) -> None:
    """Writes the lookups of a split model as a SavedModel whose rows come from a table store.

    It has the signatures of `src/lookup`. Its user runs `import fusion` before it is loaded, and
    opens a `fusion.tables.TableStore` under that name before it runs, whose tables have the names
    of the folders in `src/tables`, or those that HPS gives tables of several models: `split_tables`
    gives them. All rows that a signature needs are fetched together. With the rows of these folders
    results are those of `src/lookup`, to the bit; ids that no table has are no error here: they
    have the default value.

    Args:
        src: what `split_saved_model` has made.
        dst: the directory to create.
        store: the name of the store.
        model: the tables are called `MODEL.TABLE` there; "": `TABLE`.

    Raises:
        ModelError: `src` is something else, a table is float64, or is needed as a whole, or `dst`
            cannot be written. No file is created.
    """
    folder = Path(os.path.abspath(src))
    facts = _facts(folder)
    destination = check_destination(folder, dst)
    lookup = read_saved_model(folder / LOOKUP)
    with graph_errors(folder):
        meta = _served(folder, lookup.meta_graphs[0], facts, _Store(store, model))
    with staged_directory(destination) as staging:
        for asset in meta.asset_file_def:
            target = staging / "assets" / asset.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(lookup.path / "assets" / asset.filename, target)
        if meta.HasField("saver_def") and index_file(lookup.path / VARIABLES).is_file():
            merge_bundles([read_bundle(lookup.path / VARIABLES)], staging / VARIABLES)
        proto = saved_model_pb2.SavedModel(saved_model_schema_version=1)
        proto.meta_graphs.add().CopyFrom(meta)
        write_file(staging / MODEL_FILE, proto.SerializeToString(deterministic=True))


def split_tables(
    src: str | os.PathLike[str], model: str = "", **options: Any
) -> tuple[TableConfig, ...]:
    """Returns the tables of a split model, as a `fusion.tables.StoreConfig` has them.

    Args:
        src: what `split_saved_model` has made.
        model: they are called `MODEL.TABLE`; "": `TABLE`.
        **options: of each `TableConfig`.

    Raises:
        ModelError: `src` is something else.
    """
    folder = Path(os.path.abspath(src))
    return tuple(
        TableConfig(
            table_name(model, table["name"]),
            table["dimension"],
            str(folder / TABLES / table["name"]),
            **options,
        )
        for table in _facts(folder)
    )


def _facts(folder: Path) -> list[dict[str, Any]]:
    """The tables in the manifest of a split model."""
    if not is_split(folder):
        raise ModelError(f"{folder}: not what `fusion split` has made: it has no {MANIFEST_FILE}")
    manifest = folder / MANIFEST_FILE
    try:
        tables: list[dict[str, Any]] = json.loads(manifest.read_text())["tables"]
        named = all(isinstance(table["name"], str) for table in tables)
        if named and all(isinstance(table["dimension"], int) for table in tables):
            return tables
    except (KeyError, TypeError, ValueError):
        pass
    raise ModelError(f"{manifest}: damaged: it does not list the names and dimensions of tables")


@dataclass(frozen=True)
class _Store:
    """The store that has the rows.

    Attributes:
        name: its own.
        model: what its tables are called after.
    """

    name: str
    model: str


@dataclass(frozen=True)
class _Gather:
    """A gather of rows of a table.

    Attributes:
        node: its name.
        ids: its input.
        ids_dtype: the DataType of that.
        table: the table.
        group: gathers of one group can be one op.
    """

    node: str
    ids: str
    ids_dtype: int
    table: FileTable
    group: tuple[Any, ...]


def _served(
    folder: Path,
    lookup: meta_graph_pb2.MetaGraphDef,
    facts: Iterable[Mapping[str, Any]],
    store: _Store,
) -> meta_graph_pb2.MetaGraphDef:
    """The model whose rows come from a store."""
    named = {fact["name"] for fact in facts}
    tables = {table.handle: table for table in tables_in_files(lookup)}
    for table in tables.values():
        if table.file.name not in named or table.dtype not in _EXACT:
            why = "is float64, which a store does not support"
            if table.file.name in named:
                raise ModelError(f"{folder}: table {table.file.name} {why}")
            raise ModelError(f"{folder}: {MANIFEST_FILE} has no table {table.file.name}")
    outputs = frozenset(signature_nodes(lookup))
    before = reachable(lookup.graph_def, outputs)
    graph = graph_pb2.GraphDef()
    graph.CopyFrom(GatherLookups(outputs, devices=DEVICES).apply(before).graph_def)
    view = GraphView(graph.node, OpSignatures(graph.library.function), outputs)
    gathers = list(_gathers(view, graph, lookup.signature_def, tables))
    _replace(graph, gathers, _ranks(graph, gathers), store)
    _replace_shapes(view, graph, tables)
    signatures = dict(lookup.signature_def.items())
    for name in [name for name in signatures if name.startswith("__")]:
        del signatures[name]
    graph = reachable(graph, outputs)
    _check_handles(folder, graph, tables)
    keys = {one.handle: one.key for one in restored_variables(lookup)}
    return assemble(Origin(lookup, lookup.graph_def, keys), Part(graph, signatures), ())


def _gathers(
    view: GraphView,
    graph: graph_pb2.GraphDef,
    signatures: Mapping[str, meta_graph_pb2.SignatureDef],
    tables: Mapping[str, FileTable],
) -> Iterator[_Gather]:
    """Yields the gathers of rows of tables."""
    gathers: dict[str, FileTable] = {}
    for name, node in view.nodes.items():
        if node.op in _GATHERS and (table := _table_of(view, name, tables)) is not None:
            gathers[name] = table
    levels, inside = _levels(graph, gathers), inside_control_flow(graph)
    reached = {
        name: {
            node.name
            for node in reachable(
                graph,
                [node_name(t) for one in signature.outputs.values() for t in tensor_names(one)],
            ).node
        }
        for name, signature in signatures.items()
    }
    for name, table in gathers.items():
        users = tuple(sorted(user for user, nodes in reached.items() if name in nodes))
        group = (users, levels[name], name if name in inside else "")
        ids, dtype = view.nodes[name].input[1], view.nodes[name].attr["Tindices"].type
        yield _Gather(name, ids, dtype, table, group)


def _table_of(view: GraphView, name: str, tables: Mapping[str, FileTable]) -> FileTable | None:
    """The table that a node gathers rows of, None if it does something else."""
    source = view.inputs(name)[0]
    if view.op(name) == "GatherV2":
        read = view.resolve(source).node
        if view.op(read) != "ReadVariableOp" or not is_row_gather(Node(view, name)):
            return None
        source = view.inputs(read)[0]
    elif view.nodes[name].attr["batch_dims"].i:
        return None
    return tables.get(view.origin(source).node)


def _levels(graph: graph_pb2.GraphDef, gathers: Mapping[str, object]) -> dict[str, int]:
    """The number of gathers in a chain before each."""
    order, levels = first_iteration(graph.node), dict[str, int]()
    for name in nx.topological_sort(order):
        before = order.predecessors(name)
        levels[name] = max((levels[one] + (one in gathers) for one in before), default=0)
    return levels


def _ranks(graph: graph_pb2.GraphDef, gathers: Iterable[_Gather]) -> dict[str, int | None]:
    """The rank of the ids of each gather, None if it is not known."""
    imported = imported_graph(graph)
    ranks = {}
    for gather in gathers:
        node, _, index = gather.ids.partition(":")
        shape = imported.get_operation_by_name(node).outputs[int(index or 0)].shape
        ranks[gather.node] = shape.rank
    return ranks


def _replace(
    graph: graph_pb2.GraphDef,
    gathers: Iterable[_Gather],
    ranks: Mapping[str, int | None],
    store: _Store,
) -> None:
    """Puts ops of a store in the place of gathers."""
    groups: dict[tuple[Any, ...], list[_Gather]] = {}
    for gather in gathers:
        groups.setdefault(gather.group, []).append(gather)
    nodes = {node.name: node for node in graph.node}
    for number, group in enumerate(groups.values()):
        op = graph.node.add(name=f"{SCOPE}/store/{number}", op=TABLE_STORE_GATHER)
        op.attr["num_tables"].i, op.attr["store"].s = len(group), store.name.encode()
        names = [table_name(store.model, one.table.file.name) for one in group]
        op.attr["tables"].list.s.extend(name.encode() for name in names)
        op.attr["dims"].list.i.extend(one.table.width for one in group)
        for index, one in enumerate(group):
            op.input.append(_wide(graph, one, f"{op.name}/keys_{index}"))
            rows = f"{op.name}:{index}" if index else op.name
            rows = _cast(graph, one, f"{op.name}/rows_{index}", rows)
            node = nodes[one.node]
            waits = [text for text in node.input if text.startswith("^")]
            node.ClearField("attr")
            node.op, node.input[:] = "Identity", [rows, *waits]
            node.attr["T"].type = one.table.dtype
            rank = ranks[one.node]
            if rank is not None:
                node.op = "EnsureShape"
                node.attr["shape"].shape.CopyFrom(shape_proto((*[None] * rank, one.table.width)))


def _replace_shapes(
    view: GraphView, graph: graph_pb2.GraphDef, tables: Mapping[str, FileTable]
) -> None:
    """Makes the shapes of tables constants: Keras 3 adds numbers of rows to negative ids."""
    for node in graph.node:
        handle = view.read_handle(view.inputs(node.name)[0]) if node.op == "Shape" else None
        table = None if handle is None else tables.get(view.origin(handle).node)
        if table is not None:
            dtype = node.attr["out_type"].type or types_pb2.DT_INT32
            node.op, node.input[:] = "Const", [text for text in node.input if text.startswith("^")]
            node.ClearField("attr")
            node.attr["dtype"].type = dtype
            shape = tensor_util.make_tensor_proto([table.rows, table.width], dtype)
            node.attr["value"].tensor.CopyFrom(shape)


def _wide(graph: graph_pb2.GraphDef, gather: _Gather, name: str) -> str:
    """The ids as int64."""
    if gather.ids_dtype == types_pb2.DT_INT64:
        return gather.ids
    cast = graph.node.add(name=name, op="Cast", input=[gather.ids])
    cast.attr["SrcT"].type, cast.attr["DstT"].type = gather.ids_dtype, types_pb2.DT_INT64
    return cast.name


def _cast(graph: graph_pb2.GraphDef, gather: _Gather, name: str, rows: str) -> str:
    """Rows of the table's dtype."""
    if gather.table.dtype == types_pb2.DT_FLOAT:
        return rows
    cast = graph.node.add(name=name, op="Cast", input=[rows])
    cast.attr["SrcT"].type, cast.attr["DstT"].type = types_pb2.DT_FLOAT, gather.table.dtype
    return cast.name


def _check_handles(
    folder: Path, graph: graph_pb2.GraphDef, tables: Mapping[str, FileTable]
) -> None:
    """Refuses a graph that reads a table in another way."""
    view = GraphView(graph.node, OpSignatures(graph.library.function))
    for node in graph.node:
        if node.op == "Identity":  # of a handle, unread: an inlined call leaves it
            continue
        for source in view.inputs(node.name):
            table = tables.get(view.origin(source).node)
            if table is not None:
                raise ModelError(
                    f"{folder}: table {table.file.name} cannot be in a store: {node.name} "
                    f"({node.op}) needs all of it"
                )
