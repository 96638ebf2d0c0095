"""Takes fused inference ops apart, so that each lookup is one op that reads ids.

GroupedEmbeddingLookup -> a FusedEmbeddingLookup for each column, and the concat of them, or one
    for each output
boundaries of a FusedEmbeddingLookup -> a Bucketize in front of it
a column of a matrix of ids -> a StridedSlice in front of it
ReadEmbeddingTables -> a ReadVariableOp for each variable
GroupedEmbeddingGather -> a ResourceGather for each variable
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.emit.arguments import set_column_attrs
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.emit.tables import VariableRead, stock_read
from fusion.passes.graph.edit import GraphEdit, apply_edits, bodies
from fusion.passes.graph.fused_columns import (
    FusedColumn,
    grouped_columns,
    list_attr,
    only_column,
    output_columns,
)
from fusion.passes.graph.tensor import Tensor
from fusion.schema.names import GROUPED, GROUPED_GATHER, READ_TABLES, SINGLE
from fusion.schema.op_history import NEWEST, Release

#: What TensorFlow takes for the name of a node.
_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


def ungrouped(
    graph_def: graph_pb2.GraphDef,
    preserved: frozenset[str] = frozenset(),
    runtime: Release = NEWEST,
) -> graph_pb2.GraphDef:
    """Returns the graph without grouped lookups, boundaries and shared reads, or itself.

    Args:
        graph_def: the graph, which is not changed.
        preserved: names of main-graph nodes that outsiders refer to.
        runtime: the TensorFlow release that has to know the stock ops.
    """
    edits = {}
    for view in bodies(graph_def, preserved):
        edit = _Ungroup(GraphEdit(view), runtime).edit_all()
        if edit.added:
            edits[view.function] = edit
    return apply_edits(graph_def, edits) if edits else graph_def


@dataclass(frozen=True)
class _Ungroup:
    edit: GraphEdit
    runtime: Release

    def edit_all(self) -> GraphEdit:
        """Returns the edit of a graph or a function."""
        view = self.edit.view
        for name in [*view.named(GROUPED)]:
            self._split(name)
        for name in [*view.named(SINGLE)]:
            if list_attr(view, name, "boundaries").f or view.int_attr(name, "id_column") >= 0:
                build = self._builder(name)
                self._replace(name, self._single(build, only_column(view, name), last=True))
        for name in [*view.named(READ_TABLES)]:
            self._read(name)
        for name in [*view.named(GROUPED_GATHER)]:
            self._gather(name)
        return self.edit

    def _builder(self, name: str) -> NodeBuilder:
        view = self.edit.view
        frame = view.inputs(name)[0].node
        return NodeBuilder(self.edit, name, view.nodes[name].device, frame)

    def _split(self, name: str) -> None:
        build, view = self._builder(name), self.edit.view
        columns, outputs = [*grouped_columns(view, name)], output_columns(view, name)
        last = len(outputs) == 1
        results = [
            self._joined(build, [columns[index] for index in own], last=last) for own in outputs
        ]
        if results == [Tensor(name)]:
            self._replace(name, results[0])
            return
        # Fetches of the outputs by the op's name, and control edges from it, stay valid.
        node = build.node("results", "IdentityN")
        node.name = name
        build.inputs(node, *results)
        set_types(node, T=[view.type_attr(name, "T")] * len(results))
        self.edit.remove([name], build.add(node))
        for index, result in enumerate(results):
            self.edit.replace(Tensor(name, index), result)

    def _joined(self, build: NodeBuilder, columns: Sequence[FusedColumn], *, last: bool) -> Tensor:
        """Returns columns side by side; the last op may have the group's name."""
        is_alone = len(columns) == 1
        parts = [
            column.inputs[0]
            if column.is_copy
            else self._single(build, column, last=last and is_alone)
            for column in columns
        ]
        if is_alone:  # a concat has at least two inputs
            return parts[0]
        types = {"T": build.edit.view.type_attr(build.base, "T"), "Tidx": types_pb2.DT_INT32}
        node = build.replacement("ConcatV2") if last else build.node("output", "ConcatV2")
        build.inputs(node, *parts, build.constant("axis", np.array(1, np.int32)))
        set_types(node, **types)
        set_attrs(node, N=len(parts))
        return Tensor(build.add(node))

    def _read(self, name: str) -> None:
        view, build = self.edit.view, self._builder(name)
        dtype, waits = view.type_attr(name, "T"), view.controls(name)
        colocation = tuple(group.decode() for group in list_attr(view, name, "_class").s)
        reads = []
        for index, handle in enumerate(view.inputs(name)):
            shape = view.shape(Tensor(name, index)) or (None, None)
            read = VariableRead(handle, dtype, shape, build.device, colocation, waits)
            reads.append(stock_read(build, read, self.runtime))
        self._replace_by_each(build, name, reads)

    def _gather(self, name: str) -> None:
        view, build = self.edit.view, self._builder(name)
        dtype, keys = view.type_attr(name, "T"), list_attr(view, name, "Tkeys").type
        tensors, gathers = view.inputs(name), []
        for index, key in enumerate(keys):
            node = build.node("rows", "ResourceGather")
            build.inputs(node, tensors[index], tensors[len(keys) + index])
            set_types(node, dtype=dtype, Tindices=key)
            gathers.append(build.add(node))
            self.edit.wait(node.name, view.controls(name))
        self._replace_by_each(build, name, gathers)

    def _replace_by_each(self, build: NodeBuilder, name: str, nodes: list[str]) -> None:
        """Replaces each output of a node by the only one of another."""
        view, last = self.edit.view, nodes[-1]
        for index, new in enumerate(nodes):
            self.edit.replace(Tensor(name, index), Tensor(new))
        if len(nodes) > 1 and (view.control_uses(name) or name in view.awaited):
            # Who waits for the op, as what changes a variable does, waits for all of them.
            node = build.node("tables", "NoOp")
            last = build.add(node)
            self.edit.wait(last, nodes)
        self.edit.remove([name], last)

    def _replace(self, name: str, new: Tensor) -> None:
        self.edit.remove([name], new.node)
        self.edit.replace(Tensor(name), new)

    def _single(self, build: NodeBuilder, column: FusedColumn, *, last: bool = False) -> Tensor:
        attrs, inputs, tids = column.column, column.inputs, column.dtypes[0]
        if attrs.id_column >= 0:
            inputs = (inputs[0], self._sliced(build, column), *inputs[2:])
            attrs, column = (
                replace(attrs, form="dense", id_column=-1),
                replace(column, inputs=inputs),
            )
        if column.boundaries:
            inputs = (inputs[0], self._bucketized(build, column), *inputs[2:])
            tids = types_pb2.DT_INT32
        node = build.replacement(SINGLE) if last else build.node("column", SINGLE)
        scope = column.name.partition(" ")[0]
        if not last and _NODE_NAME.fullmatch(scope):
            node.name = self.edit.unique_name(scope)
        build.inputs(node, *inputs)
        table = build.edit.view.type_attr(build.base, "T")
        set_types(node, T=table, Tids=tids, Trows=column.dtypes[1])
        set_column_attrs(node, attrs, column.name)
        return Tensor(build.add(node))

    def _sliced(self, build: NodeBuilder, column: FusedColumn) -> Tensor:
        """Returns the ids of a column of a matrix, a matrix of one column."""
        number, (_, ids, *_) = column.column.id_column, column.inputs
        key = ("StridedSlice", ids, number, build.device)
        if key not in self.edit.shared:
            node = build.node("ids", "StridedSlice")
            bounds = {"begin": [0, number], "end": [0, number + 1], "strides": [1, 1]}
            corners = (
                build.constant(role, np.array(bound, np.int32)) for role, bound in bounds.items()
            )
            build.inputs(node, ids, *corners)
            set_types(node, T=column.dtypes[0], Index=types_pb2.DT_INT32)
            set_attrs(node, begin_mask=1, end_mask=1)
            self.edit.shared[key] = build.add(node)
        return Tensor(self.edit.shared[key])

    def _bucketized(self, build: NodeBuilder, column: FusedColumn) -> Tensor:
        values, dtype = column.inputs[1], column.dtypes[0]
        key = ("Bucketize", values, dtype, column.boundaries, build.device)
        if key not in self.edit.shared:
            node = build.node("bucketize", "Bucketize")
            build.inputs(node, values)
            set_types(node, T=dtype)
            set_lists(node, boundaries=column.boundaries)
            self.edit.shared[key] = build.add(node)
        return Tensor(self.edit.shared[key])
