"""The form of lookups side by side that plain TensorFlow runs as one gather from stacked tables.

    ids of all columns side by side, plus where each table starts in the stack -> one gather

For constant tables, which the stack replaces in the graph, and for columns of at most one id per
row. A stack of Variables would be a copy of them, and old as soon as one changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.arguments import dense_values
from fusion.passes.emit.concat import ConcatEmitter
from fusion.passes.emit.node_builder import NodeBuilder, set_types
from fusion.passes.emit.stock_entries import from_the_end, in_buckets
from fusion.passes.emit.stock_nodes import all_of, as_dtype, compared, flattened, number
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import lookup_range, needs_prune
from fusion.passes.plan.plan import Group
from fusion.passes.recognise.spec import DenseIds, LookupSpec
from fusion.runtime.tensorflow.private import tensor_util

_BOOL, _INT32, _INT64 = types_pb2.DT_BOOL, types_pb2.DT_INT32, types_pb2.DT_INT64


@dataclass
class StackedEmitter:
    """Emits the lookups of a group as one gather."""

    edit: GraphEdit
    concats: ConcatEmitter

    def group(self, group: Group) -> None:
        """Emits a group; one that is all of a concat under its name, in its place."""
        view, specs = self.edit.view, [lookup.full_spec for lookup in group.lookups]
        build = self.concats.builder(group, specs[0].ids.values.node)
        dtype, count, dim = specs[0].table.dtype, len(specs), specs[0].table.shape[1]
        assert dim is not None
        stack, starts, rows = self._stack(build, specs)
        axis = build.constant("axis", np.array(1, np.int32))
        side_by_side = {"T": _INT64, "Tidx": _INT32}
        inputs = (*(_ids(build, spec) for spec in specs), axis)
        ids = build.shared("ids", "ConcatV2", inputs, side_by_side, {"N": count})
        index = build.shared("places", "AddV2", (ids, _vector(build, starts)), {"T": _INT64})
        # Such an id would find a row of another table; the end of the stack is an error.
        tests = []
        if any(_may_exceed(view, spec) for spec in specs):
            tests.append(build.shared("fits", "Less", (ids, _vector(build, rows)), {"T": _INT64}))
        if any(_may_precede(view, spec) for spec in specs):
            tests.append(compared(build, "GreaterEqual", ids, _INT64, 0))
        if tests:
            fits = all_of(build, tests)
            end = number(build, sum(rows), _INT64)
            index = build.shared("places", "SelectV2", (fits, index, end), {"T": _INT64})
        present = None
        if any(_can_be_absent(view, spec) for spec in specs):
            zero = number(build, 0, _INT64)
            present = build.shared("present", "GreaterEqual", (ids, zero), {"T": _INT64})
            index = build.shared("places", "SelectV2", (present, index, zero), {"T": _INT64})
        gathered = {"Tparams": dtype, "Tindices": _INT64, "Taxis": _INT32}
        first = build.constant("axis", np.array(0, np.int32))
        inputs = (stack, flattened(build, index, _INT64), first)
        result = build.shared("rows", "GatherV2", inputs, gathered)
        if present is not None:
            zeros = build.shared("zeros", "ZerosLike", (result,), {"T": dtype})
            inputs = (flattened(build, present, _BOOL), result, zeros)
            result = build.shared("present_rows", "Select", inputs, {"T": dtype})
        node = self.concats.node(group, build, "Reshape")
        shape = build.constant("shape", np.array([-1, count * dim], np.int32))
        build.inputs(node, result, shape)
        set_types(node, T=dtype, Tshape=_INT32)
        name = build.add(node)
        for lookup in group.lookups:
            self.edit.remove(lookup.nodes(), name)
            self.edit.wait(name, sorted(lookup.control_inputs(view)))
        self.concats.put(group, name)

    def _stack(
        self, build: NodeBuilder, specs: Sequence[LookupSpec]
    ) -> tuple[Tensor, list[int], list[int]]:
        """Adds the stack: where it is, where each column's table starts in it, and its rows."""
        view = self.edit.view
        offsets: dict[Tensor, int] = {}
        parts, starts, rows, total = [], list[int](), list[int](), 0
        for spec in specs:
            table = view.resolve(spec.table.shards[0].tensor)
            value = view.constant(table)
            assert value is not None, "only constants are stacked"
            if table not in offsets:
                offsets[table] = total
                parts.append(value)
                total += len(value)
            starts.append(offsets[table])
            rows.append(len(value))
        key = ("stack", *offsets, build.device)
        if key not in self.edit.shared:
            node = build.node("tables", "Const")
            proto = tensor_util.make_tensor_proto(np.concatenate(parts))
            node.attr["value"].tensor.CopyFrom(proto)
            set_types(node, dtype=proto.dtype)
            self.edit.shared[key] = build.add(node)
            self.edit.wait(node.name, build.frame_anchor())
        return Tensor(self.edit.shared[key]), starts, rows


def _can_be_absent(view: GraphView, spec: LookupSpec) -> bool:
    """Whether a row may have no id, which is negative then."""
    ids = spec.ids
    return (isinstance(ids, DenseIds) and ids.hashed is not None) or needs_prune(view, spec)


def _may_exceed(view: GraphView, spec: LookupSpec) -> bool:
    """Whether an id may lie behind the table."""
    high, rows = lookup_range(view, spec).high, spec.table.shape[0]
    return high is None or rows is None or high >= rows


def _may_precede(view: GraphView, spec: LookupSpec) -> bool:
    """Whether an id may be negative, which is an error and not one that is pruned."""
    low = lookup_range(view, spec).low
    return not _can_be_absent(view, spec) and (low is None or low < 0)


def _ids(build: NodeBuilder, spec: LookupSpec) -> Tensor:
    """Returns int64 [B, 1], negative where a row has no id."""
    ids = spec.ids
    assert isinstance(ids, DenseIds)
    values = dense_values(build, ids)
    dtype = ids.dtype if ids.hashed is None else _INT64
    of = build.edit.view.shape(ids.values)
    if ids.is_each and (of is None or len(of) != 2 or of[1] != 1):
        shape = build.constant("column", np.array([-1, 1], np.int32))
        values = build.shared("column", "Reshape", (values, shape), {"T": dtype, "Tshape": _INT32})
    values = in_buckets(build, spec, as_dtype(build, values, dtype, spec.dtype))
    if ids.wraps:
        values = from_the_end(build, spec, values)
    return as_dtype(build, values, spec.dtype, _INT64)


def _vector(build: NodeBuilder, numbers: Sequence[int]) -> Tensor:
    return build.constant("by_column", np.array(numbers, np.int64))
