"""`join_saved_model`: one model from the two that it was split into; and their comparison."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.saved_model.errors import ModelError, graph_errors
from fusion.saved_model.flat import add_functions, reachable, signature_nodes, tensor_names
from fusion.saved_model.model.copies import copy_file, link_file
from fusion.saved_model.model.meta_graph import node_name
from fusion.saved_model.model.source import MANIFEST_FILE, MODEL_FILE, SourceModel, read_saved_model
from fusion.saved_model.model.staging import check_destination, staged_directory, write_file
from fusion.saved_model.split.folder import DENSE, LOOKUP, is_split
from fusion.saved_model.split.model import Origin, assemble
from fusion.saved_model.split.parts import FLAT, SCOPE, Part
from fusion.saved_model.table_files.file_table import SCOPE as TABLE_SCOPE
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.initial import count_reads, init_op
from fusion.saved_model.table_files.keep import VARIABLES, merge_bundles, total_bytes
from fusion.saved_model.table_files.saver import restored_variables
from fusion.saved_model.table_files.tensor_bundle import index_file, read_bundle
from fusion.saved_model.verify import Verification, compare_models


def join_saved_model(
    src: str | os.PathLike[str], dst: str | os.PathLike[str], link: bool = False
) -> None:
    """Writes one SavedModel of the lookups and the dense model that `split_saved_model` has made.

    It has the signatures of the model that was split, and reads its tables from files.

    Args:
        src: what `split_saved_model` has made, or the same with other tables of the same sizes.
        dst: the directory to create.
        link: whether to hard-link files instead of copying them, where that is possible.

    Raises:
        ModelError: `src` is something else, its models do not go together, or `dst` cannot be
            written. No file is created.
    """
    folder = Path(os.path.abspath(src))
    if not is_split(folder):
        raise ModelError(f"{src}: not what `fusion split` has made: it has no {MANIFEST_FILE}")
    destination = check_destination(folder, dst)
    with staged_directory(destination) as staging:
        write_joined(folder, staging, link_file if link else copy_file)


def write_joined(folder: Path, model: Path, place: Callable[[Path, Path], object]) -> None:
    """Writes the model that both parts of a split one are.

    Args:
        folder: the split model.
        model: an empty directory.
        place: (file, new file), how the files of assets are brought there.

    Raises:
        ModelError: the parts cannot be read, or do not go together.
        OSError: a file cannot be written.
    """
    lookup, dense = (read_saved_model(folder / name) for name in (LOOKUP, DENSE))
    with graph_errors(folder):
        meta = _joined(folder, lookup.meta_graphs[0], dense.meta_graphs[0])
    for part in (lookup, dense):
        _check_sizes(part)
        for asset in part.meta_graphs[0].asset_file_def:
            target = model / "assets" / asset.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                place(part.path / "assets" / asset.filename, target)
    bundles = [
        read_bundle(part.path / VARIABLES)
        for part in (lookup, dense)
        if index_file(part.path / VARIABLES).is_file()
    ]
    if bundles:
        merge_bundles(bundles, model / VARIABLES)
    proto = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    proto.meta_graphs.add().CopyFrom(meta)
    write_file(model / MODEL_FILE, proto.SerializeToString(deterministic=True))


def _check_sizes(part: SourceModel) -> None:
    """Checks files of tables, which may be others than those that were written."""
    for table in tables_in_files(part.meta_graphs[0]):
        file, size = part.path / "assets" / table.file, total_bytes([table])
        if file.is_file() and file.stat().st_size != size:
            raise ModelError(
                f"{file} has {file.stat().st_size} bytes, but a table of {table.rows} rows of "
                f"{table.width} elements has {size}: only one of that size can take its place"
            )


def _joined(
    src: str | os.PathLike[str],
    lookup: meta_graph_pb2.MetaGraphDef,
    dense: meta_graph_pb2.MetaGraphDef,
) -> meta_graph_pb2.MetaGraphDef:
    """The model of both; nodes of the same name are equal, as they are from one graph."""
    consumer, producer = (reachable(m.graph_def, signature_nodes(m)) for m in (dense, lookup))
    inputs = {f"{SCOPE}/{name}" for s in dense.signature_def.values() for name in s.inputs}
    embeddings = inputs & {node.name for node in consumer.node}
    renamed = _own_names(producer, consumer, embeddings)
    _rename(producer, renamed)
    known = {node.name for node in producer.node}
    graph = graph_pb2.GraphDef(versions=consumer.versions, library=consumer.library)
    add_functions(graph, producer)
    graph.node.extend(producer.node)
    graph.node.extend(node for node in consumer.node if node.name not in known)
    signatures = {}
    for name, signature in dense.signature_def.items():
        if name == FLAT and FLAT not in lookup.signature_def:
            continue
        joined = meta_graph_pb2.SignatureDef(method_name=signature.method_name)
        for key, info in signature.outputs.items():
            joined.outputs[key].CopyFrom(info)
        own = lookup.signature_def.get(name)
        for one in filter(None, (own, signature)):
            for key, info in one.inputs.items():
                is_embedding = all(node_name(text) in embeddings for text in tensor_names(info))
                if one is own or not is_embedding:
                    joined.inputs[key].CopyFrom(info)
        inputs = {node_name(t) for i in signature.inputs.values() for t in tensor_names(i)}
        missing = [node.removeprefix(f"{SCOPE}/") for node in sorted((inputs & embeddings) - known)]
        if missing:
            raise ModelError(f"{src}: its lookups do not give {missing[0]!r} of signature {name!r}")
        signatures[name] = joined
    needed = meta_graph_pb2.MetaGraphDef()
    for name, signature in signatures.items():
        needed.signature_def[name].CopyFrom(signature)
    part = Part(reachable(graph, signature_nodes(needed)), signatures)
    return assemble(_origin(lookup, dense), part, tables_in_files(lookup))


def _own_names(
    producer: graph_pb2.GraphDef, consumer: graph_pb2.GraphDef, embeddings: set[str]
) -> dict[str, str]:
    """New names of the lookups' nodes whose names others have in the dense model."""
    nodes = {node.name: node for node in consumer.node}
    return {
        node.name: f"{SCOPE}/{LOOKUP}/{node.name}"
        for node in producer.node
        if node.name in nodes and node.name not in embeddings and node != nodes[node.name]
        if node.op not in ("Placeholder", "VarHandleOp")
    }


