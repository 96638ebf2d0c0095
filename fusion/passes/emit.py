"""Turns planned lookups into nodes: fused ops around stock gathers beside their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes

from fusion.passes.edit import GraphEdit
from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.match import Stage
from fusion.passes.node_builder import NodeBuilder, keep_shape, set_attrs, set_types
from fusion.passes.plan import Plan
from fusion.passes.recognise import Recognition
from fusion.passes.recognise_clip import Clip
from fusion.passes.spec import (
    DenseIds,
    LookupSpec,
    RaggedIds,
    RowIds,
    ShardSpec,
    SparseIds,
    TableSpec,
)

_NONE = -1
_IN_OP_CLIPPED = (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE)


def emit(view: GraphView, plan: Plan) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan."""
    emitter = _Emitter(GraphEdit(view))
    for group in plan.groups:
        for lookup in group.lookups:
            emitter.lookup(lookup)
    return emitter.edit


class _Entries(NamedTuple):
    """What the post-lookup op reads of the entries; `first` is the node that pruned them."""

    values: Tensor
    indices: Tensor
    weights: Tensor
    is_row_empty: Tensor
    dense_shape: Tensor
    first: str


@dataclass
class _Emitter:
    """Emits lookups one by one; equal nodes are emitted once and shared.

    Each lookup becomes

        PruneInvalidAndFillEmptyRows -> UniqueWithCountsV3 -> gather of the unique rows
            -> FusedEmbeddingSparsePostLookUpV2

    with the gather the stock one, on its device and beside its table. A partitioned table has
    PartitionWithPermutation and a gather for each shard in the middle; dense ids have
    PruneDenseAndFillEmptyRows in front; entries neither pruned nor filled need no op there.
    """

    edit: GraphEdit
    shared: dict[tuple[object, ...], str] = field(default_factory=dict)

    def lookup(self, lookup: Recognition) -> None:
        """Emits one lookup and takes its stock nodes out."""
        spec = lookup.spec
        assert spec is not None, "only fully recognised lookups are planned"
        build = NodeBuilder(self.edit, self.shared, spec)
        base = spec.output.node
        entries = self._entries(build, lookup, spec)
        unique = self._unique(build, spec, entries)
        gathered, permutation = self._gathers(build, spec, unique)
        rows = self._clipped(build, lookup, spec, gathered)
        self._post_lookup(build, spec, entries, unique, rows, permutation)
        first = entries.first or unique
        self.edit.remove(lookup.nodes(Stage.IDS), first)
        # A read stays behind the writes that it waits for.
        reads = {
            shard.gather: one.node
            for shard, one in zip(spec.table.shards, gathered, strict=True)
            if shard.gather
        }
        for stock, read in reads.items():
            self.edit.remove([stock], read)
        rest = [name for name in lookup.nodes(Stage.ROWS) if name not in reads]
        self.edit.remove(rest, gathered[0].node)
        self.edit.remove(lookup.nodes(Stage.OUTPUT), base)
        for stage, names in (
            (Stage.IDS, [first]),
            (Stage.ROWS, [one.node for one in gathered]),
            (Stage.OUTPUT, [base]),
        ):
            for name in names:
                self.edit.wait(name, lookup.helper_waits.get(stage, ()))
        self.edit.replace(spec.output, Tensor(base))
        if lookup.is_row_empty is not None:
            self.edit.replace(lookup.is_row_empty, entries.is_row_empty)
        if not entries.first:
            self.edit.wait(unique, self._waits(lookup))

    def _waits(self, lookup: Recognition) -> tuple[str, ...]:
        """Returns what the lookup's id side waits for by control edges."""
        nodes = (*lookup.front(), *lookup.nodes(Stage.IDS))
        return tuple(dict.fromkeys(w for name in nodes for w in self.edit.view.controls(name)))

    def _entries(self, build: NodeBuilder, lookup: Recognition, spec: LookupSpec) -> _Entries:
        if not spec.fill:
            return self._given_entries(build, spec)
        waits = (*self._waits(lookup), *lookup.helper_waits.get(Stage.IDS, ()))
        default_id = _NONE if spec.default_id is None else spec.default_id
        what = (spec.ids, spec.dtype, spec.buckets, spec.weights, spec.prune, default_id)
        key = ("prune", *what, spec.table.dtype, build.device, waits)
        name = self.shared.get(key)
        if name is None:
            dense = isinstance(spec.ids, DenseIds)
            name = self._prune_dense(build, spec) if dense else self._prune(build, spec)
            self.edit.wait(name, waits)
            self.shared[key] = name
        shape = self._dense_shape(build, spec)
        if isinstance(spec.ids, DenseIds):
            unused = self._unused_weights(build, spec)
            outputs = [Tensor(name, i) for i in range(4)]
            return _Entries(outputs[0], outputs[1], unused, outputs[2], outputs[3], name)
        weights = Tensor(name, 2) if spec.weights is not None else self._weights(build, spec)
        return _Entries(Tensor(name, 0), Tensor(name, 1), weights, Tensor(name, 3), shape, name)

    def _given_entries(self, build: NodeBuilder, spec: LookupSpec) -> _Entries:
        """Entries that are looked up as they are; the last of them ends the result."""
        no_flags = build.constant("no_flags", np.zeros(0, np.bool_))
        no_shape = build.constant("no_shape", np.zeros(2, np.int64))
        weights = self._weights(build, spec)
        return _Entries(
            spec.ids.values, self._indices(build, spec), weights, no_flags, no_shape, ""
        )

    def _prune(self, build: NodeBuilder, spec: LookupSpec) -> str:
        node = build.node("prune_and_fill", "PruneInvalidAndFillEmptyRows")
        indices, shape = self._indices(build, spec), self._dense_shape(build, spec)
        weights = self._weights(build, spec)
        build.inputs(node, spec.ids.values, indices, shape, weights)
        set_types(node, Tid=spec.dtype, Tw=spec.table.dtype)
        weighted = spec.weights
        set_attrs(
            node,
            fill_empty_row=True,
            prune=spec.prune,
            default_id=_NONE if spec.default_id is None else spec.default_id,
            use_sparse_weights=weighted is not None,
            prune_sparse_weights=weighted is not None and weighted.prune,
            default_weight=1.0 if weighted is None else weighted.default,
            num_buckets=0 if spec.buckets is None else spec.buckets.count,
            bucket_default=0 if spec.buckets is None else spec.buckets.default,
        )
        return build.add(node)

    def _prune_dense(self, build: NodeBuilder, spec: LookupSpec) -> str:
        ids = spec.ids
        assert isinstance(ids, DenseIds)
        node = build.node("prune_and_fill", "PruneDenseAndFillEmptyRows")
        build.inputs(node, ids.values)
        set_types(node, Tdense=ids.dtype, Tid=spec.dtype)
        set_attrs(
            node,
            fill_empty_row=True,
            prune=spec.prune,
            default_id=_NONE if spec.default_id is None else spec.default_id,
            use_ignored_id=ids.ignored is not None,
            ignored_id=_NONE if ids.ignored is None else ids.ignored,
            column_stride=ids.stride,
            num_buckets=0 if spec.buckets is None else spec.buckets.count,
            bucket_default=0 if spec.buckets is None else spec.buckets.default,
        )
        return build.add(node)

    def _indices(self, build: NodeBuilder, spec: LookupSpec) -> Tensor:
        ids = spec.ids
        if isinstance(ids, SparseIds):
            return ids.indices
        if isinstance(ids, RaggedIds):
            return self._sparse(build, spec, ids)
        assert isinstance(ids, RowIds)
        rows = ids.rows
        if ids.rows_dtype != types_pb2.DT_INT64:
            rows = build.shared("rows", "Cast", (rows,), {"SrcT": ids.rows_dtype, "DstT": 9})
        # Column 1 of the indices is never read.
        return build.shared("indices", "Pack", (rows, rows), {"T": 9}, {"N": 2, "axis": 1})

    def _dense_shape(self, build: NodeBuilder, spec: LookupSpec) -> Tensor:
        ids = spec.ids
        if isinstance(ids, SparseIds) and ids.dense_shape is not None:
            return ids.dense_shape
        if isinstance(ids, RaggedIds):
            return Tensor(self._sparse(build, spec, ids).node, 2)
        if isinstance(ids, RowIds) and ids.count is not None:
            pair = (ids.count, ids.count)
            return build.shared("dense_shape", "Pack", pair, {"T": 9}, {"N": 2, "axis": 0})
        return Tensor("")

    def _sparse(self, build: NodeBuilder, spec: LookupSpec, ids: RaggedIds) -> Tensor:
        """Emits the stock op that makes row splits the indices and the shape of a SparseTensor."""
        inputs = (ids.row_splits, ids.values)
        types = {"T": spec.dtype, "Tsplits": ids.splits_dtype}
        return build.shared("sparse", "RaggedTensorToSparse", inputs, types, {"RAGGED_RANK": 1})

    def _weights(self, build: NodeBuilder, spec: LookupSpec) -> Tensor:
        if spec.weights is None:
            return self._unused_weights(build, spec)
        values = spec.weights.values
        if spec.fill or spec.combiner != "sum":
            return values
        # The product of rows and weights takes a single weight for all of them.
        types = {"T": spec.dtype, "out_type": types_pb2.DT_INT64}
        length = build.shared("length", "Shape", (spec.ids.values,), types)
        types = {"T": spec.table.dtype, "Tidx": types_pb2.DT_INT64}
        return build.shared("weights", "BroadcastTo", (values, length), types)

    def _unused_weights(self, build: NodeBuilder, spec: LookupSpec) -> Tensor:
        dtype = dtypes.as_dtype(spec.table.dtype).as_numpy_dtype
        return build.constant("unused_weights", np.ones(1, dtype))

    def _unique(self, build: NodeBuilder, spec: LookupSpec, entries: _Entries) -> str:
        types = {"Tid": spec.dtype}
        return build.shared("unique", "UniqueWithCountsV3", (entries.values,), types).node

    def _gathers(
        self, build: NodeBuilder, spec: LookupSpec, unique: str
    ) -> tuple[list[Tensor], Tensor]:
        """Emits the gathers: the rows of each shard, and which of them is whose."""
        table, keys = spec.table, [Tensor(unique, 0)]
        permutation = build.constant("permutation", np.zeros((1, 2), np.int32))
        if table.strategy:
            split = self._partition(build, spec, unique)
            count = len(table.shards)
            keys = [Tensor(split, i) for i in range(count)]
            permutation = Tensor(split, count)
        pairs = zip(table.shards, keys, strict=True)
        return [self._gather(build, spec, shard, key) for shard, key in pairs], permutation

    def _clipped(
        self, build: NodeBuilder, lookup: Recognition, spec: LookupSpec, rows: list[Tensor]
    ) -> list[Tensor]:
        """Returns the rows as the post-lookup op is to read them."""
        if spec.table.max_norm is None or _clips_in_op(spec):
            return rows
        clip = next(part for part in lookup.parts if isinstance(part, Clip))
        return [self._clip(build, clip, one) for one in rows]

    def _partition(self, build: NodeBuilder, spec: LookupSpec, unique: str) -> str:
        table = spec.table
        count = len(table.shards)
        dim = table.shape[1] or 0
        shapes = [
            build.constant(f"shape_{i}", np.array([rows, dim], np.int64))
            for i, rows in enumerate(table.split or _sizes(table))
        ]
        return build.shared(
            "partition",
            "PartitionWithPermutation",
            (Tensor(unique, 0), *shapes),
            {"Tid": spec.dtype},
            {"num_partitions": count, "partition_axis": 0, "partition_strategy": table.strategy},
        ).node

    def _gather(
        self, build: NodeBuilder, spec: LookupSpec, shard: ShardSpec, keys: Tensor
    ) -> Tensor:
        if shard.gather:
            node = build.copy("gather", shard.gather)
            build.replace_input(node, 1, keys)
            return Tensor(build.add(node))
        node = build.node("gather", "GatherV2", shard.device)
        axis = build.constant("axis", np.array(0, np.int32), shard.device)
        build.inputs(node, shard.tensor, keys, axis)
        set_types(node, Tparams=spec.table.dtype, Tindices=spec.dtype, Taxis=types_pb2.DT_INT32)
        set_attrs(node, batch_dims=0)
        if shard.colocation:
            node.attr["_class"].list.s.extend(group.encode() for group in shard.colocation)
        return Tensor(build.add(node))

    def _clip(self, build: NodeBuilder, clip: Clip, rows: Tensor) -> Tensor:
        """Copies stock's clipping to other rows."""
        view, done = self.edit.view, {clip.rows: rows}

        def moved(tensor: Tensor) -> Tensor:
            source = view.resolve(tensor)
            if source not in done and source.node in clip.nodes:
                operands = [moved(operand) for operand in view.inputs(source.node)]
                node = build.copy("clip", source.node)
                for place, operand in enumerate(operands):
                    build.replace_input(node, place, operand)
                done[source] = Tensor(build.add(node))
                self.edit.wait(node.name, view.controls(source.node))
            return done.get(source, tensor)

        return moved(clip.output)

    def _post_lookup(
        self,
        build: NodeBuilder,
        spec: LookupSpec,
        entries: _Entries,
        unique: str,
        rows: list[Tensor],
        permutation: Tensor,
    ) -> None:
        stock = self.edit.view.nodes[spec.output.node]
        node = build.node("", "FusedEmbeddingSparsePostLookUpV2", stock.device)
        node.name = stock.name
        places = Tensor(unique, 1)
        bags = (entries.dense_shape, entries.indices, entries.is_row_empty, places)
        build.inputs(node, *rows, permutation, *bags, entries.weights)
        set_types(node, T=spec.table.dtype, Tw=spec.table.dtype)
        limit = spec.table.max_norm
        set_attrs(
            node,
            num_partitions=len(rows),
            partition_axis=0,
            fill_empty_row=spec.fill,
            default_id=_NONE if spec.default_id is None else spec.default_id,
            combiner=spec.combiner,
            max_norm=limit if limit is not None and _clips_in_op(spec) else float(_NONE),
            use_sparse_weights=spec.weights is not None,
            row_count="dense_shape" if spec.fill else "last_row",
            divide_no_nan=spec.divide_no_nan,
        )
        keep_shape(stock, node)
        if stock.HasField("experimental_debug_info"):
            node.experimental_debug_info.CopyFrom(stock.experimental_debug_info)
        build.add(node)


def _sizes(table: TableSpec) -> tuple[int, ...]:
    """Returns the rows of each shard; where they are not known the gather alone checks the ids."""
    largest = np.iinfo(np.int64).max // len(table.shards)
    return tuple(largest if shard.rows is None else shard.rows for shard in table.shards)


def _clips_in_op(spec: LookupSpec) -> bool:
    """Whether the op clips rows with the same numbers as stock, but for rounding.

    Stock clips half types in their own arithmetic. The op's limit is a float32, and a negative one
    is none.
    """
    limit = spec.table.max_norm
    if limit is None or spec.table.dtype not in _IN_OP_CLIPPED:
        return False
    with np.errstate(over="ignore"):
        return limit >= 0 and float(np.float32(limit)) == limit
