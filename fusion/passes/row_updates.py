"""Updates of a table's rows by their gradients, in ops that take all rows at once.

TensorFlow's ResourceScatterAdd and ResourceScatterSub compute row by row, each in an expression of
its own; to read rows, to compute with all of them and to write them back takes half the time:

    MutexLock -> ResourceGather -> FusedEmbeddingRowUpdate -> ResourceScatterUpdate
        -> ConsumeMutexLock

That needs distinct ids. And nobody else may write between the two: within the graph nobody does,
and steps that run at the same time, in other threads, wait for the mutex, which is one for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.ops.partition import SPEC as PARTITION
from fusion.ops.row_update import DTYPES
from fusion.ops.row_update import SPEC as UPDATE
from fusion.ops.training import PRE
from fusion.ops.unique import SPEC as UNIQUE
from fusion.passes.edit import GraphEdit
from fusion.passes.fuse_lookups import FuseLookups, rewritten
from fusion.passes.graph_view import ARG_OP, GraphView, Tensor
from fusion.passes.handles import has_other_handles, writers
from fusion.passes.match import NoMatch
from fusion.passes.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.report import FusionResult, UpdateReport
from fusion.passes.safety import refuse_device
from fusion.passes.signatures import OpSignatures
from fusion.runtime.spec import OpSpec, as_dtype

#: The ops that are replaced, with the rule that they follow.
_SCATTERS = {"ResourceScatterAdd": "add", "ResourceScatterSub": "subtract"}

SCATTERS = frozenset(_SCATTERS)

_DTYPES = {as_dtype(name).as_datatype_enum: name for name in DTYPES}

#: Outputs without repeated elements, by op.
_DISTINCT = {
    UNIQUE.name: 0,
    "Unique": 0,
    "UniqueWithCounts": 0,
    "SparseSegmentMeanGradV2": 1,
    "SparseSegmentSqrtNGradV2": 1,
    "SparseSegmentSumGradV2": 1,
}

_SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})

_MUTEX = "fusion/row_updates"

#: Nobody waits for these.
_AT_ONCE = frozenset({ARG_OP, "Placeholder", "Const", "VarHandleOp"})


def update_rows(fuse: FuseLookups, done: FusionResult) -> FusionResult:
    """Returns a fused graph, about to run, with the updates of its rows replaced, and the report.

    Args:
        fuse: what the graph was fused by; it says where fused ops may be.
        done: the graph, whose functions are looked at when they are about to run themselves.
    """
    graph_def = done.graph_def
    if not any(node.op in SCATTERS for node in graph_def.node):
        return done
    signatures = OpSignatures(graph_def.library.function)
    view = GraphView(graph_def.node, signatures, fuse.preserve, awaited=fuse.awaited)
    updates = RowUpdates(view, fuse.device_types, fuse.tasks)
    verdicts = updates.verdicts()
    fused = [name for name, refusal in verdicts.items() if refusal is None]
    told = [
        UpdateReport(name, *(() if one is None else (one.reason, one.node)))
        for name, one in verdicts.items()
    ]
    report = replace(done.report, updates=tuple(told))
    if fused:
        changed = rewritten(graph_def, {"": updates.edit(fused)})
        more = len(changed.node) - len(graph_def.node)
        return FusionResult(changed, replace(report, nodes_after=report.nodes_after + more))
    return FusionResult(graph_def, report)


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
        handle, ids, _ = view.inputs(name)
        failure = refuse_device(view, name, self.device_types, self.tasks)
        if failure is not None:
            return failure
        if view.has_loops:
            return NoMatch("rows updated in a v1 loop stay as they are", name)
        if name in view.preserved:
            return NoMatch("the op that updates the rows is named outside the graph", name)
        if not self._are_distinct(ids):
            return NoMatch("ids of updated rows may be repeated", view.resolve(ids).node)
        source = view.origin(handle)
        if has_other_handles(view, source):
            return NoMatch("the variable may have another handle", source.node)
        others = (writer for writer in writers(view, source) if writer != name)
        other = next(others, None)
        if other is not None:
            return NoMatch(f"the variable is also changed by {other} ({view.op(other)})", name)
        return None

    def _are_distinct(self, ids: Tensor) -> bool:
        """Whether ids are a vector in which none can be twice."""
        view = self.view
        source = view.resolve(ids)
        while self._is_vector_of(source) or self._is_item(source, PARTITION, "num_partitions"):
            source = view.resolve(view.inputs(source.node)[0])
        if self._is_item(source, PRE, "num_columns"):
            return True
        return _DISTINCT.get(view.op(source.node)) == source.index

    def _is_vector_of(self, tensor: Tensor) -> bool:
        """Whether a tensor has the elements of another one side by side."""
        shape = self.view.shape(tensor)
        return self.view.op(tensor.node) == "Reshape" and shape is not None and len(shape) == 1

    def _is_item(self, tensor: Tensor, spec: OpSpec, count: str) -> bool:
        """Whether a tensor is in the first list of outputs of a fused op."""
        view = self.view
        return view.op(tensor.node) == spec.name and tensor.index < view.int_attr(
            tensor.node, count
        )

    def edit(self, names: Sequence[str]) -> GraphEdit:
        """Returns the rewrite of these scatter ops."""
        edit = GraphEdit(self.view)
        for group in self._independent(names):
            _Group(edit, group).emit()
        return edit

    def _independent(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yields the ops in groups of which none waits for another of the group.

        All of a group are done under one lock, which is taken when everything is there that they
        wait for: nobody who has the lock waits for anything. Where there are branches each op is
        alone: if it is in one that is not taken, so is the lock.
        """
        depth = self._depths(frozenset(names))
        has_branches = not _SWITCHES.isdisjoint(self.view.ops)
        groups: dict[tuple[int, str, str], list[str]] = defaultdict(list)
        for name in names:
            alone = name if has_branches else ""
            groups[depth[name], self.view.nodes[name].device, alone].append(name)
        yield from groups.values()

    def _depths(self, names: frozenset[str]) -> Mapping[str, int]:
        """Returns how many of the ops come one after another up to each of them, itself included.

        The graph has no loops.
        """
        view = self.view
        depth: dict[str, int] = {}
        stack = list(names)
        while stack:
            name = stack[-1]
            before = [*(tensor.node for tensor in view.inputs(name)), *view.controls(name)]
            missing = [one for one in before if one not in depth]
            if missing and name not in depth:
                stack += missing
                continue
            stack.pop()
            if name not in depth:
                deepest = max((depth[one] for one in before), default=0)
                depth[name] = deepest + (name in names)
        return depth


