"""Emits the updates of tables, each as one op."""

from __future__ import annotations

from collections.abc import Iterable

from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.passes.analysis.variables import is_accessed_by_rows
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.emit.scalars import SharedScalars
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.updates.slices import column_slice
from fusion.passes.recognise.updates.table_update import TableUpdate
from fusion.schema.names import UPDATE


def emit_updates(edit: GraphEdit, updates: Iterable[TableUpdate]) -> None:
    """Emits each update in the place of its last write, and takes the stock ops out."""
    scalars = SharedScalars(edit)
    for update in updates:
        _emit(edit, update, scalars)


def _emit(edit: GraphEdit, update: TableUpdate, shared: SharedScalars) -> None:
    view = edit.view
    for stage in update.stages:
        build = NodeBuilder(edit, stage.writes[-1], view.nodes[stage.writes[-1]].device, "")
        node = build.replacement(UPDATE)
        slices = [column_slice(Value(view, tensor), update.dim) for tensor in stage.entries]
        scalars = [_number(build, shared, tensor, node.name) for tensor in stage.scalars]
        wholes = (entries.whole.tensor for entries in slices)
        handles = [update.handles[variable] for variable in stage.variables]
        build.inputs(node, *handles, update.ids, *wholes, *scalars)
        inputs = Inputs(
            len(handles), len(slices), len(scalars), len(stage.results), update.deduplicates
        )
        set_types(node, T=update.dtype, Tid=view.dtype(update.ids))
        set_attrs(
            node,
            num_variables=inputs.variables,
            num_values=inputs.values,
            num_scalars=inputs.scalars,
            num_results=inputs.results,
            dim=update.dim,
            program=stage.program,
            code=lower(stage.program, inputs),
            deduplicate=update.deduplicates,
            wrap_negative=update.wraps_negative,
        )
        set_lists(
            node,
            offsets=[entries.offset for entries in slices],
            sparse=[is_accessed_by_rows(view, variable) for variable in stage.variables],
        )
        build.add(node)
        for index, result in enumerate(stage.results):
            edit.replace(result, Tensor(node.name, index))
        edit.remove(stage.writes, node.name)
        edit.remove_pure((name for name in stage.nodes if name not in view.preserved), node.name)
        # Nodes with other consumers stay, and read the variable before the update.
        edit.wait(node.name, stage.early)
        edit.wait(node.name, _reads_before(view, update, stage.nodes))


def _number(build: NodeBuilder, shared: SharedScalars, tensor: Tensor, reader: str) -> Tensor:
    """The number that all elements of a tensor are, for a new node."""
    view = build.edit.view
    matrix = None if tensor.node in view.preserved else view.constant(tensor)
    # What a constant waits for may wait for the new node; outside of loops it is no matter when.
    if matrix is not None and (matrix.size > 1 or view.controls(tensor.node)):
        return build.constant("number", matrix.flat[0])
    return shared.of(tensor, reader)


def _reads_before(view: GraphView, update: TableUpdate, nodes: Iterable[str]) -> list[str]:
    """Returns the reads that an update must wait for, since its nodes had control edges from them.

    In place of a read behind a Merge it is the Merge: the read may be dead, which would keep the
    update from running.
    """
    own = {*update.writes, *(name for stage in update.stages for name in stage.nodes)}

    def is_read(name: str) -> bool:
        return any(view.origin(tensor) in update.handles for tensor in view.inputs(name))

    reads = []
    controls = (before for name in nodes for before in view.controls(name))
    for name in _ancestors(view, controls, own, through_merges=False):
        names = [name]
        if view.op(name) == "Merge":
            names = [*_ancestors(view, names, own, through_merges=True)]
        if any(map(is_read, names)):
            reads.append(name)
    return reads


def _ancestors(
    view: GraphView, names: Iterable[str], ignored: set[str], *, through_merges: bool
) -> Iterable[str]:
    """Returns nodes and what they wait for."""

    def step(name: str) -> Iterable[str]:
        if view.op(name) == "Merge" and not through_merges:
            return ()
        return (before for before in view.before(name) if before not in ignored)

    return reached((name for name in names if name not in ignored), step)
