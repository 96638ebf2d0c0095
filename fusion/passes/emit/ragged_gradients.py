"""What gradients read of bags that row splits say, in few stock ops instead of some forty.

the number of each entry's bag    the first column of RaggedTensorToSparse's indices
how many entries a bag has        the lengths, as numbers of the table's dtype
the gradient of each entry        a gather of that of its bag
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.plan.plan import Group, Lowering
from fusion.passes.plan.training_step import dtype_of
from fusion.passes.recognise.backward.ragged_gradients import spreads_of
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import RaggedIds
from fusion.passes.recognise.stock.ragged_sums import RaggedSum

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64

_COUNTED = frozenset({types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE})
"""Dtypes in which a sum of ones is rounded for no bag that fits into memory."""


@dataclass
class RaggedGradientEmitter:
    """Emits what others read of the bags of lookups that have been emitted."""

    edit: GraphEdit

    def finish(self, groups: Iterable[Group]) -> None:
        """Takes out what stock computes of row splits."""
        view = self.edit.view
        lookups = [
            lookup
            for group in groups
            if group.form in (Lowering.GROUPED, Lowering.SINGLE)
            for lookup in group.lookups
            if isinstance(lookup.parts.whole, RaggedSum)
        ]
        if not lookups or view.has_loops:
            return
        gone = dead_with(view, self.edit.removed, unseen=False).union(self.edit.removed)
        for lookup in lookups:
            whole = lookup.parts.whole
            assert isinstance(whole, RaggedSum)
            if whole.counts is not None and self._is_read(whole.counts, gone):
                self._count(lookup, whole, whole.counts)
            else:
                gone.update(whole.of_ids)
        for lookup in lookups:
            whole = lookup.parts.whole
            assert isinstance(whole, RaggedSum)
            if whole.rows.node not in self.edit.removed and self._is_read(whole.rows, gone):
                self._number(lookup, whole)

    def _is_read(self, tensor: Tensor, gone: set[str]) -> bool:
        """Whether a tensor has consumers that stay, and is neither fetched nor returned."""
        view = self.edit.view
        uses = view.uses(tensor.node)
        if tensor.node in view.preserved or any(use.position < 0 for use in uses):
            return False
        return any(use.node not in gone and view.is_live(use.node) for use in uses)

    def _count(self, lookup: LookupMatch, whole: RaggedSum, counts: Tensor) -> None:
        """Emits how many entries bags have, in the shape that stock's sum of ones has."""
        edit, dtype = self.edit, lookup.full_spec.table.dtype
        lengths, width = whole.splits.lengths, whole.count_width
        if dtype not in _COUNTED or lengths is None or width is None:
            return
        build = self._builder(counts)
        types = {"SrcT": dtype_of(edit.view, lengths), "DstT": dtype}
        numbers = build.shared("lengths", "Cast", (lengths,), types)
        column = build.constant("column", np.array([-1, 1], np.int32))
        types = {"T": dtype, "Tshape": _INT32}
        result = build.shared("column", "Reshape", (numbers, column), types)
        if width > 1:
            once = build.constant("columns", np.array([1, width], np.int32))
            types = {"T": dtype, "Tmultiples": _INT32}
            result = build.shared("columns", "Tile", (result, once), types)
        self._replace(lookup, counts, result)

    def _number(self, lookup: LookupMatch, whole: RaggedSum) -> None:
        """Emits the number of each entry's bag, and what is gathered by these numbers."""
        view, rows = self.edit.view, whole.rows
        ids, spec = lookup.full_spec.ids, lookup.full_spec
        assert isinstance(ids, RaggedIds)
        build = self._builder(rows)
        types = {"T": spec.dtype, "Tsplits": ids.splits_dtype}
        inputs = (ids.row_splits, ids.values)
        indices = build.shared("indices", "RaggedTensorToSparse", inputs, types, {"RAGGED_RANK": 1})
        bounds = (build.constant("at", np.array(at, np.int32)) for at in ([0, 0], [0, 1], [1, 1]))
        masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
        types = {"T": _INT64, "Index": _INT32}
        numbers = build.shared("rows", "StridedSlice", (indices, *bounds), types, masks)
        dtype = dtype_of(view, rows)
        for spread in spreads_of(Value(view, rows)):
            if spread.node not in view.preserved and view.is_live(spread.node):
                self._gather(spread.node, spread.bags, numbers)
        if dtype != _INT64:
            numbers = build.shared("rows", "Cast", (numbers,), {"SrcT": _INT64, "DstT": dtype})
        self._replace(lookup, rows, numbers)

    def _gather(self, select: str, bags: Tensor, numbers: Tensor) -> None:
        edit, view = self.edit, self.edit.view
        build = self._builder(Tensor(select))
        axis = build.constant("axis", np.array(0, np.int32))
        types = {"Tparams": view.type_attr(select, "T"), "Tindices": _INT64, "Taxis": _INT32}
        build.result("GatherV2", (bags, numbers, axis), types, {"batch_dims": 0})
        edit.remove([select], select)
        edit.replace(Tensor(select), Tensor(select))

    def _builder(self, tensor: Tensor) -> NodeBuilder:
        device = self.edit.view.nodes[tensor.node].device
        return NodeBuilder(self.edit, tensor.node, device, "")

    def _replace(self, lookup: LookupMatch, stock: Tensor, new: Tensor) -> None:
        self.edit.remove([stock.node], new.node)
        self.edit.wait(new.node, sorted(lookup.control_inputs(self.edit.view)))
        self.edit.replace(stock, new)
