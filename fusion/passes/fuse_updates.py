"""Updates of tables by an optimizer, each in one op.

    the arithmetic of a step, op by op over whole tables -> FusedEmbeddingUpdate

The op holds the variables' locks from reading to writing, as TensorFlow's own optimizer ops do:
nothing that another thread adds meanwhile is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.order import Order
from fusion.passes.analysis.variables import has_other_handles, writers
from fusion.passes.emit.updates import emit_updates
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import count_nodes
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.components import Component, components
from fusion.passes.recognise.updates.table_update import TableUpdate, fused_moves, match_update
from fusion.passes.recognise.updates.writes import ASSIGNS, BY_ROWS, WRITERS
from fusion.passes.report.report import FusionReport, FusionResult, UpdateReport
from fusion.runtime.tensorflow.private import dtypes
from fusion.runtime.tensorflow.variable_access import is_updated_in_place
from fusion.schema.devices import CPU_ALONE
from fusion.schema.names import UPDATE

#: What graphs have in which a table may be updated.
RULE = (
    (BY_ROWS,),
    (frozenset({"UnsortedSegmentSum"}), frozenset(ASSIGNS)),
)


#: The attr of ops that may be of updates, in graphs that were seen before.
_MARK = "_fusion_seen"


def is_marked(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether a graph may have updates and was marked before."""
    return any(_MARK in node.attr for node in graph_def.node)


def marked(result: FusionResult) -> FusionResult:
    """Returns a graph that is known when it comes again, if it may have updates."""
    ops = {node.op for node in result.graph_def.node}
    if not _may_have_updates(ops):
        return result
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(result.graph_def)
    for node in graph_def.node:
        if node.op in WRITERS:
            node.attr[_MARK].b = True
    return FusionResult(graph_def, result.report, modified=True)


def _may_have_updates(ops: set[str]) -> bool:
    return any(all(ops & one_of for one_of in clause) for clause in RULE)


