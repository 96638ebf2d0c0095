"""What passes are, and what those over lookups have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.variables import SparseWriters, Variable, variables_name
from fusion.passes.graph.calls import called, functions_run_by
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.reach import reached
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Shape
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.plan import Group, Lowering, Plan
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.report.call_parts import call_parts
from fusion.passes.report.columns import named_column
from fusion.passes.report.describe import describe
from fusion.passes.report.front import FrontReport
from fusion.passes.report.fused_before import is_of_fused_ops
from fusion.passes.report.report import (
    ColumnReport,
    FusionReport,
    FusionResult,
    RewrittenGraph,
)
from fusion.schema.devices import CPU_ALONE, Devices
from fusion.schema.op_history import NEWEST, Release

COMPILED = "_XlaMustCompile"
COMPILED_REASON = "the function is compiled by XLA"
"""The attr of what XLA compiles, and what is said of lookups there."""


class Pass(Protocol):
    """A rewrite of a graph and its library."""

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """Returns the rewritten graph and what was done; `graph_def` stays as it is.

        Where there is nothing to do, the result holds the argument itself.
        """
        ...


def apply_passes(passes: Sequence[Pass], graph_def: graph_pb2.GraphDef) -> FusionResult:
    """Applies passes one after the other; the report is on all of them."""
    results: list[FusionResult] = []
    for graph_pass in passes:
        results.append(graph_pass.apply(results[-1].graph_def if results else graph_def))
    reports = [result.report for result in results]
    report = replace(
        FusionReport.merge(reports),
        nodes_before=reports[0].nodes_before,
        nodes_after=reports[-1].nodes_after,
    )
    is_modified = any(result.modified for result in results)
    return FusionResult(results[-1].graph_def, report, is_modified)


@dataclass(frozen=True)
class Rewrite:
    """What becomes of a main graph, or of a function.

    Attributes:
        function: its name; "" for the main graph.
        columns: what is said of its lookups.
        edit: None if it stays as it is.
    """

    function: str
    columns: tuple[ColumnReport, ...]
    edit: GraphEdit | None


@dataclass(frozen=True)
class LookupPass(ABC):
    """A pass over the lookups of a graph and of its library functions.

    The numbers stay the same; whatever is not understood stays as it is. Applying a pass twice
    changes nothing more, and equal graphs give equal results.

    Attributes:
        preserve: names of main-graph nodes that outsiders refer to (fetches, signature outputs,
            initializers); they keep their names and values.
        awaited: names of main-graph nodes that outsiders wait for, without reading a value (a
            function's control outputs). A node of that name stays, and runs after what it stood
            for.
        variables: those whose handles are arguments of functions, by (function, argument), as far
            as they are known. Reports name tables by them.
        tasks: the processes that know the fused ops, as device names begin with them; None: all. A
            lookup that the graph places elsewhere is left alone.
        devices: where the fused ops can run. A lookup that the graph places elsewhere is left
            alone.
        runtime: the TensorFlow release in which a graph of stock ops has to load, where its source
            does.
        fetched: names of main-graph nodes that signatures return. What no signature runs, such as
            training ops, then does not restrict what becomes of lookups that signatures run. None:
            all of the graph counts.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    variables: Mapping[tuple[str, str], Variable] = field(default_factory=dict)
    tasks: frozenset[str] | None = None
    devices: Devices = CPU_ALONE
    runtime: Release = NEWEST
    fetched: frozenset[str] | None = None

    @abstractmethod
    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""

    def explain(self, graph_def: graph_pb2.GraphDef) -> FusionReport:
        """Returns what `apply` would do and why it would leave the rest, changing nothing.

        The report has the parts of a call.
        """
        result = self.apply(graph_def)
        graphs = [self.views(one).values() for one in (graph_def, result.graph_def)]
        count = count_nodes(graph_def)
        return replace(result.report, nodes_after=count, call=call_parts(*graphs))

    @abstractmethod
    def rewrite_body(self, view: GraphView, refusal: str, writers: SparseWriters) -> Rewrite:
        """Decides on the lookups of a main graph or function.

        Args:
            view: the graph.
            refusal: why all of it has to stay as it is; "" if it need not.
            writers: of variables, in all of the graph and its library.
        """

    def changed(
        self,
        graph_def: graph_pb2.GraphDef,
        ops: Collection[str],
        change: Callable[[GraphView], GraphEdit | None],
    ) -> graph_pb2.GraphDef:
        """Returns a graph in which some ops are changed, before lookups are looked for.

        Args:
            graph_def: the graph.
            ops: without these there is nothing to change.
            change: returns the change of a graph or a function; None if there is none.
        """
        if not has_some(graph_def, ops):
            return graph_def
        edits = {
            view.function: edit
            for view, refusal in self.bodies(graph_def)
            if not refusal and not view.has_loops and (edit := change(view)) is not None
        }
        return apply_edits(graph_def, edits) if edits else graph_def

    def rewrites(self, graph_def: graph_pb2.GraphDef) -> list[Rewrite]:
        """Returns what becomes of the main graph and of each function."""
        bodies = list(self.bodies(graph_def))
        writers = SparseWriters((view for view, _ in bodies), self.variables)
        return [self.rewrite_body(view, refusal, writers) for view, refusal in bodies]

    def rewritten(self, graph_def: graph_pb2.GraphDef) -> RewrittenGraph:
        """Returns a graph before and after."""
        result = self.apply(graph_def)
        return RewrittenGraph(result.report, self.views(graph_def), self.views(result.graph_def))

    def views(self, graph_def: graph_pb2.GraphDef) -> dict[str, GraphView]:
        """Returns the main graph, "", and each function as the pass sees them, by name."""
        return {view.function: view for view, _ in self.bodies(graph_def)}

    def bodies(self, graph_def: graph_pb2.GraphDef) -> Iterator[tuple[GraphView, str]]:
        """Yields the main graph and each function, with the reason to leave all of it alone."""
        signatures, home = OpSignatures(graph_def.library.function), self.devices.home
        main = GraphView(
            graph_def.node, signatures, self.preserve, None, self.awaited, home, self.fetched
        )
        yield main, ""
        served = None
        if self.fetched is not None:
            nodes = (node for name, node in main.nodes.items() if main.is_served(name))
            served = functions_run_by(nodes, graph_def.library)
        compiled = _compiled_functions(graph_def)
        shapes: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
        for (function, argument), variable in self.variables.items():
            shapes[function][argument] = variable.shape
        for definition in graph_def.library.function:
            name = definition.signature.name
            refusal = COMPILED_REASON if name in compiled else ""
            fetched = None if served is None or name in served else frozenset[str]()
            view = GraphView.of_function(definition, signatures, shapes[name], home, fetched)
            yield view, refusal

    def named(self, view: GraphView, lookups: Iterable[LookupMatch]) -> tuple[LookupMatch, ...]:
        """Returns lookups with the names of their tables, where callers determine them."""
        return tuple(self._named(view, lookup) if view.function else lookup for lookup in lookups)

    def _named(self, view: GraphView, lookup: LookupMatch) -> LookupMatch:
        if lookup.spec is None:
            return lookup
        table = lookup.spec.table
        name = variables_name(view, (shard.tensor for shard in table.shards), self.variables)
        if name is None:
            return lookup
        spec = replace(lookup.spec, table=replace(table, name=name))
        return replace(lookup, name=name, spec=spec)

    def rewrite(
        self, view: GraphView, columns: Iterable[ColumnReport], edit: GraphEdit | None
    ) -> Rewrite:
        """Returns a rewrite whose reports have the names of variables."""
        named = (named_column(view, column, self.variables) for column in columns)
        served = (replace(column, served=view.is_served(column.anchor)) for column in named)
        return Rewrite(view.function, tuple(served), edit)


def by_lookup(plan: Plan) -> dict[str, Group]:
    """Returns the group of each lookup that is planned, by its anchor."""
    return {lookup.anchor: group for group in plan.groups for lookup in group.lookups}


def column_report(
    view: GraphView, lookup: LookupMatch, refused: Mapping[str, NoMatch], group: Group | None
) -> ColumnReport:
    """Returns what is said of a lookup.

    Args:
        view: the graph.
        lookup: as far as it was explained.
        refused: why lookups that were explained stay as they are.
        group: with which it is rewritten; None if it is not.
    """
    failure = lookup.failure if lookup.failure is not None else refused.get(lookup.anchor)
    is_forward = group is not None and group.form is Lowering.FORWARD
    return ColumnReport(
        name=lookup.name,
        function=view.function,
        anchor=lookup.anchor,
        fused=failure is None or is_forward,
        reason=failure.reason if failure is not None else None,
        node=failure.node if failure is not None else None,
        form=None if group is None else group.form.value,
        op=None if group is None else group.op,
        fused_before=is_of_fused_ops(view, lookup),
        spec=lookup.spec,
        explained=tuple(describe(part) for part in lookup.parts),
        tables=lookup.tables,
    )


def is_compiled(report: ColumnReport | FrontReport) -> bool:
    """Whether a lookup, or what is in front of it, stays as it is because XLA compiles it."""
    return report.reason is not None and report.reason.endswith(COMPILED_REASON)


def has_some(graph_def: graph_pb2.GraphDef, ops: Collection[str]) -> bool:
    """Whether a graph or its library has nodes of some ops."""
    bodies = (graph_def.node, *(function.node_def for function in graph_def.library.function))
    return any(node.op in ops for body in bodies for node in body)


def count_nodes(graph_def: graph_pb2.GraphDef) -> int:
    """Returns the number of nodes of a graph and its library."""
    functions = graph_def.library.function
    return len(graph_def.node) + sum(len(function.node_def) for function in functions)


def _compiled_functions(graph_def: graph_pb2.GraphDef) -> set[str]:
    """Returns the functions that XLA compiles: those marked so, and all that they call."""
    functions = {f.signature.name: f for f in graph_def.library.function}
    if not functions:
        return set()
    stack = [name for name, f in functions.items() if COMPILED in f.attr and f.attr[COMPILED].b]
    bodies = (graph_def.node, *(f.node_def for f in functions.values()))
    for body in bodies:
        for node in body:
            if COMPILED in node.attr and node.attr[COMPILED].b:
                stack.extend(called(node))

    def calls(name: str) -> Iterator[str]:
        return (n for node in functions[name].node_def for n in called(node) if n in functions)

    return {*reached((name for name in stack if name in functions), calls)}
