"""The form of a lookup that has several ops around stock gathers, which stay beside their tables.

    PruneInvalidAndFillEmptyRows -> UniqueWithCountsV3 -> gather of the unique rows
        -> FusedEmbeddingSparsePostLookUpV2

The gather is the stock one. A partitioned table has PartitionWithPermutation and a gather for each
shard in the middle; dense ids have PruneDenseAndFillEmptyRows in front; entries neither pruned nor
filled need no op there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.arguments import (
    NONE,
    column_of,
    dense_form,
    dense_shape,
    dense_values,
    weights,
)
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.emit.tables import copied_clip, gather
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.forms import clips_in_op
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import Stage
from fusion.passes.recognise.spec import (
    DenseIds,
    LookupSpec,
    RaggedIds,
    RowIds,
    SparseIds,
    TableSpec,
)
from fusion.schema.names import PARTITION, POST_V2, PRUNE, PRUNE_DENSE, UNIQUE


class _Entries(NamedTuple):
    """What the post-lookup op reads of the entries; `first` is the node that pruned them."""

    values: Tensor
    indices: Tensor
    weights: Tensor
    is_row_empty: Tensor
    dense_shape: Tensor
    first: str


#: Attrs of the small ops that are those of a column.
_ENTRIES = ("fill_empty_row", "default_id", "prune", "num_buckets", "bucket_default")
_WEIGHTS = ("use_sparse_weights", "prune_sparse_weights", "default_weight")
_DENSE = ("use_ignored_id", "ignored_id", "column_stride")
_BAGS = ("fill_empty_row", "default_id", "combiner", "max_norm", "row_count", "divide_no_nan")


@dataclass
class SplitEmitter:
    """Emits lookups one by one; equal nodes are emitted once and shared."""

    edit: GraphEdit

    def lookup(self, lookup: LookupMatch) -> None:
        """Emits one lookup and takes its stock nodes out."""
        spec = lookup.full_spec
        build = NodeBuilder.of(self.edit, spec)
        waits = self._ids_waits(lookup)
        entries = self._entries(build, spec, waits)
        unique = self._unique(build, spec, entries)
        gathered, permutation = self._gathers(build, spec, unique)
        rows = self._clipped(build, lookup, spec, gathered)
        positions = Tensor(unique, 1)
        shape, indices, empty = entries.dense_shape, entries.indices, entries.is_row_empty
        bags = Bags(shape, indices, empty, positions, entries.weights)
        post_lookup(build, spec, rows, permutation, bags, clips=True)
        first = entries.first or unique
        self.edit.wait(first, waits)
        self.edit.remove(lookup.nodes(Stage.IDS), first)
        # A read stays behind the writes that it waits for.
        reads = {
            shard.gather: tensor.node
            for shard, tensor in zip(spec.table.shards, gathered, strict=True)
            if shard.gather
        }
        for stock, read in reads.items():
            self.edit.remove([stock], read)
        rest = [name for name in lookup.nodes(Stage.ROWS) if name not in reads]
        self.edit.remove(rest, gathered[0].node)
        for tensor in gathered:
            self.edit.wait(tensor.node, lookup.control_deps.get(Stage.ROWS, ()))
        self.edit.remove(lookup.nodes(Stage.OUTPUT), build.base)
        self.edit.wait(build.base, lookup.control_deps.get(Stage.OUTPUT, ()))
        self.edit.replace(spec.output, Tensor(build.base))
        if lookup.is_row_empty is not None:
            self.edit.replace(lookup.is_row_empty, entries.is_row_empty)

    def _ids_waits(self, lookup: LookupMatch) -> tuple[str, ...]:
        """Returns what the lookup's id side waits for by control edges."""
        nodes = (*lookup.front(), *lookup.nodes(Stage.IDS))
        own = (wait for name in nodes for wait in self.edit.view.controls(name))
        return tuple(dict.fromkeys((*own, *lookup.control_deps.get(Stage.IDS, ()))))

    def _entries(self, build: NodeBuilder, spec: LookupSpec, waits: tuple[str, ...]) -> _Entries:
        if not spec.column.fill_empty_row:
            return self._unpruned(build, spec)
        what = (spec.ids, spec.dtype, spec.weights, spec.table.dtype)
        attrs = spec.column.only(*_ENTRIES, *_WEIGHTS).values()
        key = ("prune", *what, *attrs, build.device, waits)
        name = self.edit.shared.get(key)
        if name is None:
            dense = isinstance(spec.ids, DenseIds)
            name = self._prune_dense(build, spec) if dense else self._prune(build, spec)
            self.edit.shared[key] = name
        if isinstance(spec.ids, DenseIds):
            values, indices, flags, shape = (Tensor(name, index) for index in range(4))
            return _Entries(values, indices, weights(build, spec), flags, shape, name)
        weighted = Tensor(name, 2) if spec.weights is not None else weights(build, spec)
        shape = self._dense_shape(build, spec)
        return _Entries(Tensor(name, 0), Tensor(name, 1), weighted, Tensor(name, 3), shape, name)

    def _unpruned(self, build: NodeBuilder, spec: LookupSpec) -> _Entries:
        """Entries that are looked up as they are; the last of them ends the result."""
        no_flags, no_shape = unfilled(build)
        indices = self._indices(build, spec)
        return _Entries(spec.ids.values, indices, weights(build, spec), no_flags, no_shape, "")

    def _prune(self, build: NodeBuilder, spec: LookupSpec) -> str:
        node = build.node("prune_and_fill", PRUNE)
        indices, shape = self._indices(build, spec), self._dense_shape(build, spec)
        build.inputs(node, spec.ids.values, indices, shape, weights(build, spec))
        set_types(node, Tid=spec.dtype, Tw=spec.table.dtype)
        set_attrs(node, **column_of(spec).only(*_ENTRIES, *_WEIGHTS))
        return build.add(node)

    def _prune_dense(self, build: NodeBuilder, spec: LookupSpec) -> str:
        ids = spec.ids
        assert isinstance(ids, DenseIds)
        assert dense_form(ids) == "dense", "this op has no other form"
        assert not ids.wraps, "this op takes an id < 0 out, or as it is"
        node = build.node("prune_and_fill", PRUNE_DENSE)
        build.inputs(node, dense_values(build, ids))
        set_types(node, Tdense=ids.dtype, Tid=spec.dtype)
        set_attrs(node, **column_of(spec).only(*_ENTRIES, *_DENSE))
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
            return dense_shape(build, ids)
        if isinstance(ids, RaggedIds):
            return Tensor(self._sparse(build, spec, ids).node, 2)
        assert isinstance(ids, RowIds)
        assert ids.count is not None
        pair = (ids.count, ids.count)
        return build.shared("dense_shape", "Pack", pair, {"T": 9}, {"N": 2, "axis": 0})

    def _sparse(self, build: NodeBuilder, spec: LookupSpec, ids: RaggedIds) -> Tensor:
        """Emits the stock op that makes row splits the indices and the shape of a SparseTensor."""
        inputs = (ids.row_splits, ids.values)
        types = {"T": spec.dtype, "Tsplits": ids.splits_dtype}
        return build.shared("sparse", "RaggedTensorToSparse", inputs, types, {"RAGGED_RANK": 1})

    def _unique(self, build: NodeBuilder, spec: LookupSpec, entries: _Entries) -> str:
        types = {"Tid": spec.dtype}
        return build.shared("unique", UNIQUE, (entries.values,), types).node

    def _gathers(
        self, build: NodeBuilder, spec: LookupSpec, unique: str
    ) -> tuple[list[Tensor], Tensor]:
        """Emits the gathers: the rows of each shard, and which of them is whose."""
        table, keys = spec.table, [Tensor(unique, 0)]
        permutation = one_shard(build)
        if table.strategy:
            split = self._partition(build, spec, unique)
            count = len(table.shards)
            keys = [Tensor(split, i) for i in range(count)]
            permutation = Tensor(split, count)
        pairs = zip(table.shards, keys, strict=True)
        return [gather(build, spec, shard, key) for shard, key in pairs], permutation

    def _clipped(
        self, build: NodeBuilder, lookup: LookupMatch, spec: LookupSpec, rows: list[Tensor]
    ) -> list[Tensor]:
        """Returns the rows as the post-lookup op is to read them."""
        if spec.table.max_norm is None or clips_in_op(spec):
            return rows
        table = lookup.parts.table
        assert table is not None
        clip = table.clip
        assert clip is not None
        return [copied_clip(build, clip, matrix) for matrix in rows]

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
            PARTITION,
            (Tensor(unique, 0), *shapes),
            {"Tid": spec.dtype},
            {"num_partitions": count, "partition_axis": 0, "partition_strategy": table.strategy},
        ).node


