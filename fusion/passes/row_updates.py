"""Updates of a table's rows by their gradients, in ops that take all rows at once.

TensorFlow's ResourceScatterAdd and ResourceScatterSub compute row by row, each in an expression of
its own; to read rows, to compute with all of them and to write them back takes half the time:

    ResourceGather -> FusedEmbeddingRowUpdate -> ResourceScatterUpdate

That needs distinct ids, and nobody else may write between the two. In the graph nobody does; other
threads could, so this is done only for those who say that there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.analysis.variables import has_other_handles, writers
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import count_nodes
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.match import NoMatch
from fusion.passes.report.report import FusionReport, FusionResult, UpdateReport
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import ROW_UPDATE_DTYPES
from fusion.schema.devices import CPU_ALONE, Devices
from fusion.schema.names import (
    GROUPED_POST_GRAD,
    GROUPED_PRE,
    PARTITION,
    POST_V1_GRAD,
    POST_V2_GRAD,
    ROW_UPDATE,
    UNIQUE,
)

#: The ops that are replaced, with the rule that they follow.
_SCATTERS = {"ResourceScatterAdd": "add", "ResourceScatterSub": "subtract"}

SCATTERS = frozenset(_SCATTERS)

_DTYPES = {DTYPES[name].enum: name for name in ROW_UPDATE_DTYPES}

#: Outputs without repeated elements, by op.
_DISTINCT = {
    UNIQUE: 0,
    "Unique": 0,
    "UniqueWithCounts": 0,
    "SparseSegmentMeanGradV2": 1,
    "SparseSegmentSqrtNGradV2": 1,
    "SparseSegmentSumGradV2": 1,
}

#: Ops that give gradients of rows, one row for each id.
_GRADIENTS = frozenset(
    {GROUPED_POST_GRAD, POST_V2_GRAD, POST_V1_GRAD, "UnsortedSegmentSum", "SegmentSum"}
    | {
        f"SparseSegment{kind}Grad{version}"
        for kind in ("Sum", "Mean", "SqrtN")
        for version in ("", "V2")
    }
)
_ELEMENTWISE = frozenset(
    {"AddN", "AddV2", "Cast", "DivNoNan", "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "Select"}
    | {"SelectV2", "Square", "Sub"}
)


@dataclass(frozen=True)
class FuseRowUpdates:
    """Replaces the updates of rows in a graph that is about to run.

    Functions are looked at when they are about to run themselves.

    Attributes:
        preserve, awaited, tasks, devices: see `LookupPass`.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    tasks: frozenset[str] | None = None
    devices: Devices = CPU_ALONE

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""
        count = count_nodes(graph_def)
        if not any(node.op in SCATTERS for node in graph_def.node):
            return FusionResult(graph_def, FusionReport((), count, count), modified=False)
        signatures = OpSignatures(graph_def.library.function)
        view = GraphView(graph_def.node, signatures, self.preserve, awaited=self.awaited)
        updates = RowUpdates(view, self.devices.types, self.tasks)
        verdicts = updates.verdicts()
        fused = [name for name, refusal in verdicts.items() if refusal is None]
        result = apply_edits(graph_def, {"": updates.edit(fused)}) if fused else graph_def
        reports = tuple(
            UpdateReport(name, *(() if refusal is None else (refusal.reason, refusal.node)))
            for name, refusal in verdicts.items()
        )
        report = FusionReport((), count, count_nodes(result), reports)
        return FusionResult(result, report, modified=bool(fused))