def _rename(graph: graph_pb2.GraphDef, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        node.name = renamed.get(node.name, node.name)
        for index, text in enumerate(node.input):
            if node_name(text) in renamed:
                before, name, after = text.partition(node_name(text))
                node.input[index] = f"{before}{renamed[name]}{after}"


def _origin(lookup: meta_graph_pb2.MetaGraphDef, dense: meta_graph_pb2.MetaGraphDef) -> Origin:
    """The origin of the initializers and variables of both."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.meta_info_def.CopyFrom(dense.meta_info_def)
    branches: dict[str, None] = {}
    graph = graph_pb2.GraphDef(versions=dense.graph_def.versions)
    known: set[str] = set()
    for part in (lookup, dense):
        add_functions(graph, part.graph_def)
        graph.node.extend(node for node in part.graph_def.node if node.name not in known)
        known.update(node.name for node in part.graph_def.node)
        name = init_op(part)
        for node in part.graph_def.node:
            if node.name == name:
                branches.update(dict.fromkeys(map(node_name, node.input)))
        for asset in part.asset_file_def:
            if not asset.tensor_info.name.startswith(f"{TABLE_SCOPE}/"):
                meta.asset_file_def.add().CopyFrom(asset)
    own = [f"^{name}" for name in branches if not name.startswith(f"{TABLE_SCOPE}/")]
    graph.node.add(name=f"{SCOPE}/init", op="NoOp", input=own)
    meta.collection_def["saved_model_main_op"].node_list.value.append(f"{SCOPE}/init")
    keys = {one.handle: one.key for part in (lookup, dense) for one in restored_variables(part)}
    return Origin(meta, graph, keys)


def tables_in_files(lookup: meta_graph_pb2.MetaGraphDef) -> list[FileTable]:
    """Returns the tables that a model reads from files."""
    nodes = {node.name: node for node in lookup.graph_def.node}
    files = {node_name(a.tensor_info.name): a.filename for a in lookup.asset_file_def}
    tables = []
    for index in range(count_reads(lookup)):
        read = nodes[f"{FileTable.scope(index)}/read"]
        handle = node_name(nodes[f"{FileTable.scope(index)}/assign"].input[0])
        path = PurePosixPath(files[node_name(read.input[0])])
        rows, width = read.attr["rows"].i, read.attr["width"].i
        dtype, in_memory = read.attr["T"].type, read.attr["in_memory"].b
        tables.append(FileTable("", handle, handle, rows, width, dtype, path, in_memory))
    return tables


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str], **options: Any) -> Verification:
    """As `compare_models`, also of split models: lookups, then the dense model.

    Args:
        a, b: directories of SavedModels, or what `split_saved_model` has made.
        options: see `compare_models`.
    """
    with _as_one(a) as first, _as_one(b) as second:
        return compare_models(first, second, **options)


@contextmanager
def _as_one(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Yields a model, or of a split one both parts as one, with links to its files."""
    if not is_split(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fusion-joined-") as name:
        write_joined(Path(os.path.abspath(path)), Path(name), os.symlink)
        yield name
