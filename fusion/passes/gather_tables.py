"""Gathers from variables in place of gathers from what is read of them.

Of a variable whose rows are written each read is a copy:

    ReadVariableOp -> GatherV2                  becomes  ResourceGather

That may read rows later than stock, so everything that may change the variable has to wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.order import Order
from fusion.passes.analysis.variables import has_other_handles, writers, writes_rows
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import BRANCH_OPS, Tensor
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import count_nodes
from fusion.passes.plan.forms import placement
from fusion.passes.report.report import FusionReport, FusionResult
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES
from fusion.schema.devices import CPU_ALONE, Devices


@dataclass(frozen=True)
class GatherTables:
    """Replaces reads of tables that gathers alone need, in a graph that is about to run.

    Functions are looked at when they are about to run themselves.

    Attributes:
        preserve, awaited, devices: see `LookupPass`.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    devices: Devices = CPU_ALONE

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`; nothing is reported."""
        count = count_nodes(graph_def)
        same = FusionResult(graph_def, FusionReport((), count, count), modified=False)
        if not {"ReadVariableOp", "GatherV2"} <= {node.op for node in graph_def.node}:
            return same
        signatures = OpSignatures(graph_def.library.function)
        home = self.devices.home
        view = GraphView(graph_def.node, signatures, self.preserve, None, self.awaited, home)
        reads = [] if view.has_loops else movable_reads(view)
        edit = _edit(view, reads)
        if not reads or edit.is_circular():
            return same
        result = apply_edits(graph_def, {"": edit})
        return FusionResult(result, FusionReport((), count, count_nodes(result)), modified=True)


@dataclass(frozen=True)
class TableRead:
    """The read of a variable whose rows are written.

    Attributes:
        node: the ReadVariableOp.
        aliases: what hands on its value.
        gathers: all that reads it.
    """

    node: str
    aliases: tuple[str, ...]
    gathers: tuple[str, ...]


def movable_reads(view: GraphView) -> list[TableRead]:
    """Returns the reads in whose place gathers from the variable give the same rows."""
    reads = list(_reads(view))
    moved = {name: read.gathers for read in reads for name in (read.node, *read.aliases)}
    order = Order(view, (gather for read in reads for gather in read.gathers), moved=moved)
    return [
        read
        for read in reads
        if all(
            order.is_before(gather, writer)
            for writer in writers(view, _source(view, read.node))
            for gather in read.gathers
        )
    ]


def _reads(view: GraphView) -> Iterator[TableRead]:
    """Yields reads of variables whose rows are written, and of which only rows are read."""
    for name in view.named("ReadVariableOp"):
        source = _source(view, name)
        if view.type_attr(name, "dtype") not in TABLE_TYPES or has_other_handles(view, source):
            continue
        if not any(writes_rows(view, writer) for writer in writers(view, source)):
            continue
        names = [name]
        gathers: dict[str, None] = {}
        for one in names:
            for use in view.uses(one):
                if view.resolve(Tensor(use.node)) == Tensor(name):
                    names.append(use.node)
                else:
                    gathers[use.node] = None
        if gathers and view.preserved.isdisjoint(names):
            read = TableRead(name, tuple(names[1:]), tuple(gathers))
            if all(_is_movable(view, gather, name) for gather in gathers):
                yield read


def _source(view: GraphView, read: str) -> Tensor:
    return view.origin(view.inputs(read)[0])


def _is_movable(view: GraphView, gather: str, read: str) -> bool:
    """Whether a node gathers rows of what is read, and could from the variable."""
    if view.op(gather) != "GatherV2" or not is_row_gather(Node(view, gather)):
        return False
    table, ids, axis = view.inputs(gather)
    if any(view.resolve(tensor) == Tensor(read) for tensor in (ids, axis)):
        return False
    if view.resolve(table) != Tensor(read) or view.type_attr(gather, "Tindices") not in ID_TYPES:
        return False
    one, other = (view.nodes[name].device for name in (gather, read))
    return placement(view, one) == placement(view, other) and not _is_in_branch(view, gather)


def _is_in_branch(view: GraphView, name: str) -> bool:
    """Whether a node may be in a v1 branch, and not run: what waits for it would not, either."""
    if BRANCH_OPS.isdisjoint(view.ops):
        return False
    seen, stack = {name}, [name]
    while stack:
        node = stack.pop()
        if view.op(node) in BRANCH_OPS:
            return True
        before = (*(tensor.node for tensor in view.inputs(node)), *view.controls(node))
        stack += (one for one in before if one not in seen)
        seen.update(before)
    return False


def _edit(view: GraphView, reads: Sequence[TableRead]) -> GraphEdit:
    """Returns the rewrite of these reads."""
    edit = GraphEdit(view)
    after = {read.node: _after(edit, read) for read in reads}
    stands_for = {name: after[read.node] for read in reads for name in (read.node, *read.aliases)}
    for read in reads:
        for gather in read.gathers:
            _gather(edit, gather, read.node, stands_for)
    edit.removed.update(stands_for)
    return edit


def _gather(edit: GraphEdit, gather: str, read: str, stands_for: Mapping[str, str]) -> None:
    """Emits the gather from the variable in the place of the stock one."""
    view = edit.view
    build = NodeBuilder(edit, gather, view.nodes[read].device, "")
    node = build.replacement("ResourceGather")
    build.inputs(node, view.inputs(read)[0], view.inputs(gather)[1])
    dtype, indices = view.type_attr(read, "dtype"), view.type_attr(gather, "Tindices")
    set_types(node, dtype=dtype, Tindices=indices)
    set_attrs(node, batch_dims=0, validate_indices=True)
    # Those of a replaced gather count, too: it keeps its name.
    waits = (stands_for.get(name, name) for one in (read, gather) for name in view.controls(one))
    node.input.extend(f"^{name}" for name in dict.fromkeys(waits) if name != gather)
    edit.removed[build.add(node)] = gather
    edit.replace(Tensor(gather), Tensor(gather))


def _after(edit: GraphEdit, read: TableRead) -> str:
    """Returns a node that runs after all gathers."""
    if len(read.gathers) == 1:
        return read.gathers[0]
    build = NodeBuilder(edit, read.gathers[-1], edit.view.nodes[read.node].device, "")
    node = build.node("gathered", "NoOp")
    node.input.extend(f"^{name}" for name in read.gathers)
    return build.add(node)