def _sizes(table: TableSpec) -> tuple[int, ...]:
    """Returns the rows of each shard; where they are not known the gather alone checks the ids."""
    largest = np.iinfo(np.int64).max // len(table.shards)
    return tuple(largest if shard.rows is None else shard.rows for shard in table.shards)


class Bags(NamedTuple):
    """What the op reads beside the gathered rows, in its order."""

    dense_shape: Tensor
    indices: Tensor
    is_row_empty: Tensor
    positions: Tensor
    weights: Tensor


def post_lookup(
    build: NodeBuilder,
    spec: LookupSpec,
    rows: Sequence[Tensor],
    permutation: Tensor,
    bags: Bags,
    *,
    clips: bool,
) -> None:
    """Adds the op in the place of the result.

    Args:
        rows: those of each shard.
        permutation: where the distinct ids are in the shards, see `one_shard`.
        clips: whether the op does what max_norm asks for.
    """
    device = build.edit.view.nodes[build.base].device
    node = build.replacement(POST_V2, device)
    if "_output_shapes" in node.attr:
        _add_shape_of_counts(node.attr["_output_shapes"].list.shape)
    build.inputs(node, *rows, permutation, *bags)
    set_types(node, T=spec.table.dtype, Tw=spec.table.dtype)
    set_attrs(node, num_partitions=len(rows), partition_axis=0)
    set_attrs(node, **column_of(spec).only(*_BAGS, "use_sparse_weights"))
    if not clips:
        set_attrs(node, max_norm=float(NONE))
    build.add(node)


def one_shard(build: NodeBuilder) -> Tensor:
    """Returns the permutation of rows that come from one shard, which is not read."""
    return build.constant("permutation", np.zeros((1, 2), np.int32))


def unfilled(build: NodeBuilder) -> tuple[Tensor, Tensor]:
    """Returns is_row_empty and dense_shape of entries whose last one ends the result."""
    no_flags = build.constant("no_flags", np.zeros(0, np.bool_))
    return no_flags, build.constant("no_shape", np.zeros(2, np.int64))


def _add_shape_of_counts(shapes: Any) -> None:
    """Appends the shape of the second output, which has one element for each row of the first."""
    result = shapes[0]
    if result.unknown_rank or not result.dim:
        shapes.add().unknown_rank = True
    else:
        shapes.add().dim.add().size = result.dim[0].size
