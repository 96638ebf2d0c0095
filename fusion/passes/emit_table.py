"""How emitted ops come by rows of a table: gathers, clipped rows, and the table read whole."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes

from fusion.passes.graph_view import Tensor
from fusion.passes.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.recognise import Recognition
from fusion.passes.recognise_clip import Clip
from fusion.passes.spec import LookupSpec, ShardSpec, TableSpec

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
        _put_beside(node, shard)
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


def read_table(build: NodeBuilder, lookup: Recognition, entries: Iterable[Tensor]) -> Tensor:
    """Returns the table whole: it is a matrix, or the read of a variable's value is emitted.

    There is one read for all lookups for which it is the same. After any sparse access a variable
    is in a mode in which each read copies the table; that is switched off first, unless a copy
    costs no more than that. The stock gather ran after all that its ids needed, which the read no
    longer waits for by data: it still has to come after the effects among that.

    Args:
        entries: what the lookup reads of its entries, besides weights.
    """
    spec, edit, view = lookup.full_spec, build.edit, build.edit.view
    shard = spec.table.shards[0]
    if shard.kind != "resource":
        return shard.tensor
    waits = dict.fromkeys(sorted(lookup.waits(view)))
    given = [*entries, *([] if spec.weights is None else [spec.weights.values])]
    waits |= dict.fromkeys(name for name in edit.sources(given) if view.has_effect(name))
    handle, dtype = view.resolve(shard.tensor), spec.table.dtype
    key = ("read", handle, dtype, shard.device, shard.colocation, tuple(waits))
    name = build.known.get(key)
    if name is None:
        read = build.node("table", "ReadVariableOp", shard.device)
        set_types(read, dtype=dtype)
        nodes = [read]
        if not is_small(spec.table):
            nodes.insert(0, build.node("share_table", "DisableCopyOnRead", shard.device))
        for node in nodes:
            build.inputs(node, shard.tensor)
            _put_beside(node, shard)
            build.add(node)
            edit.wait(node.name, waits)
        edit.wait(read.name, [node.name for node in nodes[:-1]])
        _record_shape(read, view.nodes[shard.gather])
        name = build.known[key] = read.name
    return Tensor(name)


def _put_beside(node: node_def_pb2.NodeDef, shard: ShardSpec) -> None:
    if shard.colocation:
        node.attr["_class"].list.s.extend(group.encode() for group in shard.colocation)


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