class _Group:
    """Emits the updates that are done under one lock."""

    def __init__(self, edit: GraphEdit, names: Sequence[str]) -> None:
        self._edit, self._names, self._view = edit, names, edit.view
        device = self._view.nodes[names[0]].device
        # Behind the last of them, in a file that is in order.
        self._build = NodeBuilder(edit, {}, names[-1], device, "")

    def emit(self) -> None:
        """Emits them and takes the stock ops out."""
        build, view = self._build, self._view
        mutex = build.node("mutex", "MutexV2")
        set_attrs(mutex, container="", shared_name=_MUTEX)
        lock = build.node("lock", "MutexLock")
        build.inputs(lock, Tensor(build.add(mutex)))
        build.add(lock)
        changes = {name: self._change(view.inputs(name)[2]) for name in self._names}
        for name, change in changes.items():
            given = (view.inputs(name)[1], *change)
            waits = (*(tensor.node for tensor in given), *view.controls(name))
            self._edit.wait(lock.name, (one for one in waits if view.op(one) not in _AT_ONCE))
        written = [self._update(name, lock.name, *change) for name, change in changes.items()]
        release = build.node("unlock", "ConsumeMutexLock")
        build.inputs(release, Tensor(lock.name))
        self._edit.wait(build.add(release), written)
        self._edit.remove(self._names, release.name)

    def _change(self, updates: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two factors of updates: as many numbers, and one as a vector."""
        view, build = self._view, self._build
        product = view.resolve(updates)
        if view.op(product.node) == "Mul":
            for one, other in (view.inputs(product.node), view.inputs(product.node)[::-1]):
                if view.shape(other) == ():
                    return one, self._as_vector(other, view.type_attr(product.node, "T"))
        dtype = _DTYPES[view.type_attr(self._names[0], "dtype")]
        return updates, build.constant("one", np.ones(1, dtype))

    def _as_vector(self, number: Tensor, dtype: int) -> Tensor:
        shape = self._build.constant("one", np.ones(1, np.int32))
        types = {"T": dtype, "Tshape": types_pb2.DT_INT32}
        return self._build.shared("factor", "Reshape", (number, shape), types)

    def _update(self, name: str, lock: str, updates: Tensor, factor: Tensor) -> str:
        """Emits the ops for one table; returns the one that writes."""
        build, view = self._build, self._view
        handle, ids, _ = view.inputs(name)
        dtype, indices = view.type_attr(name, "dtype"), view.type_attr(name, "Tindices")
        gather = build.node("rows", "ResourceGather")
        build.inputs(gather, handle, ids)
        set_types(gather, dtype=dtype, Tindices=indices)
        set_attrs(gather, batch_dims=0, validate_indices=True)
        self._edit.wait(build.add(gather), [lock])
        update = build.node("update", UPDATE.name)
        build.inputs(update, updates, factor, Tensor(gather.name))
        set_types(update, T=dtype)
        set_attrs(update, num_slots=1, rule=_SCATTERS[view.op(name)])
        write = build.node("write", "ResourceScatterUpdate")
        build.inputs(write, handle, ids, Tensor(build.add(update)))
        set_types(write, dtype=dtype, Tindices=indices)
        return build.add(write)
