"""How emitted ops come by rows of a table: gathers, clipped rows, and tables that ops read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.analysis.variables import writers, writes_rows
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.fused_columns import list_attr
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import can_read_large, can_share, is_small, placement
from fusion.passes.recognise.lookup import LAYER_ANCHORS
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import LookupSpec, ShardSpec, SparseIds
from fusion.passes.recognise.stock.max_norm import Clip
from fusion.schema.names import READ_TABLES
from fusion.schema.op_history import NEWEST, Release


def gather(
    build: NodeBuilder, spec: LookupSpec, shard: ShardSpec, keys: Tensor, *, last: bool = False
) -> Tensor:
    """Adds the stock gather of rows of a shard, beside it; in the result's place if `last`."""
    if shard.gather:
        node = build.copy("gather", shard.gather)
        build.replace_input(node, 1, keys)
        set_types(node, Tindices=spec.dtype)
    else:
        node = build.node("gather", "GatherV2", shard.device)
        axis = build.constant("axis", np.array(0, np.int32), shard.device)
        build.inputs(node, shard.tensor, keys, axis)
        set_types(node, Tparams=spec.table.dtype, Tindices=spec.dtype, Taxis=types_pb2.DT_INT32)
        set_attrs(node, batch_dims=0)
        _colocate(node, shard.colocation)
    if last:
        build.take_name(node)
    return Tensor(build.add(node))


def copied_clip(build: NodeBuilder, clip: Clip, rows: Tensor) -> Tensor:
    """Copies stock's clipping to other rows."""
    return _moved(build, clip, clip.output.tensor, {clip.rows.tensor: rows})


def _moved(build: NodeBuilder, clip: Clip, tensor: Tensor, done: dict[Tensor, Tensor]) -> Tensor:
    """Copies what of the clipping a tensor is made by; `done` are copies that there are."""
    view = build.edit.view
    source = view.resolve(tensor)
    if source not in done and source.node in clip.nodes:
        operands = [_moved(build, clip, operand, done) for operand in view.inputs(source.node)]
        node = build.copy("clip", source.node)
        for index, operand in enumerate(operands):
            build.replace_input(node, index, operand)
        done[source] = Tensor(build.add(node))
        build.edit.wait(node.name, view.controls(source.node))
    return done.get(source, tensor)


class Reader(NamedTuple):
    """A lookup whose table an op reads itself.

    Attributes:
        lookup: the lookup.
        entries: the tensors that it reads of its entries, without weights.
    """

    lookup: LookupMatch
    entries: Sequence[Tensor]


def share_tables(build: NodeBuilder, readers: Sequence[Reader]) -> list[Tensor]:
    """Returns the tables of lookups: matrices as they are, variables as ReadEmbeddingTables reads.

    That copies nothing, even if rows change meanwhile. One such op is enough for all variables
    that are surely on one device and whose reads wait for the same; each is read once for all
    lookups for which that is the same. A stock read that others need as well stays the only one:
    what changes the variable waits for it alone.
    """
    # That op is for matrices alone.
    vectors = {
        index: _as_matrix(build, reader, read_table(build, reader))
        for index, reader in enumerate(readers)
        if reader.lookup.full_spec.table.shards[0].is_vector
    }
    if vectors:
        rest = [reader for index, reader in enumerate(readers) if index not in vectors]
        tables = iter(share_tables(build, rest))
        return [vectors.get(index) or next(tables) for index in range(len(readers))]
    inside = {name for reader in readers for name in reader.lookup.nodes()}
    reads = [_shared_read(build, reader, inside) for reader in readers]
    missing: dict[tuple[object, ...], dict[tuple[object, ...], VariableRead]] = {}
    for read in reads:
        if read is not None and read.key not in build.edit.shared:
            # Which variables are on one device is known once they are placed.
            together = (read.device, read.waits) if read.device else read.key
            missing.setdefault(together, {})[read.key] = read
    for group in missing.values():
        _add_shared_read(build, list(group.values()))
    for read in reads:
        if read is not None and read.stock:
            build.edit.remove(read.stock, _known(build, read).node)
    return [
        reader.lookup.full_spec.table.shards[0].tensor if read is None else _known(build, read)
        for reader, read in zip(readers, reads, strict=True)
    ]


def _as_matrix(build: NodeBuilder, reader: Reader, vector: Tensor) -> Tensor:
    """Returns a vector as a matrix of one column, which no copy is."""
    shape = build.constant("column", np.array([-1, 1], np.int32))
    types = {"T": reader.lookup.full_spec.table.dtype, "Tshape": types_pb2.DT_INT32}
    return build.shared("table", "Reshape", (vector, shape), types)


def read_table(build: NodeBuilder, reader: Reader) -> Tensor:
    """Returns the table for stock ops: it is a matrix, or a stock read of a variable is emitted."""
    shard = reader.lookup.full_spec.table.shards[0]
    if shard.kind != "resource":
        return shard.tensor
    return Tensor(stock_read(build, _read(build, reader)))


