"""Emits the updates of tables, each as one op."""

from __future__ import annotations

from collections.abc import Iterable

from fusion.passes.analysis.variables import is_accessed_by_rows
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.emit.scalars import SharedScalars
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.recognise.updates.table_update import TableUpdate
from fusion.schema.names import UPDATE


def emit_updates(edit: GraphEdit, updates: Iterable[TableUpdate]) -> None:
    """Emits each update in the place of its last write, and takes the stock ops out."""
    scalars = SharedScalars(edit)
    for update in updates:
        _emit(edit, update, scalars)


def _emit(edit: GraphEdit, update: TableUpdate, shared: SharedScalars) -> None:
    view = edit.view
    build = NodeBuilder(edit, update.name, view.nodes[update.name].device, "")
    node = build.replacement(UPDATE)
    scalars = [shared.of(tensor, node.name) for tensor in update.scalars]
    build.inputs(
        node, *update.handles, update.ids, *(value.whole for value in update.values), *scalars
    )
    set_types(node, T=update.dtype, Tid=view.dtype(update.ids))
    set_attrs(
        node,
        num_variables=len(update.handles),
        num_values=len(update.values),
        num_scalars=len(scalars),
        num_results=0,
        dim=update.dim,
        program=update.program,
    )
    set_lists(
        node,
        offsets=[value.offset for value in update.values],
        sparse=[is_accessed_by_rows(view, handle) for handle in update.handles],
    )
    build.add(node)
    edit.remove((*update.writes, *update.reads), node.name)
    edit.remove_pure((name for name in update.pure if name not in view.preserved), node.name)
