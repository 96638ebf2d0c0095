"""The form of a lookup that plain TensorFlow runs: stock ops, as few of them as its numbers take.

    one id per row:  ids made valid -> gather -> zeros where there was none
    else:            pruned entries -> SparseSegmentSum (Mean, SqrtN) over the table itself
    with weights:    pruned and filled entries -> gather, product -> SegmentSum and its division

Distinct ids are only looked for where rows are clipped, come from several shards, or from a table
that must not be read whole. Empty rows are only filled where they get an id, or where entries may
be in another order than that of their rows, which the stock op that fills also repairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.emit.products import finish, replace_sizes, with_plain_ids
from fusion.passes.emit.stock_entries import Entries, entries, one_per_row
from fusion.passes.emit.stock_nodes import as_dtype, emit_clip, number, split_ids
from fusion.passes.emit.tables import Reader, copied_clip, gather, read_table
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.forms import has_one_per_row
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import LookupSpec, ShardSpec
from fusion.passes.recognise.stock.products import Product
from fusion.passes.recognise.stock.reduction import COMBINERS
from fusion.schema.attributes import HALF_TYPES
from fusion.schema.op_history import Release

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_REDUCTIONS = {combiner: op for op, combiner in COMBINERS.items()}


@dataclass
class StockEmitter:
    """Emits lookups one by one; equal nodes are emitted once and shared.

    Attributes:
        edit: the rewrite.
        runtime: the TensorFlow release that has to know the ops.
    """

    edit: GraphEdit
    runtime: Release

    def lookup(self, lookup: LookupMatch, reads_whole: bool) -> None:
        """Emits one lookup under the name of its output and takes its nodes out.

        Args:
            lookup: which one.
            reads_whole: whether its table can be read whole, see `read_table`.
        """
        build, product = NodeBuilder.of(self.edit, lookup.full_spec), lookup.parts.whole
        spec = with_plain_ids(build, lookup.full_spec)
        emitted = _Lookup(build, replace(lookup, spec=spec), self.runtime)
        if has_one_per_row(self.edit.view, spec):
            last = emitted.one_per_row()
        elif spec.weights is not None:
            last = emitted.weighted()
        else:
            last = emitted.reduced(reads_whole)
        if isinstance(product, Product):
            replace_sizes(build, product)
        if isinstance(product, Product) and not product.is_bag:
            assert last is not None, "encoded ids may be none of the table's"
            finish(build, product, build.shared("bag", *last))
        elif last is not None:
            build.result(*last)
        self.edit.remove(lookup.nodes(), build.base)
        self.edit.wait(build.base, sorted(lookup.control_inputs(self.edit.view)))
        self.edit.replace(spec.output, Tensor(build.base))


class _Op(NamedTuple):
    """An op that is not added yet."""

    op: str
    inputs: tuple[Tensor, ...]
    types: Mapping[str, int]


@dataclass(frozen=True)
class _Lookup:
    """Emits all of a lookup but its last op, which it returns."""

    build: NodeBuilder
    lookup: LookupMatch
    runtime: Release

    @property
    def spec(self) -> LookupSpec:
        """What is computed."""
        return self.lookup.full_spec

    def one_per_row(self) -> _Op | None:
        """A gather, and zeros where a row has no id; None if the gather is the last op."""
        column = one_per_row(self.build, self.spec)
        if column.present is not None:
            return self._or_zeros(column.present, self._rows(column.ids), is_present=True)
        if self._needs_distinct:
            return self._picked(column.ids)
        self._gathered(self.spec.table.shards[0], column.ids, last=True)
        return None

    def reduced(self, reads_whole: bool) -> _Op:
        """The sparse segment reduction of the table, or of the distinct rows."""
        spec, build = self.spec, self.build
        bags = entries(build, spec)
        if reads_whole and not self._needs_distinct:
            counted = () if bags.count is None else (bags.count,)
            matrix = read_table(build, Reader(self.lookup, (bags.ids, bags.rows, *counted)))
            index, index_dtype = bags.ids, spec.dtype
        else:
            matrix, index = self._distinct_rows(bags.ids)
            index_dtype = _INT32
        op, rows, rows_dtype = _REDUCTIONS[spec.combiner], bags.rows, bags.rows_dtype
        if not self.runtime.has(op, "Tsegmentids"):
            # Lookups had them cast then.
            rows, rows_dtype = as_dtype(build, rows, rows_dtype, _INT32), _INT32
        inputs: tuple[Tensor, ...] = (matrix, index, rows)
        types = {"T": spec.table.dtype, "Tidx": index_dtype, "Tsegmentids": rows_dtype}
        if bags.count is not None:
            inputs, op = (*inputs, bags.count), f"{op}WithNumSegments"
            types |= {"Tnumsegments": _INT64}
        return self._emptied(bags, _Op(op, inputs, types))

    def weighted(self) -> _Op:
        """The sum of weighted rows, divided by what the combiner asks for."""
        spec, build, dtype = self.spec, self.build, self.spec.table.dtype
        bags = entries(build, spec)
        assert bags.weights is not None
        rows, weights = self._rows(bags.ids), bags.weights
        if self._is_widened():
            narrow, dtype = dtype, types_pb2.DT_FLOAT
            rows, weights = (as_dtype(build, tensor, narrow, dtype) for tensor in (rows, weights))
        axis = build.constant("axis", np.array(1, np.int32))
        column = build.shared("column", "ExpandDims", (weights, axis), {"T": dtype, "Tdim": _INT32})
        product = build.shared("product", "Mul", (rows, column), {"T": dtype})
        sums = {"T": dtype, "Tindices": bags.rows_dtype}
        result = _Op("SegmentSum", (product, bags.rows), sums)
        if spec.combiner != "sum":
            terms = column
            if spec.combiner == "sqrtn":
                terms = build.shared("squares", "Square", (column,), {"T": dtype})
            divisor = build.shared("divisor", "SegmentSum", (terms, bags.rows), sums)
            if spec.combiner == "sqrtn":
                divisor = build.shared("divisor", "Sqrt", (divisor,), {"T": dtype})
            division = "DivNoNan" if spec.column.divide_no_nan else "RealDiv"
            result = _Op(division, (build.shared("sum", *result), divisor), {"T": dtype})
        if dtype != spec.table.dtype:
            types = {"SrcT": dtype, "DstT": spec.table.dtype}
            result = _Op("Cast", (build.shared("wide", *result),), types)
        return self._emptied(bags, result)

    def _is_widened(self) -> bool:
        """Whether half types are multiplied as float32, as today's TensorFlow does."""
        view, dtype = self.build.edit.view, self.spec.table.dtype
        if dtype not in HALF_TYPES:
            return False
        return self.lookup.has_few_ops or view.type_attr(self.spec.anchor, "T") != dtype

    def _emptied(self, bags: Entries, result: _Op) -> _Op:
        """Puts zeros in rows that were empty, if such were filled."""
        if bags.is_row_empty is None:
            return result
        return self._or_zeros(
            bags.is_row_empty, self.build.shared("reduced", *result), is_present=False
        )

    def _or_zeros(self, flags: Tensor, rows: Tensor, *, is_present: bool) -> _Op:
        types = {"T": self.spec.table.dtype}
        zeros = self.build.shared("zeros", "ZerosLike", (rows,), types)
        return _Op("Select", (flags, rows, zeros) if is_present else (flags, zeros, rows), types)

    @property
    def _needs_distinct(self) -> bool:
        """Whether rows are stitched or clipped, which is enough to do once for each distinct id."""
        return bool(self.spec.table.strategy) or self.spec.table.max_norm is not None

    def _rows(self, ids: Tensor) -> Tensor:
        """Returns the row of each id."""
        if self._needs_distinct:
            return self.build.shared("rows", *self._picked(ids))
        return self._gathered(self.spec.table.shards[0], ids)

    def _picked(self, ids: Tensor) -> _Op:
        """The row of each id, out of the distinct ones."""
        matrix, index = self._distinct_rows(ids)
        types = {"Tparams": self.spec.table.dtype, "Tindices": _INT32, "Taxis": _INT32}
        axis = self.build.constant("axis", np.array(0, np.int32))
        return _Op("GatherV2", (matrix, index, axis), types)

    def _gathered(self, shard: ShardSpec, ids: Tensor, *, last: bool = False) -> Tensor:
        rows = gather(self.build, self.spec, shard, ids, last=last)
        edit = self.build.edit
        edit.wait(rows.node, sorted(self.lookup.control_inputs(edit.view)))
        return rows

    def _distinct_rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns rows of distinct ids, and for each id the index of its row among them."""
        build, spec = self.build, self.spec
        types = {"T": spec.dtype, "out_idx": _INT32}
        unique = build.shared("unique", "Unique", (ids,), types).node
        keys = Tensor(unique, 0)
        if spec.table.strategy:
            rows = self._stitched(keys)
        else:
            rows = self._gathered(spec.table.shards[0], keys)
        if spec.table.max_norm is not None:
            table = self.lookup.parts.table
            clip = None if table is None else table.clip
            if clip is not None and clip.nodes:
                rows = copied_clip(build, clip, rows)
            else:
                rows = emit_clip(build, spec, rows)
        return rows, Tensor(unique, 1)

    def _stitched(self, keys: Tensor) -> Tensor:
        """Emits the gathers of a partitioned table as stock TensorFlow does."""
        build, spec, dtype = self.build, self.spec, self.spec.dtype
        count = len(spec.table.shards)
        shard, local = split_ids(build, spec, keys)
        size = build.shared("size", "Size", (keys,), {"T": dtype, "out_type": _INT32})
        limits = number(build, 0, _INT32), size, number(build, 1, _INT32)
        index = build.shared("places", "Range", limits, {"Tidx": _INT32})
        parts = {"num_partitions": count}
        of_ids = build.shared("ids", "DynamicPartition", (local, shard), {"T": dtype}, parts).node
        of_index = build.shared(
            "places", "DynamicPartition", (index, shard), {"T": _INT32}, parts
        ).node
        shards = enumerate(spec.table.shards)
        rows = [self._gathered(matrix, Tensor(of_ids, k)) for k, matrix in shards]
        inputs = (*(Tensor(of_index, k) for k in range(count)), *rows)
        types = {"T": spec.table.dtype}
        return build.shared("stitched", "ParallelDynamicStitch", inputs, types, {"N": count})
