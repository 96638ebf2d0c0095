"""Stock lookups become fused ops, and fused ones better ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.static_tables import Bound, StaticTables
from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.choose import Choice, choose_fused
from fusion.passes.fuse_parsers import fuse_parsers
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.view import GraphView
from fusion.passes.group_crosses import group_crosses
from fusion.passes.group_ids import group_ids
from fusion.passes.join_parsed import with_joined
from fusion.passes.lookup_pass import (
    LookupPass,
    Rewrite,
    by_lookup,
    column_report,
    count_nodes,
    has_some,
)
from fusion.passes.merge_parsers import merge_parsers
from fusion.passes.plan.forms import shares_table
from fusion.passes.plan.plan import Group, Lowering
from fusion.passes.plan.safety import Refusals, refuse_unsafe
from fusion.passes.plan.training_step import TrainingStep
from fusion.passes.recognise.crossing import CROSSES
from fusion.passes.recognise.forward_only import match_forward
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.parsing import PARSERS
from fusion.passes.recognise.stock.gathers import NoBag
from fusion.passes.recognise.vocabularies import FIND, ID_MAKERS
from fusion.passes.report.front import FrontReport
from fusion.passes.report.fused_before import in_one_op, is_reported, refuse_fused, trained_columns
from fusion.passes.report.report import (
    ColumnReport,
    FusionReport,
    FusionResult,
    served_first,
)
from fusion.passes.sparse_parts import with_sparse_parts
from fusion.schema.attributes import STOCK_SPLITS
from fusion.schema.names import (
    GROUPED_CROSS,
    GROUPED_IDS,
    GROUPED_SPLIT,
    PARSE_EXAMPLE,
    PARSE_SEQUENCE,
    SINGLE,
)

CIRCULAR = "ops for the ids of several lookups would wait for each other"
"""What is said of ids then."""

UNSERVED = "no signature runs it"
"""What is said of lookups of training ops beside what signatures run."""


@dataclass(frozen=True)
class FuseLookups(LookupPass):
    """Replaces stock embedding lookups by fused ops.

    Attributes:
        bound: what arguments of functions are bound to outside of the graph, by (function,
            argument): names of static hash tables, constants of the main graph, None for other
            objects.
        runs: whether the main graph is about to run: only its own nodes change its tables then,
            as far as stock could see.
    """

    bound: Mapping[tuple[str, str], Bound] = field(default_factory=dict)
    runs: bool = False

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""
        source = self.changed(graph_def, PARSERS, merge_parsers)
        source = self.changed(source, PARSERS, lambda view: with_joined(view, self.tasks))
        source = self.changed(source, STOCK_SPLITS, with_sparse_parts)
        rewrites = self.rewrites(source)
        edits = {rewrite.function: rewrite.edit for rewrite in rewrites if rewrite.edit is not None}
        result = apply_edits(source, edits) if edits else source
        result, front = self._fuse_front(result)
        report = _report(rewrites, front, count_nodes(graph_def), count_nodes(result))
        return FusionResult(result, report, modified=result is not graph_def)

    def _fuse_front(
        self, graph_def: graph_pb2.GraphDef
    ) -> tuple[graph_pb2.GraphDef, list[FrontReport]]:
        """Replaces what is in front of lookups, which have been recognised with it: see `_FRONT`.

        Returns:
            The graph, and what became of each op.
        """
        edits, reports = dict[str, GraphEdit](), list[FrontReport]()
        bodies = [*self.bodies(graph_def)] if has_some(graph_def, _FRONT) else []
        # Only lookups in tables ask for them, and calls are followed for it.
        asks = any(FIND in view.ops for view, _ in bodies)
        tables = StaticTables((view for view, _ in bodies if asks), self.bound)
        for view, refusal in bodies:
            edit, front = self._front_of(view, refusal, refusal, tables)
            if edit.added and edit.is_circular():
                edit, front = self._front_of(view, refusal, CIRCULAR, tables)
            reports += front
            if edit.added:
                edits[view.function] = edit
        result = apply_edits(graph_def, edits) if edits else graph_def
        return result, reports

    def _front_of(
        self, view: GraphView, refusal: str, of_ids: str, tables: StaticTables
    ) -> tuple[GraphEdit, list[FrontReport]]:
        """Returns what becomes of ops in front of lookups in a graph.

        Args:
            view: the graph.
            refusal: why all of it has to stay as it is; "" if it need not.
            of_ids: why what makes ids has to.
            tables: what is the same in all runs.
        """
        edit = GraphEdit(view)
        parsers = [*fuse_parsers(edit, refusal, self.tasks)]
        ids = [*group_ids(edit, of_ids, self.tasks, tables)]
        return edit, [*parsers, *ids, *group_crosses(edit, of_ids, self.tasks)]

    def rewrite_body(self, view: GraphView, refusal: str, writers: SparseWriters) -> Rewrite:
        """See `LookupPass`."""
        may_step = self.runs or self.fetched is not None
        is_step = may_step and not view.function and not view.has_loops
        matches = self.named(view, recognise_all(view, is_step=is_step))
        matches = tuple(_as_served(view, lookup) for lookup in matches)
        writers = writers.outside(view) if is_step else writers
        step = TrainingStep.of(view, matches, runs=is_step)
        gaining = [lookup for lookup in matches if _can_gain(view, lookup, writers)]
        refusals = refuse_unsafe(
            view, gaining, self.devices.types, self.tasks, step.measures, trains=is_step
        )
        unserved = _unserved(view, gaining, refusals)
        refused = refusals.all | unserved
        if refusal:
            refused = {
                lookup.anchor: NoMatch(refusal, lookup.anchor) for lookup in gaining
            } | refused
        lookups = outermost(
            lookup for lookup in gaining if lookup.spec and lookup.anchor not in refused
        )
        candidates = refusals.by_use.keys() - unserved.keys() if not refusal else ()
        forward = [
            Group(Lowering.FORWARD, (lookup,), forward=match)
            for lookup in gaining
            if lookup.anchor in candidates and (match := match_forward(view, lookup)) is not None
        ]
        choice = choose_fused(view, lookups, writers, forward, step)
        refused = step.refused | refused | choice.refused
        columns = _columns(view, matches, gaining, refused, choice, writers, step)
        return self.rewrite(view, columns, choice.edit)


#: What is in front of lookups, and what becomes of it.
_FUSED_FRONT = {PARSE_EXAMPLE, PARSE_SEQUENCE, GROUPED_IDS, GROUPED_SPLIT, GROUPED_CROSS}
_FRONT = PARSERS | ID_MAKERS | CROSSES | _FUSED_FRONT


def _report(
    rewrites: Sequence[Rewrite], front: Iterable[FrontReport], before: int, after: int
) -> FusionReport:
    """Returns the report on a graph of so many nodes before and after."""
    columns, others = served_first(one for rewrite in rewrites for one in rewrite.columns)
    return FusionReport(columns, before, after, others=others, front=tuple(front))


def _as_served(view: GraphView, lookup: LookupMatch) -> LookupMatch:
    """Returns a lookup without the gradients that no signature runs, where one runs the lookup.

    They stay stock ops, with all that they read.
    """
    if view.fetched is None or not view.is_served(lookup.anchor):
        return lookup
    ends = (one.node if isinstance(one, NoMatch) else one.output.node for one in lookup.gradients)
    pairs = zip(lookup.gradients, ends, strict=True)
    return replace(lookup, gradients=tuple(one for one, end in pairs if view.is_served(end)))


def _unserved(
    view: GraphView, lookups: Collection[LookupMatch], refusals: Refusals
) -> dict[str, NoMatch]:
    """Refuses lookups of training ops that no signature runs.

    Among them are those that stay for gradients when a lookup of a signature is fused.
    """
    if not view.fetched:
        return {}
    trained = (one.anchor for one in lookups if one.gradients or one.anchor in refusals.by_use)
    return {name: NoMatch(UNSERVED, name) for name in trained if not view.is_served(name)}


def _can_gain(view: GraphView, lookup: LookupMatch, writers: SparseWriters) -> bool:
    """Whether there may be better ops for a lookup; those with few ops have one chance left."""
    if not lookup.has_few_ops:
        return True
    return lookup.spec is not None and shares_table(view, lookup, writers)


def _columns(
    view: GraphView,
    matches: Collection[LookupMatch],
    gaining: Collection[LookupMatch],
    refused: Mapping[str, NoMatch],
    choice: Choice,
    writers: SparseWriters,
    step: TrainingStep,
) -> Iterator[ColumnReport]:
    """Yields what is said of lookups, of those that cannot gain behind the others."""
    groups = by_lookup(choice.plan)
    inside = {node for lookup in gaining if lookup.anchor in groups for node in lookup.nodes()}
    gain = {lookup.anchor for lookup in gaining}
    failures = (lookup.failure for lookup in matches)
    bags = {failure.gather: failure for failure in failures if isinstance(failure, NoBag)}
    for lookup in (*gaining, *(lookup for lookup in matches if lookup.anchor not in gain)):
        if lookup.anchor in groups:
            yield column_report(view, lookup, refused, groups[lookup.anchor])
        elif lookup.anchor in inside:
            continue
        elif not lookup.has_few_ops:
            yield column_report(view, lookup, refused, None)
        elif view.op(lookup.anchor) != SINGLE and is_reported(view, lookup):
            why = refuse_fused(view, lookup, refused, writers, bags, step.unread)
            yield column_report(view, replace(lookup, failure=why), {}, None)
    yield from trained_columns(view)
    yield from in_one_op(view, groups)
