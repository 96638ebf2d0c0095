"""The form of a lookup that is one op, or a part of one, which reads the table itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes

from fusion.ops.lookup import COLUMN_ATTRS, GROUPED, SINGLE
from fusion.passes.column_arguments import (
    ColumnArguments,
    column_arguments,
    copy_arguments,
    set_boundaries,
    set_columns,
)
from fusion.passes.edit import GraphEdit
from fusion.passes.emit_concat import ConcatEmitter
from fusion.passes.graph_view import Tensor
from fusion.passes.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.plan import Group
from fusion.passes.recognise import Recognition
from fusion.passes.spec import LookupSpec, TableSpec

_SMALL_BYTES = 1 << 16
"""A copy of so much takes some microseconds."""


@dataclass
class InferenceEmitter:
    """Emits lookups as one op each, or many side by side as one op.

    A variable is read whole, which copies nothing: see `_read`.
    """

    edit: GraphEdit
    known: dict[tuple[object, ...], str]
    concats: ConcatEmitter

    def lookup(self, lookup: Recognition) -> None:
        """Emits one lookup under the name of its output and takes its stock nodes out."""
        spec = lookup.full_spec
        build = NodeBuilder.of(self.edit, self.known, spec)
        column = column_arguments(build, spec)
        node = build.replacement(SINGLE.name)
        build.inputs(node, self._table(build, lookup, column), *column[:4])
        set_types(node, T=spec.table.dtype, Tids=column.dtypes[0], Trows=column.dtypes[1])
        set_attrs(node, **column.attrs)
        set_lists(node, boundaries=column.boundaries)
        build.add(node)
        self._take_out([lookup], build.base)
        self.edit.replace(spec.output, Tensor(build.base))

    def group(self, group: Group) -> None:
        """Emits a group; one that is all of a concat under its name, in its place."""
        lookups = group.lookups
        first = lookups[0].full_spec
        pairs = [self._group_column(column, first) for column in group.columns]
        columns = [column for _, column in pairs]
        build = self.concats.builder(group, first.ids.values.node)
        node = self.concats.node(group, build, GROUPED.name)
        build.inputs(node, *(table for table, _ in pairs))
        for inputs in zip(*(column[:4] for column in columns), strict=True):
            build.inputs(node, *inputs)
        set_types(
            node,
            T=first.table.dtype,
            Tids=[column.dtypes[0] for column in columns],
            Trows=[column.dtypes[1] for column in columns],
        )
        set_attrs(node, num_columns=len(columns))
        set_columns(node, columns, COLUMN_ATTRS)
        set_boundaries(node, columns)
        name = build.add(node)
        self._take_out(lookups, name)
        self.concats.put(group, name)

    def _take_out(self, lookups: Iterable[Recognition], successor: str) -> None:
        for lookup in lookups:
            self.edit.remove(lookup.nodes(), successor)
            self.edit.wait(successor, sorted(lookup.waits(self.edit.view)))

    def _group_column(
        self, column: Recognition | Tensor, first: LookupSpec
    ) -> tuple[Tensor, ColumnArguments]:
        """Returns the table of a column and the rest."""
        if isinstance(column, Recognition):
            build = NodeBuilder.of(self.edit, self.known, column.full_spec)
            arguments = column_arguments(build, column.full_spec)
            return self._table(build, column, arguments), arguments
        build = NodeBuilder.of(self.edit, self.known, first)
        return column, copy_arguments(build, column, first.table.dtype)

    def _table(self, build: NodeBuilder, lookup: Recognition, given: ColumnArguments) -> Tensor:
        shard = lookup.full_spec.table.shards[0]
        return self._read(build, lookup, given[:3]) if shard.kind == "resource" else shard.tensor

    def _read(self, build: NodeBuilder, lookup: Recognition, entries: Iterable[Tensor]) -> Tensor:
        """Emits the read of a variable's value, one for all lookups for which it is the same.

        After any sparse access a variable is in a mode in which each read copies the table; that is
        switched off first, unless a copy costs no more than that. The stock gather ran after all
        that its ids needed, which the read no longer waits for by data: it still has to come after
        the effects among that.
        """
        spec, view = lookup.full_spec, self.edit.view
        shard = spec.table.shards[0]
        waits = dict.fromkeys(sorted(lookup.waits(view)))
        given = [*entries, *([] if spec.weights is None else [spec.weights.values])]
        names = (tensor.node for tensor in given if tensor.node in view.nodes)
        waits |= dict.fromkeys(name for name in names if view.has_effect(name))
        handle, dtype = view.resolve(shard.tensor), spec.table.dtype
        key = ("read", handle, dtype, shard.device, shard.colocation, tuple(waits))
        name = self.known.get(key)
        if name is None:
            read = build.node("table", "ReadVariableOp", shard.device)
            set_types(read, dtype=dtype)
            nodes = [read]
            if not _is_small(spec.table):
                nodes.insert(0, build.node("share_table", "DisableCopyOnRead", shard.device))
            for node in nodes:
                build.inputs(node, shard.tensor)
                if shard.colocation:
                    node.attr["_class"].list.s.extend(group.encode() for group in shard.colocation)
                build.add(node)
                self.edit.wait(node.name, waits)
            self.edit.wait(read.name, [node.name for node in nodes[:-1]])
            _record_shape(read, view.nodes[shard.gather])
            name = self.known[key] = read.name
        return Tensor(name)


def _is_small(table: TableSpec) -> bool:
    """Whether copying the table costs about as little as an op."""
    rows, dim = table.shape
    size = dtypes.as_dtype(table.dtype).size
    return rows is not None and dim is not None and rows * dim * size <= _SMALL_BYTES


def _record_shape(read: node_def_pb2.NodeDef, gather: node_def_pb2.NodeDef) -> None:
    """Records the width of the rows, which is all that some functions know of a variable."""
    if "_output_shapes" in gather.attr:
        rows = gather.attr["_output_shapes"].list.shape[0]
        shape = read.attr["_output_shapes"].list.shape.add()
        shape.CopyFrom(rows)
        if shape.dim:
            shape.dim[0].size = -1