@dataclass(frozen=True)
class FuseUpdates:
    """Replaces the updates of tables in a graph that is about to run.

    Functions are looked at when they are about to run themselves.

    Attributes:
        preserve, awaited, tasks: see `LookupPass`.
        home: the type of device that ops are put on where no node says otherwise.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    tasks: frozenset[str] | None = None
    home: str = "CPU"

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""
        count = count_nodes(graph_def)
        nothing = FusionResult(graph_def, FusionReport((), count, count), modified=False)
        ops = {node.op for node in graph_def.node}
        if UPDATE not in ops and not _may_have_updates(ops):
            return nothing
        signatures = OpSignatures(graph_def.library.function)
        view = GraphView(
            graph_def.node, signatures, self.preserve, awaited=self.awaited, home_type=self.home
        )
        verdicts, before = _Verdicts(view, self.tasks).all(), tuple(_reports_before(view))
        if not verdicts and not before:
            return nothing
        edit = GraphEdit(view)
        fused = [update for _, update in verdicts if isinstance(update, TableUpdate)]
        emit_updates(edit, fused)
        is_modified = bool(fused) and not edit.is_circular()
        if fused and not is_modified:
            failure = NoMatch("what the updates wait for waits for them", fused[0].name)
            verdicts = [(c, v if isinstance(v, NoMatch) else failure) for c, v in verdicts]
        result = apply_edits(graph_def, {"": edit}) if is_modified else graph_def
        reports = tuple(_report(c, verdict) for c, verdict in verdicts)
        report = FusionReport((), count, count_nodes(result), (*before, *reports))
        return FusionResult(result, report, is_modified)


def _report(component: Component, verdict: TableUpdate | NoMatch) -> UpdateReport:
    if isinstance(verdict, NoMatch):
        name = component.writes[-1].node if component.writes else component.failures[0].node
        return UpdateReport(name, verdict.reason, verdict.node)
    return UpdateReport(verdict.name, None, None, verdict.program, *verdict.moves)


def _reports_before(view: GraphView) -> Iterator[UpdateReport]:
    """Yields the updates that are fused already, but for halves before a stock op."""
    for name in view.named(UPDATE):
        if not view.int_attr(name, "num_results"):
            program, moves = view.text_attr(name, "program"), fused_moves(view, name)
            yield UpdateReport(name, None, None, program, *moves, fused_before=True)


def _needed_elsewhere(view: GraphView, update: TableUpdate) -> set[str]:
    """The nodes of an update that others need as well, or that compute what those need."""
    own = {*update.writes, *(name for stage in update.stages for name in stage.nodes)}
    results = {result for stage in update.stages for result in stage.results}
    needed: set[str] = set()
    stack = [
        name
        for name in own
        if name in view.preserved
        or any(u.node not in own and u.tensor not in results for u in view.uses(name))
    ]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack += (tensor.node for tensor in view.inputs(name) if tensor.node in own)
    return needed


@dataclass(frozen=True)
class _Verdicts:
    """What may be replaced of a graph's updates, and why the rest may not.

    Attributes:
        view: the graph.
        tasks: the processes that know the fused op; None: all.
    """

    view: GraphView
    tasks: frozenset[str] | None

    def all(self) -> list[tuple[Component, TableUpdate | NoMatch]]:
        """Returns the updates, each with what it becomes or the reason to leave it."""
        updates = [*components(self.view)]
        if not updates:
            return []
        users = {name for c in updates for v in c.variables for name in self._users(v)}
        order = Order(self.view, sorted(users))
        return [(component, self._verdict(component, order)) for component in updates]

    def _verdict(self, component: Component, order: Order) -> TableUpdate | NoMatch:
        view = self.view
        if component.failures:
            failure = component.failures[0]
            names = (failure.node, *(write.node for write in component.writes))
            if len({order.conditions(name) for name in names}) > 1:
                return NoMatch("the update is partly inside a branch", failure.node)
            return failure
        known = {write.node for write in component.writes}
        for variable in component.variables:
            if has_other_handles(view, variable):
                return NoMatch("the variable may have another handle", variable.node)
            other = next((name for name in writers(view, variable) if name not in known), None)
            if other is not None:
                return NoMatch(f"the variable is also changed by {other} ({view.op(other)})", other)
        looped = next((name for name in sorted(known) if order.is_in_loop(name)), None)
        if looped is not None:
            return NoMatch("an update inside of a loop stays as it is", looped)
        table = self._table(component)
        update = match_update(
            view, table, component.writes, order, component.shape, component.dtype
        )
        if isinstance(update, NoMatch):
            return update
        refusal = self._refusal(component, update, order)
        return update if refusal is None else refusal

    def _table(self, component: Component) -> Tensor:
        """The variable with other consumers; if there is not exactly one, the last to change."""
        own = {n for w in component.writes for v in w.value.walk() for n in v.nodes}
        own |= {write.node for write in component.writes}
        read = [v for v in component.variables if not own.issuperset(self._users(v))]
        return read[0] if len(read) == 1 else component.writes[-1].variable

    def _refusal(self, component: Component, update: TableUpdate, order: Order) -> NoMatch | None:
        """Returns why an update that one op could do stays as it is."""
        view = self.view
        if not is_updated_in_place(dtypes.as_dtype(update.dtype).name):
            return NoMatch("this TensorFlow lets no other kernels update variables", update.name)
        for name in (*update.writes, *update.reads):
            failure = refuse_device(view, name, self.tasks)
            if failure is not None:
                return failure
            if view.home_type not in CPU_ALONE.types and not view.nodes[name].device:
                return NoMatch(f"placed on a {view.home_type}; updates are fused on a CPU", name)
            if name in view.preserved:
                return NoMatch("an op of the update is named outside the graph", name)
        for number, stage in enumerate(update.stages):
            later = [write for stage in update.stages[number:] for write in stage.writes]
            for tensor in (update.ids, *stage.entries, *stage.scalars):
                late = next((w for w in later if order.may_be_before(w, tensor.node)), None)
                if late is not None:
                    why = f"{tensor.node} ({view.op(tensor.node)}) needs what {late} has written"
                    return NoMatch(why, tensor.node)
        own = {*update.writes, *update.reads} - _needed_elsewhere(view, update)
        for variable in component.variables:
            changes = [write.node for write in component.writes if write.variable == variable]
            for name in (name for name in self._users(variable) if name not in own):
                is_before = all(order.is_before(name, change) for change in changes)
                is_after = all(order.is_before(change, name) for change in changes)
                if is_before == is_after:
                    return NoMatch(f"it is not known whether {name} reads before the update", name)
        return None

    def _users(self, variable: Tensor) -> Iterator[str]:
        """Yields the nodes that are given a handle of the variable."""
        stack = [variable.node]
        while stack:
            for use in self.view.uses(stack.pop()):
                if use.position < 0:
                    continue
                if self.view.origin(Tensor(use.node)) == variable:
                    stack.append(use.node)
                else:
                    yield use.node
