"""The pass: finds stock embedding lookups in a graph and its functions, and fuses them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.analysis.variables import SparseWriters, Variable, variables_name
from fusion.passes.choose import settle
from fusion.passes.expand import expanded
from fusion.passes.graph.calls import called
from fusion.passes.graph.edit import GraphEdit, rewritten
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, Shape
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import shares_table
from fusion.passes.plan.plan import Form, Group, Plan, Target
from fusion.passes.plan.safety import refuse_unsafe
from fusion.passes.recognise.backward.forward_only import match_forward
from fusion.passes.recognise.lookup import Recognition, recognise_all
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.reduction import POST_V1
from fusion.passes.recognise.stock.table import Table
from fusion.passes.report.describe import describe
from fusion.passes.report.fused_before import (
    HAS_GRADIENT,
    has_gradient,
    in_one_piece,
    in_parts,
    is_computed_for_its_gradient,
    is_of_fused_ops,
    trained_in_groups,
)
from fusion.passes.report.report import ColumnReport, FusionReport, FusionResult
from fusion.passes.ungroup import ungrouped
from fusion.schema.devices import CPU_ALONE, Devices

COMPILED = "_XlaMustCompile"
COMPILED_REASON = "the function is compiled by XLA"
"""The attr of what XLA compiles, and what is said of lookups there."""
_FEWEST = "it has as few stock ops as it can have"


@dataclass(frozen=True)
class FuseLookups:
    """Replaces stock embedding lookups by fused ops, in the main graph and in library functions.

    The numbers stay the same; whatever is not understood stays as it is. Applying the pass twice
    changes nothing more, and equal graphs give equal results.

    Attributes:
        preserve: names of main-graph nodes that outsiders refer to (fetches, signature outputs,
            initializers); they keep their names and values.
        awaited: names of main-graph nodes that outsiders wait for, without reading a value (a
            function's control outputs). A node of that name stays, and runs after what it stood
            for.
        variables: those whose handles are arguments of library functions, by (function, argument),
            as far as they are known.
        tasks: the processes that know the fused ops, as device names begin with them; None: all. A
            lookup that the graph places elsewhere is left alone.
        devices: where the fused ops can run. A lookup that the graph places elsewhere is left
            alone.
        target: what lookups become. Stock ops are for inference: a lookup with a gradient stays.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    variables: Mapping[tuple[str, str], Variable] = field(default_factory=dict)
    tasks: frozenset[str] | None = None
    devices: Devices = CPU_ALONE
    target: Target = Target.FUSED

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """Returns the rewritten graph and the report; the argument is not changed.

        When nothing is fused, the result holds the argument itself.
        """
        given = self._given(graph_def)
        verdicts = list(self._verdicts(given))
        columns = tuple(column for verdict in verdicts for column in verdict.columns)
        edits = {one.function: one.edit for one in verdicts if one.edit is not None}
        result = rewritten(given, edits) if edits else graph_def
        if self._lowers:
            result, held = expanded(result, self.preserve)
            columns = tuple(_lowered(column, held) for column in columns)
        counts = _count_nodes(graph_def), _count_nodes(result)
        return FusionResult(result, FusionReport(columns, *counts))

    def explain(self, graph_def: graph_pb2.GraphDef) -> FusionReport:
        """Returns what `apply` would fuse and why it would leave the rest, changing nothing."""
        count = _count_nodes(graph_def)
        if self._lowers:
            return replace(self.apply(graph_def).report, nodes_after=count)
        verdicts = self._verdicts(graph_def)
        columns = tuple(column for verdict in verdicts for column in verdict.columns)
        return FusionReport(columns, count, count)

    def _given(self, graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
        """Returns the graph with lookups apart from each other, if they are to become stock ops."""
        return ungrouped(graph_def, self.preserve) if self._lowers else graph_def

    @property
    def _lowers(self) -> bool:
        return self.target is Target.STOCK

    def _bodies(self, graph_def: graph_pb2.GraphDef) -> Iterator[tuple[GraphView, str]]:
        """Yields the main graph and each function, with the reason to leave all of it alone."""
        signatures = OpSignatures(graph_def.library.function)
        home = self.devices.home
        yield GraphView(graph_def.node, signatures, self.preserve, None, self.awaited, home), ""
        compiled = _compiled_functions(graph_def)
        shapes: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
        for (function, argument), variable in self.variables.items():
            shapes[function][argument] = variable.shape
        for definition in graph_def.library.function:
            name = definition.signature.name
            refusal = COMPILED_REASON if name in compiled else ""
            yield GraphView.of_function(definition, signatures, shapes[name], home), refusal

    def _verdicts(self, graph_def: graph_pb2.GraphDef) -> Iterator[_Verdict]:
        bodies = list(self._bodies(graph_def))
        writers = SparseWriters((view for view, _ in bodies), self.variables)
        return (self._verdict(view, refusal, writers) for view, refusal in bodies)

    def _verdict(self, view: GraphView, refusal: str, writers: SparseWriters) -> _Verdict:
        found, kept = self._found(view, writers)
        refusals = refuse_unsafe(view, found, self.devices.types, self.tasks)
        refused, forward = refusals.all, list[Recognition]()
        if refusal:
            refused = {one.anchor: NoMatch(refusal, one.anchor) for one in found} | refused
        elif not self._lowers:
            parts = (one for one in found if one.anchor in refusals.inside)
            forward = [one for one in parts if match_forward(view, one) is not None]
        plan, edit = Plan(()), None
        while True:
            lookups = [one for one in found if one.spec and one.anchor not in refused]
            if not lookups and not forward:
                break
            settled = settle(view, lookups, writers, forward, self.target)
            if settled is not None and not (self._lowers and _is_in_vain(settled[1])):
                plan, edit = settled
                break
            if settled is not None:
                refused |= {one.anchor: NoMatch(_FEWEST, one.anchor) for one in lookups}
                break
            refused |= {} if forward else _refuse_circular(view, lookups)
            forward = []
        groups = {one.anchor: group for group in plan.groups for one in group.lookups}
        inside = {node for one in found if one.anchor in groups for node in one.nodes()}
        columns = list[ColumnReport]()
        for one in (*found, *kept):
            if one.anchor in groups or not one.is_fused:
                columns.append(_column(view, one, refused, groups.get(one.anchor)))
            elif one.anchor in inside or not _is_told(view, one):
                continue
            elif self._lowers:
                columns.append(_column(view, one, refused, None))
            else:
                why = in_parts(view, one, refused, writers)
                columns.append(_column(view, replace(one, failure=why), {}, None))
        columns += trained_in_groups(view)
        columns += [] if self._lowers else in_one_piece(view)
        return _Verdict(view.function, tuple(columns), edit)

    def _found(
        self, view: GraphView, writers: SparseWriters
    ) -> tuple[tuple[Recognition, ...], tuple[Recognition, ...]]:
        """Returns the lookups that there may be other ops for, and those that keep theirs.

        They have the names of their tables, where callers tell these.
        """
        found = recognise_all(view, whole=self._lowers)
        if view.function:
            found = tuple(self._named(view, one) for one in found)
        if self._lowers:
            return tuple(_to_lower(view, one) for one in found), ()
        gains = {one.anchor for one in found if _can_gain(view, one, writers)}
        kept = tuple(one for one in found if one.anchor not in gains)
        return tuple(one for one in found if one.anchor in gains), kept

    def _named(self, view: GraphView, one: Recognition) -> Recognition:
        """Returns a function's lookup with its table's name, where callers tell it."""
        if one.spec is None:
            return one
        table = one.spec.table
        name = variables_name(view, (shard.tensor for shard in table.shards), self.variables)
        if name is None:
            return one
        return replace(one, name=name, spec=replace(one.spec, table=replace(table, name=name)))


@dataclass(frozen=True)
class _Verdict:
    """The verdict on every segment reduction of a graph, and the edit that it leads to."""

    function: str
    columns: tuple[ColumnReport, ...]
    edit: GraphEdit | None


def _can_gain(view: GraphView, one: Recognition, writers: SparseWriters) -> bool:
    """Whether there may be better ops for a lookup; those that are fused have one chance left."""
    if not one.is_fused:
        return True
    return one.spec is not None and shares_table(view, one, writers)


def _is_told(view: GraphView, one: Recognition) -> bool:
    """Whether what has few ops already is a lookup: of stock ops alone it only looks like one.

    Nor is a copy of rows for each entry, which v1 ops combine.
    """
    if any(view.op(use.node) == POST_V1 for use in view.uses(one.anchor)):
        return False
    if is_computed_for_its_gradient(view, one.anchor):
        return False
    return one.spec is not None or is_of_fused_ops(view, one)


def _to_lower(view: GraphView, one: Recognition) -> Recognition:
    """Returns the lookup, or why it does not become other stock ops."""
    reason = ""
    if one.gradients or (one.is_fused and has_gradient(view, one.nodes())):
        reason = f"{HAS_GRADIENT}, which reads what is inside it"
    elif one.spec is not None and not (one.is_fused or one.spec.fill or one.unique):
        reason = _FEWEST
    if not reason:
        return one
    return replace(one, spec=None, failure=NoMatch(reason, one.anchor))


def _is_in_vain(edit: GraphEdit) -> bool:
    """Whether an edit makes the ops that are there already, as of lookups that the pass has made.

    Constants do not count, of which equal ones become one.
    """
    return _ops(edit.build()) == _ops(edit.view.nodes.values())


def _ops(nodes: Iterable[node_def_pb2.NodeDef]) -> Counter[str]:
    return Counter(node.op for node in nodes if node.op not in ("Const", ARG_OP))


def _refuse_circular(view: GraphView, lookups: Sequence[Recognition]) -> dict[str, NoMatch]:
    """Returns why those of the lookups stay that wait for something, which leads round in a circle.

    A lookup's emitted ops are fewer than its stock ones, so that one waits for more than it did.
    """
    waiting = [one for one in lookups if one.waits(view)] or lookups
    why = "with other lookups, control dependencies would lead round in a circle"
    return {one.anchor: NoMatch(why, one.anchor) for one in waiting}


def _column(
    view: GraphView, one: Recognition, refused: Mapping[str, NoMatch], group: Group | None
) -> ColumnReport:
    failure = one.failure if one.failure is not None else refused.get(one.anchor)
    is_forward = group is not None and group.form is Form.FORWARD
    return ColumnReport(
        name=one.name,
        function=view.function,
        anchor=one.anchor,
        fused=failure is None or is_forward,
        reason=failure.reason if failure is not None else None,
        node=failure.node if failure is not None else None,
        form=None if group is None else group.form.value,
        op=None if group is None else group.op,
        fused_before=is_of_fused_ops(view, one),
        spec=one.spec,
        explained=tuple(describe(part) for part in one.parts),
        tables=tuple(s.tensor for p in one.parts if isinstance(p, Table) for s in p.shards),
    )


def _lowered(column: ColumnReport, held: Mapping[str, Mapping[str, str]]) -> ColumnReport:
    """Returns what is said of a column whose ops each became stock ones, as all of a function.

    Args:
        held: the nodes that hold the results of these ops, by function and op.
    """
    if column.fused or not column.fused_before or column.function not in held:
        return column
    form, op = Form.STOCK.value, held[column.function].get(column.anchor, column.anchor)
    return replace(column, fused=True, reason=None, node=None, form=form, op=op)


def _count_nodes(graph_def: graph_pb2.GraphDef) -> int:
    functions = graph_def.library.function
    return len(graph_def.node) + sum(len(function.node_def) for function in functions)


def _compiled_functions(graph_def: graph_pb2.GraphDef) -> set[str]:
    """Returns the functions that XLA compiles: those marked so, and all that they call."""
    functions = {f.signature.name: f for f in graph_def.library.function}
    found: set[str] = set()
    stack = [name for name, f in functions.items() if COMPILED in f.attr and f.attr[COMPILED].b]
    bodies = (graph_def.node, *(f.node_def for f in functions.values()))
    for body in bodies:
        for node in body:
            if COMPILED in node.attr and node.attr[COMPILED].b:
                stack.extend(called(node))
    while stack:
        name = stack.pop()
        if name in found or name not in functions:
            continue
        found.add(name)
        for node in functions[name].node_def:
            stack.extend(called(node))
    return found
