"""How emitted ops come by rows of a table: gathers, clipped rows, and tables that ops read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes
from tensorflow.python.framework.device_spec import DeviceSpecV2 as DeviceSpec

from fusion.ops import HOME_TYPE
from fusion.ops.read_tables import SPEC as READ
from fusion.passes.graph_view import Tensor
from fusion.passes.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.recognise import Recognition
from fusion.passes.recognise_clip import Clip
from fusion.passes.spec import LookupSpec, ShardSpec, TableSpec
from fusion.passes.static_shapes import Shape
from fusion.runtime.variable_access import is_shared

_SMALL_BYTES = 1 << 16
"""A copy of so much takes some microseconds."""


def gather(
    build: NodeBuilder, spec: LookupSpec, shard: ShardSpec, keys: Tensor, *, last: bool = False
) -> Tensor:
    """Adds the stock gather of rows of a shard, beside it; in the result's place if `last`."""
    if shard.gather:
        node = build.copy("gather", shard.gather)
        build.replace_input(node, 1, keys)
    else:
        node = build.node("gather", "GatherV2", shard.device)
        axis = build.constant("axis", np.array(0, np.int32), shard.device)
        build.inputs(node, shard.tensor, keys, axis)
        set_types(node, Tparams=spec.table.dtype, Tindices=spec.dtype, Taxis=types_pb2.DT_INT32)
        set_attrs(node, batch_dims=0)
        _put_beside(node, shard.colocation)
    if last:
        build.take_place(node)
    return Tensor(build.add(node))


def copied_clip(build: NodeBuilder, clip: Clip, rows: Tensor) -> Tensor:
    """Copies stock's clipping to other rows."""
    edit, done = build.edit, {clip.rows: rows}
    view = edit.view

    def moved(tensor: Tensor) -> Tensor:
        source = view.resolve(tensor)
        if source not in done and source.node in clip.nodes:
            operands = [moved(operand) for operand in view.inputs(source.node)]
            node = build.copy("clip", source.node)
            for place, operand in enumerate(operands):
                build.replace_input(node, place, operand)
            done[source] = Tensor(build.add(node))
            edit.wait(node.name, view.controls(source.node))
        return done.get(source, tensor)

    return moved(clip.output)


class Reader(NamedTuple):
    """A lookup whose table an op reads itself.

    Attributes:
        lookup: the lookup.
        entries: what it reads of its entries, besides weights.
    """

    lookup: Recognition
    entries: Sequence[Tensor]


def share_tables(build: NodeBuilder, readers: Sequence[Reader]) -> list[Tensor]:
    """Returns the tables of lookups: matrices as they are, variables as ReadEmbeddingTables reads.

    That copies nothing, whoever changes rows meanwhile. One such op is enough for all variables
    that are surely on one device and whose reads wait for the same; each is read once for all
    lookups for which that is the same. A stock read goes where nobody else needs it.
    """
    reads = [_Read.of(build, reader) for reader in readers]
    missing: dict[tuple[object, ...], dict[tuple[object, ...], _Read]] = {}
    for read in reads:
        if read is not None and read.key not in build.known:
            # Which variables are on one device is known once they are placed.
            together = (read.device, read.waits) if read.device else read.key
            missing.setdefault(together, {})[read.key] = read
    for group in missing.values():
        _add_shared_read(build, list(group.values()))
    for read in reads:
        if read is not None and read.stock:
            build.edit.remove(read.stock, build.known[read.key].partition(":")[0])
    return [
        reader.lookup.full_spec.table.shards[0].tensor if read is None else _known(build, read)
        for reader, read in zip(readers, reads, strict=True)
    ]


def can_share(dtype: int, device: str) -> bool:
    """Whether ReadEmbeddingTables has a kernel for variables of a DataType on a device."""
    kind = DeviceSpec.from_string(device).device_type or HOME_TYPE
    return is_shared(dtypes.as_dtype(dtype).name, kind)