@dataclass(frozen=True)
class VariableRead:
    """The read of a variable.

    Attributes:
        handle: the variable's.
        dtype, shape: of its value.
        device, colocation: where it is.
        waits: the nodes it has to come after.
        stock: the nodes of the stock read in whose place it is.
    """

    handle: Tensor
    dtype: int
    shape: Shape
    device: str
    colocation: tuple[str, ...]
    waits: tuple[str, ...]
    stock: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for reads that one read can replace."""
        return ("read", self.handle, self.dtype, self.device, self.colocation, self.waits)


def stock_read(build: NodeBuilder, read: VariableRead, runtime: Release = NEWEST) -> str:
    """Adds stock's read of a variable's value, once; returns its name.

    After any sparse access a variable is in a mode in which each read copies it; that is switched
    off first, unless a copy costs no more than that, or the TensorFlow release has no op for it.
    """
    if read.key not in build.edit.shared:
        node = build.node("table", "ReadVariableOp", read.device)
        set_types(node, dtype=read.dtype)
        nodes = [node]
        if can_read_large(runtime) and not is_small(read.dtype, read.shape):
            nodes.insert(0, build.node("share_table", "DisableCopyOnRead", read.device))
        for copy in nodes:
            build.inputs(copy, read.handle)
            _colocate(copy, read.colocation)
            build.add(copy)
            build.edit.wait(copy.name, read.waits)
        build.edit.wait(node.name, [copy.name for copy in nodes[:-1]])
        _record_shapes(node, [read.shape])
        build.edit.shared[read.key] = node.name
    return build.edit.shared[read.key]


def _read(build: NodeBuilder, reader: Reader) -> VariableRead:
    """Returns the read of the variable that a lookup gathers from."""
    table = reader.lookup.full_spec.table
    shard, handle = table.shards[0], build.edit.view.resolve(table.shards[0].tensor)
    waits = _waits(build, reader)
    shape = table.shape[:1] if shard.is_vector else table.shape
    return VariableRead(handle, table.dtype, shape, shard.device, shard.colocation, waits)


def _shared_read(build: NodeBuilder, reader: Reader, inside: set[str]) -> VariableRead | None:
    """Returns the read of a lookup's table; None if that is a matrix, or one to others.

    Args:
        inside: the nodes of all lookups that go.
    """
    view, table = build.edit.view, reader.lookup.full_spec.table
    if table.shards[0].kind == "resource":
        return _read(build, reader)
    tensor = table.shards[0].tensor
    node = view.nodes.get(view.resolve(tensor).node)
    if node is None or node.op != "ReadVariableOp" or not can_share(view, table.dtype, node.device):
        return None
    if _task(view, node.name) != _task(view, reader.lookup.anchor):
        # The table travels, and where it comes from fused ops need not be known.
        return None
    ids, is_dense = reader.lookup.full_spec.ids, reader.lookup.full_spec.column.is_dense_sum
    is_of_layer = is_dense or view.op(reader.lookup.anchor) in LAYER_ANCHORS
    if is_of_layer and not (isinstance(ids, SparseIds) and ids.padded):
        # Keras 3's layers read variables whole, also elsewhere, which after any sparse access would
        # copy them: it is left to the program to have some. Sparse ids they look up as columns do.
        source = view.origin(view.inputs(node.name)[0])
        if not any(writes_rows(view, writer) for writer in writers(view, source)):
            return None
    names = (node.name, *view.aliases(tensor))
    users = {use.node for name in names for use in view.uses(name)}
    if not users <= inside.union(names) or not view.preserved.isdisjoint(names):
        return None
    (handle,) = view.inputs(node.name)
    return VariableRead(
        view.resolve(handle),
        table.dtype,
        table.shape,
        node.device,
        tuple(group.decode() for group in list_attr(view, node.name, "_class").s),
        view.controls(node.name),
        names,
    )


def _task(view: GraphView, name: str) -> str:
    """The process that a node is placed in; "" for this one."""
    return placement(view, view.nodes[name].device).rpartition("/")[0]


def _add_shared_read(build: NodeBuilder, reads: Sequence[VariableRead]) -> None:
    first = reads[0]
    node = build.node("tables" if len(reads) > 1 else "table", READ_TABLES, first.device)
    build.inputs(node, *(read.handle for read in reads))
    set_types(node, T=first.dtype)
    set_attrs(node, num_tables=len(reads))
    if len(reads) == 1:
        _colocate(node, first.colocation)
    # No shape function knows what a handle is of.
    _record_shapes(node, [read.shape for read in reads])
    build.add(node)
    build.edit.wait(node.name, first.waits)
    for index, read in enumerate(reads):
        build.edit.shared[read.key] = f"{node.name}:{index}"


def _known(build: NodeBuilder, read: VariableRead) -> Tensor:
    name, _, index = build.edit.shared[read.key].partition(":")
    return Tensor(name, int(index))


def _waits(build: NodeBuilder, reader: Reader) -> tuple[str, ...]:
    """Returns what the read of a table has to come after.

    The stock gather ran after all that its ids needed, which the read no longer waits for by data:
    it still has to come after the effects among that.
    """
    lookup, edit, view = reader.lookup, build.edit, build.edit.view
    weights = lookup.full_spec.weights if lookup.full_spec.column.use_sparse_weights else None
    read = [*reader.entries, *([] if weights is None else [weights])]
    waits = dict.fromkeys(sorted(lookup.control_inputs(view)))
    waits |= dict.fromkeys(name for name in edit.sources(read) if view.has_effect(name))
    return tuple(waits)


def _colocate(node: node_def_pb2.NodeDef, colocation: tuple[str, ...]) -> None:
    if colocation:
        node.attr["_class"].list.s.extend(group.encode() for group in colocation)


def _record_shapes(node: node_def_pb2.NodeDef, shapes: Sequence[Shape]) -> None:
    """Records the outputs' shapes, which are all that some functions know of a variable."""
    for shape in shapes:
        recorded = node.attr["_output_shapes"].list.shape.add()
        for size in shape:
            recorded.dim.add().size = -1 if size is None else size
