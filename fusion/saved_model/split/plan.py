"""The plan of a split: the parts of a model, and its tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.tensor import dims
from fusion.passes.targets import Target
from fusion.saved_model.errors import ModelError
from fusion.saved_model.flat import flat_graph, reachable, signature_nodes
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import MANIFEST_FILE
from fusion.saved_model.rewriting.models import rewrite_meta_graph
from fusion.saved_model.split.cuts import Cut, find_cuts, with_names
from fusion.saved_model.split.folder import DENSE, LOOKUP
from fusion.saved_model.split.model import Origin, assemble, variables_of
from fusion.saved_model.split.parts import Part, dense_part, lookup_part
from fusion.saved_model.table_files.file_table import FileTable, file_name
from fusion.saved_model.table_files.initial import assets_of
from fusion.saved_model.table_files.saver import restored_variables
from fusion.saved_model.table_files.tensor_bundle import Bundle
from fusion.schema.names import OP_NAMES, READ_TABLE_FILE

_SPECIAL = ("__saved_model_init_op", "__saved_model_train_op")


class SplitPlan:
    """The graphs, tables and variables of both parts.

    Attributes:
        cuts: its lookups.
        tables: those of these, each in a file of the lookup model.
        dense, lookup: the two models.
        flat: the model without functions.
        was_fused: whether it had ops of this package.
        report: on the columns of the lookup model.
        keys: the checkpoint keys of the variables of each, by folder.
    """

    def __init__(self, model: Path, meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle) -> None:
        """Plans the split of a model.

        Args:
            model: where it is.
            meta: its graph.
            bundle: its variables.

        Raises:
            ModelError: it has ops of this package that cannot become stock ones, or needs variables
                that were saved in parts.
        """
        stock = meta
        if own := used_ops(meta) & {*OP_NAMES}:
            stock = meta_graph_pb2.MetaGraphDef()
            stock.CopyFrom(meta)
            # `fusion join` keeps tables in files, and leaves no record.
            was_rewritten = READ_TABLE_FILE in own or (model / MANIFEST_FILE).is_file()
            rewrite_meta_graph(stock, Target.STOCK, model, was_rewritten=was_rewritten)
        restored = [*restored_variables(meta)]
        keys = {one.handle: one.key for one in restored if not one.part}
        keys = {handle: key for handle, key in keys.items() if key.encode() in bundle.entries}
        graph = flat_graph(stock)
        origin = Origin(stock, graph, keys)
        signatures = {k: s for k, s in meta.signature_def.items() if k not in _SPECIAL}
        inputs = {key for signature in signatures.values() for key in signature.inputs}
        cuts = find_cuts(graph, signature_nodes(stock), inputs)
        assets = {PurePosixPath(asset.filename) for asset in assets_of(stock)}
        tables = {t.handle: t for t in _tables(graph, keys, bundle, cuts, assets)}
        self.cuts = [cut for cut in cuts if all(handle in tables for handle in cut.handles)]
        dense = dense_part(graph, signatures, self.cuts)
        # Tables are often called like the inputs that only their lookups need.
        needed = {key for signature in dense.signatures.values() for key in signature.inputs}
        self.cuts = with_names(self.cuts, inputs & needed)
        dense = dense_part(graph, signatures, self.cuts)
        used = {key for signature in dense.signatures.values() for key in signature.inputs}
        self.cuts = [cut for cut in self.cuts if cut.name in used]
        lookup = lookup_part(graph, signatures, dense.signatures, self.cuts)
        in_parts = {one.handle for one in restored if one.part}
        for node in (*dense.graph.node, *lookup.graph.node):
            if node.name in in_parts:
                raise ModelError(
                    f"{model}: cannot be split: variable {node.name} was saved in parts, as by a "
                    "partitioner, and is needed as it is"
                )
        handles = dict.fromkeys(handle for cut in self.cuts for handle in cut.handles)
        self.tables = [tables[handle] for handle in handles]
        whole = graph if stock is meta else flat_graph(meta)
        part = Part(reachable(whole, signature_nodes(meta)), signatures)
        self.flat = assemble(Origin(meta, whole, keys), part, ())
        self.was_fused = stock is not meta
        self.dense = assemble(origin, dense, ())
        self.lookup = assemble(origin, lookup, self.tables)
        result = rewrite_meta_graph(self.lookup, Target.FUSED, LOOKUP, was_rewritten=False)
        self.report = result.report
        self.keys = {
            DENSE: set(variables_of(dense.graph, keys).values()),
            LOOKUP: set(variables_of(lookup.graph, keys).values()) - {t.key for t in self.tables},
        }


def _tables(
    graph: graph_pb2.GraphDef,
    keys: Mapping[str, str],
    bundle: Bundle,
    cuts: Sequence[Cut],
    assets: Collection[PurePosixPath],
) -> Iterator[FileTable]:
    """Yields the tables of lookups that are matrices of floats, saved in one piece."""
    nodes = {node.name: node for node in graph.node}
    used = set(assets)
    for handle in dict.fromkeys(handle for cut in cuts for handle in cut.handles):
        if handle not in keys:
            continue
        entry, node = bundle.entries[keys[handle].encode()], nodes[handle]
        shape = tuple(dim.size for dim in entry.shape.dim)
        if entry.slices or len(shape) != 2 or shape != dims(node.attr["shape"].shape):
            continue
        name = node.attr["shared_name"].s.decode(errors="replace") or handle
        file = file_name(name, used)
        used.add(file)
        yield FileTable(keys[handle], handle, name, *shape, entry.dtype, file)