@dataclass(frozen=True)
class RowUpdates:
    """What is found of a graph's row updates, and what may be replaced.

    Attributes:
        view: the graph.
        device_types: the device types that the fused op has a kernel for.
        tasks: the processes that know it, as device names begin with them; None: all.
    """

    view: GraphView
    device_types: frozenset[str]
    tasks: frozenset[str] | None

    def verdicts(self) -> dict[str, NoMatch | None]:
        """Returns the scatter ops of float matrices, each with the reason to leave it, if any."""
        names = (name for name, node in self.view.nodes.items() if node.op in SCATTERS)
        return {name: self._refusal(name) for name in names if self._is_of_matrix(name)}

    def _is_of_matrix(self, name: str) -> bool:
        view = self.view
        shape = view.variable_shape(view.inputs(name)[0])
        return view.type_attr(name, "dtype") in _DTYPES and shape is not None and len(shape) == 2

    def _refusal(self, name: str) -> NoMatch | None:
        view = self.view
        handle, ids, updates = view.inputs(name)
        failure = refuse_device(view, name, self.device_types, self.tasks)
        if failure is not None:
            return failure
        if view.has_loops:
            return NoMatch("rows updated in a graph with loops stay as they are", name)
        if name in view.preserved:
            return NoMatch("the op that updates the rows is named outside the graph", name)
        if not self._are_distinct(ids):
            return NoMatch("ids of updated rows may be repeated", view.resolve(ids).node)
        if not self._is_matrix(updates):
            return NoMatch("updates may be one number for all rows", view.resolve(updates).node)
        source = view.origin(handle)
        if has_other_handles(view, source):
            return NoMatch("the variable may have another handle", source.node)
        others = (writer for writer in writers(view, source) if writer != name)
        other = next(others, None)
        if other is not None:
            return NoMatch(f"the variable is also changed by {other} ({view.op(other)})", name)
        return None

    def _is_matrix(self, updates: Tensor) -> bool:
        """Whether it is sure that updates are no single number; their sizes are checked later."""
        view = self.view
        seen, stack = set[Tensor](), [updates]
        while stack:
            tensor = view.resolve(stack.pop())
            if tensor in seen:
                continue
            seen.add(tensor)
            shape, op, inputs = view.shape(tensor), view.op(tensor.node), view.inputs(tensor.node)
            is_made = op == "Reshape" and view.shape(inputs[1]) == (2,)
            if (shape is not None and len(shape) == 2) or op in _GRADIENTS or is_made:
                return True
            if shape is None and op in _ELEMENTWISE:
                # Its rank is that of its largest input.
                stack += inputs
        return False

    def _are_distinct(self, ids: Tensor) -> bool:
        """Whether ids are a vector in which none can be twice, and that nobody feeds."""
        view = self.view
        source = self._source(ids)
        while self._is_vector_of(source) or self._is_item(source, PARTITION, "num_partitions"):
            if source.node in view.preserved:
                return False
            source = self._source(view.inputs(source.node)[0])
        if source.node in view.preserved:
            return False
        if self._is_item(source, GROUPED_PRE, "num_columns"):
            return True
        return _DISTINCT.get(view.op(source.node)) == source.index

    def _source(self, tensor: Tensor) -> Tensor:
        """Where a tensor comes from; one that may be fed comes from nowhere."""
        fed = (name for name in self.view.aliases(tensor) if name in self.view.preserved)
        return Tensor(name) if (name := next(fed, "")) else self.view.resolve(tensor)

    def _is_vector_of(self, tensor: Tensor) -> bool:
        """Whether a tensor has the elements of another one side by side."""
        shape = self.view.shape(tensor)
        return self.view.op(tensor.node) == "Reshape" and shape is not None and len(shape) == 1

    def _is_item(self, tensor: Tensor, op: str, count: str) -> bool:
        """Whether a tensor is in the first list of outputs of a fused op."""
        view = self.view
        return view.op(tensor.node) == op and tensor.index < view.int_attr(tensor.node, count)

    def edit(self, names: Sequence[str]) -> GraphEdit:
        """Returns the rewrite of these scatter ops."""
        edit = GraphEdit(self.view)
        written = {name: edit.unique_name(f"{name}/write") for name in names}
        for name in names:
            self._emit(edit, name, written)
        return edit

    def _emit(
        self,
        edit: GraphEdit,
        name: str,
        written: Mapping[str, str],
    ) -> None:
        """Emits the update of one table and takes the stock op out."""
        view = self.view
        build = NodeBuilder(edit, name, view.nodes[name].device, "")
        handle, ids, _ = view.inputs(name)
        updates, factor = self._factors(build, name)
        dtype, indices = view.type_attr(name, "dtype"), view.type_attr(name, "Tindices")
        gather = build.node("rows", "ResourceGather")
        build.inputs(gather, handle, ids)
        set_types(gather, dtype=dtype, Tindices=indices)
        set_attrs(gather, batch_dims=0, validate_indices=True)
        # As late as can be, so that the rows are still in the caches when they are written.
        before = (updates.node, *view.controls(name))
        edit.wait(build.add(gather), (written.get(node, node) for node in before))
        update = build.node("update", ROW_UPDATE)
        build.inputs(update, updates, factor, Tensor(gather.name))
        set_types(update, T=dtype)
        set_attrs(update, num_slots=1, rule=_SCATTERS[view.op(name)])
        write = build.node("write", "ResourceScatterUpdate")
        build.inputs(write, handle, ids, Tensor(build.add(update)))
        set_types(write, dtype=dtype, Tindices=indices)
        build.add(write)
        edit.remove([name], write.name)

    def _factors(self, build: NodeBuilder, name: str) -> tuple[Tensor, Tensor]:
        """Returns two factors of what is added: a matrix, and a number as a vector."""
        view = self.view
        updates = view.inputs(name)[2]
        product = self._source(updates)
        is_free = product.node not in view.preserved and not view.controls(product.node)
        if view.op(product.node) == "Mul" and is_free:
            for matrix, scalar in (view.inputs(product.node), view.inputs(product.node)[::-1]):
                if view.shape(scalar) == ():
                    shape = build.constant("one", np.ones(1, np.int32))
                    types = {"T": view.type_attr(name, "dtype"), "Tshape": types_pb2.DT_INT32}
                    return matrix, build.shared("factor", "Reshape", (scalar, shape), types)
        dtype = _DTYPES[view.type_attr(name, "dtype")]
        return updates, build.constant("one", np.ones(1, dtype))
