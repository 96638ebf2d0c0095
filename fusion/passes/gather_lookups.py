"""Lookups as ops around gathers of distinct ids, stock and fused ones.

What gathers then can be anything that has rows for ids. The numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.emit.emit import emit
from fusion.passes.expand import expanded
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import LookupPass, Rewrite, by_lookup, column_report, count_nodes
from fusion.passes.plan.forms import can_split
from fusion.passes.plan.plan import Lowering, Plan, plan_each
from fusion.passes.plan.safety import refuse_unsafe
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.report.report import FusionReport, FusionResult
from fusion.passes.ungroup import ungrouped
from fusion.schema.names import SINGLE


@dataclass(frozen=True)
class GatherLookups(LookupPass):
    """Replaces embedding lookups by ops around a gather, for inference.

    Those that have no such ops, see `can_split`, become stock ones.
    """

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""
        apart = ungrouped(graph_def, self.preserve, self.runtime)
        rewrites = self.rewrites(apart)
        edits = {rewrite.function: rewrite.edit for rewrite in rewrites if rewrite.edit is not None}
        result = apply_edits(apart, edits) if edits else apart
        result = expanded(result, self.preserve, self.runtime, ops=(SINGLE,)).graph_def
        columns = tuple(column for rewrite in rewrites for column in rewrite.columns)
        report = FusionReport(columns, count_nodes(graph_def), count_nodes(result))
        return FusionResult(result, report, modified=result is not graph_def)

    def explain(self, graph_def: graph_pb2.GraphDef) -> FusionReport:
        """See `LookupPass`."""
        return self.apply(graph_def).report

    def rewrite_body(self, view: GraphView, refusal: str, writers: SparseWriters) -> Rewrite:
        """See `LookupPass`."""
        matches = self.named(view, recognise_all(view))
        refused = refuse_unsafe(view, matches, self.devices.types, self.tasks).all
        lookups = [
            lookup
            for lookup in matches
            if lookup.anchor not in refused and not refusal and _has_gather_form(lookup)
        ]
        plan, edit = _planned(view, lookups)
        groups = by_lookup(plan)
        columns = (
            column_report(view, lookup, refused, groups.get(lookup.anchor)) for lookup in matches
        )
        return self.rewrite(view, columns, edit)


def _has_gather_form(lookup: LookupMatch) -> bool:
    """Whether ops around a gather compute the lookup, and it is more than that."""
    return lookup.spec is not None and can_split(lookup.spec)


def _planned(view: GraphView, lookups: Iterable[LookupMatch]) -> tuple[Plan, GraphEdit | None]:
    """The plan and its edit; none where nodes would wait for themselves."""
    plan = plan_each(lookups, Lowering.SPLIT)
    edit = emit(view, plan) if plan.groups else None
    if edit is not None and edit.is_circular():
        return Plan(()), None
    return plan, edit
