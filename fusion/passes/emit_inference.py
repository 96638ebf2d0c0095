"""The form of a lookup that is one op, or a part of one, which reads the table itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes

from fusion.ops.lookup import COLUMN_ATTRS, GROUPED, SINGLE
from fusion.passes.bucketize import folded_bucketize
from fusion.passes.edit import GraphEdit
from fusion.passes.graph_view import Tensor
from fusion.passes.node_builder import AttrValue, NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.op_arguments import (
    NONE,
    combine_attrs,
    dense_attrs,
    dense_values,
    fill_attrs,
    prune_attrs,
    unused,
    weight_attrs,
    weights,
)
from fusion.passes.plan import Group
from fusion.passes.recognise import Recognition
from fusion.passes.spec import DenseIds, LookupSpec, RaggedIds, RowIds, SparseIds, TableSpec
from fusion.passes.static_shapes import Shape

_COPIED: dict[str, AttrValue] = {
    "form": "copy",
    "combiner": "mean",
    "max_norm": float(NONE),
    "prune": False,
    "fill_empty_row": False,
    "default_id": NONE,
    "use_sparse_weights": False,
    "prune_sparse_weights": False,
    "default_weight": 1.0,
    "divide_no_nan": True,
    "row_count": "dense_shape",
    "use_ignored_id": False,
    "ignored_id": NONE,
    "column_stride": 0,
    "num_buckets": 0,
    "bucket_default": 0,
    "dim": NONE,
}
"""What no lookup says otherwise; by itself, a tensor that is taken over."""
_SMALL_BYTES = 1 << 16
"""A copy of so much takes some microseconds."""
_FORMS = {SparseIds: "indices", RaggedIds: "row_splits", RowIds: "row_ids", DenseIds: "dense"}


class _Column(NamedTuple):
    """The inputs and attrs of one column.

    Attributes:
        dtypes: DataTypes of `ids` and `entry_rows`.
        boundaries: of the buckets that values fall into, none if they are ids.
    """

    table: Tensor
    ids: Tensor
    entry_rows: Tensor
    dense_shape: Tensor
    weights: Tensor
    dtypes: tuple[int, int]
    attrs: dict[str, AttrValue]
    boundaries: tuple[float, ...]


@dataclass
class InferenceEmitter:
    """Emits lookups as one op each, or many side by side as one op.

    A variable is read whole, which copies nothing: see `_read`.
    """

    edit: GraphEdit
    known: dict[tuple[object, ...], str]
    _parts: dict[str, list[tuple[Group, str]]] = field(default_factory=dict)

    def lookup(self, lookup: Recognition) -> None:
        """Emits one lookup under the name of its output and takes its stock nodes out."""
        spec = _spec(lookup)
        build = NodeBuilder.of(self.edit, self.known, spec)
        column = self._column(build, lookup)
        node = build.replacement(SINGLE.name)
        build.inputs(node, *column[:5])
        set_types(node, T=spec.table.dtype, Tids=column.dtypes[0], Trows=column.dtypes[1])
        set_attrs(node, **column.attrs)
        set_lists(node, boundaries=column.boundaries)
        build.add(node)
        self._take_out([lookup], build.base)
        self.edit.replace(spec.output, Tensor(build.base))

    def group(self, group: Group) -> None:
        """Emits a group; one that is all of a concat under its name, in its place."""
        view = self.edit.view
        lookups = group.lookups
        first = _spec(lookups[0])
        columns = [self._group_column(column, first) for column in group.columns]
        frame = first.ids.values.node
        build = NodeBuilder(
            self.edit, self.known, group.concat, view.nodes[group.concat].device, frame
        )
        node = (
            build.replacement(GROUPED.name) if group.whole else build.node("grouped", GROUPED.name)
        )
        for inputs in zip(*(column[:5] for column in columns), strict=True):
            build.inputs(node, *inputs)
        set_types(
            node,
            T=first.table.dtype,
            Tids=[column.dtypes[0] for column in columns],
            Trows=[column.dtypes[1] for column in columns],
        )
        set_attrs(node, num_columns=len(columns))
        set_lists(
            node,
            **{
                key: [column.attrs[attr.name] for column in columns]
                for key, attr in COLUMN_ATTRS.items()
            },
            boundaries=[value for column in columns for value in column.boundaries],
            boundary_counts=[len(column.boundaries) for column in columns],
        )
        name = build.add(node)
        self._take_out(lookups, name)
        between = view.inputs(group.concat)[group.place :][: len(columns)]
        if group.whole:
            between = tuple(self._inputs(group.concat, group.inner, name))
        for column, tensor in zip(group.columns, between, strict=True):
            if isinstance(column, Recognition):
                self.edit.remove(view.aliases(tensor), name)
        if group.whole:
            self._replace_concat(group.concat)
        else:
            self._parts.setdefault(group.concat, []).append((group, name))

    def finish(self) -> None:
        """Lets the concats that stay read the groups that are parts of them."""
        for concat, parts in self._parts.items():
            view = self.edit.view
            build = NodeBuilder(self.edit, self.known, concat, view.nodes[concat].device, "")
            inputs = list(view.inputs(concat))
            for group, name in sorted(parts, key=lambda part: part[0].place, reverse=True):
                inputs[group.place : group.place + len(group.columns)] = [Tensor(name)]
            node = build.copy("", concat)
            node.name = concat
            del node.input[:]
            build.inputs(node, *inputs)
            set_attrs(node, N=len(inputs) - 1)
            build.add(node)
            self._replace_concat(concat)

    def _inputs(self, concat: str, inner: frozenset[str], successor: str) -> Iterator[Tensor]:
        """Yields a concat's inputs, those of inner ones in their place, which it takes out."""
        view = self.edit.view
        for tensor in view.inputs(concat)[:-1]:
            source = view.resolve(tensor).node
            if source in inner:
                self.edit.remove([*view.aliases(tensor), source], successor)
                yield from self._inputs(source, inner, successor)
            else:
                yield tensor

    def _replace_concat(self, concat: str) -> None:
        self.edit.remove([concat], concat)
        self.edit.replace(Tensor(concat), Tensor(concat))

    def _take_out(self, lookups: Iterable[Recognition], successor: str) -> None:
        for lookup in lookups:
            self.edit.remove(lookup.nodes(), successor)
            self.edit.wait(successor, sorted(lookup.waits(self.edit.view)))

    def _group_column(self, column: Recognition | Tensor, first: LookupSpec) -> _Column:
        if isinstance(column, Recognition):
            return self._column(NodeBuilder.of(self.edit, self.known, _spec(column)), column)
        build = NodeBuilder.of(self.edit, self.known, first)
        number, types = self._number(build), (types_pb2.DT_INT64, types_pb2.DT_INT64)
        weightless = unused(build, "weights", first.table.dtype)
        shape = self.edit.view.shape(column)
        attrs = {
            **_COPIED,
            "dim": _dim(shape if shape is not None and len(shape) == 2 else (None,) * 2),
        }
        return _Column(column, number, number, number, weightless, types, attrs, ())

    def _column(self, build: NodeBuilder, lookup: Recognition) -> _Column:
        spec = _spec(lookup)
        ids, entry_rows, dense_shape, dtypes = self._entries(build, spec)
        attrs = {**_COPIED, "form": _FORMS[type(spec.ids)], "dim": _dim(spec.table.shape)}
        attrs |= {**fill_attrs(spec), **prune_attrs(spec), **weight_attrs(spec)}
        attrs |= combine_attrs(spec)
        boundaries: tuple[float, ...] = ()
        if isinstance(spec.ids, DenseIds):
            attrs |= dense_attrs(spec.ids)
            folded = folded_bucketize(self.edit.view, spec.ids)
            if folded is not None:
                ids, boundaries = folded.values, folded.boundaries
                dtypes = (folded.dtype, dtypes[1])
        shard = spec.table.shards[0]
        table = shard.tensor
        if shard.kind == "resource":
            table = self._read(build, lookup, (ids, entry_rows, dense_shape))
        inputs = (table, ids, entry_rows, dense_shape, weights(build, spec))
        return _Column(*inputs, dtypes, attrs, boundaries)

    def _entries(
        self, build: NodeBuilder, spec: LookupSpec
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
        """Returns ids, entry_rows and dense_shape, with the DataTypes of the first two."""
        ids, number = spec.ids, self._number(build)
        if isinstance(ids, SparseIds):
            shape = number if ids.dense_shape is None else ids.dense_shape
            return ids.values, ids.indices, shape, (spec.dtype, types_pb2.DT_INT64)
        if isinstance(ids, RaggedIds):
            return ids.values, ids.row_splits, number, (spec.dtype, ids.splits_dtype)
        if isinstance(ids, RowIds):
            count = number if ids.count is None else ids.count
            return ids.values, ids.rows, count, (spec.dtype, ids.rows_dtype)
        return dense_values(build, ids), number, number, (ids.dtype, types_pb2.DT_INT64)

    def _number(self, build: NodeBuilder) -> Tensor:
        return unused(build, "number", types_pb2.DT_INT64)

    def _read(self, build: NodeBuilder, lookup: Recognition, entries: Iterable[Tensor]) -> Tensor:
        """Emits the read of a variable's value, one for all lookups for which it is the same.

        After any sparse access a variable is in a mode in which each read copies the table; that is
        switched off first, unless a copy costs no more than that. The stock gather ran after all
        that its ids needed, which the read no longer waits for by data: it still has to come after
        the effects among that.
        """
        spec, view = _spec(lookup), self.edit.view
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


def _spec(lookup: Recognition) -> LookupSpec:
    assert lookup.spec is not None, "only fully recognised lookups are planned"
    return lookup.spec


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


def _dim(shape: Shape | None) -> int:
    """Returns the static width of a matrix."""
    width = shape[1] if shape is not None and len(shape) == 2 else None
    return NONE if width is None else width