@dataclass(frozen=True)
class _Read:
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

    @staticmethod
    def of(build: NodeBuilder, reader: Reader) -> _Read | None:
        """Returns the read of a lookup's table, None if that is a matrix."""
        view, spec = build.edit.view, reader.lookup.full_spec
        shard, dtype = spec.table.shards[0], spec.table.dtype
        if shard.kind == "resource":
            waits = _waits(build, reader)
            handle = view.resolve(shard.tensor)
            return _Read(handle, dtype, spec.table.shape, shard.device, shard.colocation, waits)
        source = view.resolve(shard.tensor)
        node = view.nodes.get(source.node)
        if node is None or node.op != "ReadVariableOp" or not can_share(dtype, node.device):
            return None
        (handle,), waits = view.inputs(source.node), view.controls(source.node)
        stock = (source.node, *view.aliases(shard.tensor))
        stock = () if any(name in view.preserved for name in stock) else stock
        beside = tuple(group.decode() for group in node.attr["_class"].list.s)
        return _Read(
            view.resolve(handle), dtype, spec.table.shape, node.device, beside, waits, stock
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for reads of which one is enough."""
        return ("read", self.handle, self.dtype, self.device, self.colocation, self.waits)


def _add_shared_read(build: NodeBuilder, reads: Sequence[_Read]) -> None:
    first = reads[0]
    node = build.node("tables" if len(reads) > 1 else "table", READ.name, first.device)
    build.inputs(node, *(read.handle for read in reads))
    set_types(node, T=first.dtype)
    set_attrs(node, num_tables=len(reads))
    if len(reads) == 1:
        _put_beside(node, first.colocation)
    for read in reads:
        # No shape function knows what a handle is of.
        shape = node.attr["_output_shapes"].list.shape.add()
        for size in read.shape:
            shape.dim.add().size = -1 if size is None else size
    build.add(node)
    build.edit.wait(node.name, first.waits)
    for place, read in enumerate(reads):
        build.known[read.key] = f"{node.name}:{place}"


def _known(build: NodeBuilder, read: _Read) -> Tensor:
    name, _, place = build.known[read.key].partition(":")
    return Tensor(name, int(place))


def _waits(build: NodeBuilder, reader: Reader) -> tuple[str, ...]:
    """Returns what the read of a table has to come after.

    The stock gather ran after all that its ids needed, which the read no longer waits for by data:
    it still has to come after the effects among that.
    """
    lookup, edit, view = reader.lookup, build.edit, build.edit.view
    weighted = lookup.full_spec.weights
    given = [*reader.entries, *([] if weighted is None else [weighted.values])]
    waits = dict.fromkeys(sorted(lookup.waits(view)))
    waits |= dict.fromkeys(name for name in edit.sources(given) if view.has_effect(name))
    return tuple(waits)


def read_table(build: NodeBuilder, reader: Reader) -> Tensor:
    """Returns the table for stock ops: it is a matrix, or the read of a variable is emitted.

    There is one read for all lookups for which it is the same. After any sparse access a variable
    is in a mode in which each read copies the table; that is switched off first, unless a copy
    costs no more than that.
    """
    spec, edit, view = reader.lookup.full_spec, build.edit, build.edit.view
    shard = spec.table.shards[0]
    if shard.kind != "resource":
        return shard.tensor
    waits = _waits(build, reader)
    handle, dtype = view.resolve(shard.tensor), spec.table.dtype
    key = ("read", handle, dtype, shard.device, shard.colocation, waits)
    name = build.known.get(key)
    if name is None:
        read = build.node("table", "ReadVariableOp", shard.device)
        set_types(read, dtype=dtype)
        nodes = [read]
        if not is_small(spec.table):
            nodes.insert(0, build.node("share_table", "DisableCopyOnRead", shard.device))
        for node in nodes:
            build.inputs(node, shard.tensor)
            _put_beside(node, shard.colocation)
            build.add(node)
            edit.wait(node.name, waits)
        edit.wait(read.name, [node.name for node in nodes[:-1]])
        _record_shape(read, view.nodes[shard.gather])
        name = build.known[key] = read.name
    return Tensor(name)


def _put_beside(node: node_def_pb2.NodeDef, colocation: tuple[str, ...]) -> None:
    if colocation:
        node.attr["_class"].list.s.extend(group.encode() for group in colocation)


def is_small(table: TableSpec) -> bool:
    """Whether copying the table costs about as little as an op."""
    rows, dim = table.shape
    size = dtypes.as_dtype(table.dtype).size
    return rows is not None and dim is not None and rows * dim * size <= _SMALL_BYTES


def _record_shape(read: node_def_pb2.NodeDef, gathered: node_def_pb2.NodeDef) -> None:
    """Records the width of the rows, which is all that some functions know of a variable."""
    if "_output_shapes" in gathered.attr:
        rows = gathered.attr["_output_shapes"].list.shape[0]
        shape = read.attr["_output_shapes"].list.shape.add()
        shape.CopyFrom(rows)
        if shape.dim:
            shape.dim[0].size = -1
