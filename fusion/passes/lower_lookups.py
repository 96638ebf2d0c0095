"""Lookups become fewer stock ops, and fused ones stock ones again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.choose import MIN_OPS, Choice, choose_stock
from fusion.passes.expand import expanded
from fusion.passes.graph.edit import apply_edits
from fusion.passes.graph.runtime_ops import IS_FOR, TOO_OLD, newer_than
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import LookupPass, Rewrite, by_lookup, column_report, count_nodes
from fusion.passes.merge_parsers import merge_parsers
from fusion.passes.plan.forms import can_stack, is_bare, reads_whole
from fusion.passes.plan.plan import Lowering
from fusion.passes.plan.safety import refuse_unsafe
from fusion.passes.recognise.lookup import LAYER_ANCHORS, recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.parsing import PARSERS
from fusion.passes.recognise.stock.products import PRODUCTS
from fusion.passes.report.fused_before import (
    HAS_GRADIENT,
    has_gradient,
    is_reported,
    trained_columns,
)
from fusion.passes.report.report import ColumnReport, FusionReport, FusionResult, served_first
from fusion.passes.sparse_parts import with_sparse_parts
from fusion.passes.ungroup import ungrouped
from fusion.passes.ungroup_ids import with_stock_vocabularies
from fusion.passes.ungroup_split import with_stock_splits
from fusion.schema.attributes import STOCK_SPLITS
from fusion.schema.names import OP_NAMES, UPDATE
from fusion.schema.op_history import NEWEST, OLDEST, Release


@dataclass(frozen=True)
class LowerLookups(LookupPass):
    """Replaces embedding lookups, stock and fused ones, by fewer stock ops, for inference.

    A lookup with a gradient in the graph stays, or each of its fused ops becomes stock ones.
    """

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """See `Pass`."""
        source = self.changed(graph_def, PARSERS, merge_parsers)
        source = self.changed(source, STOCK_SPLITS, with_sparse_parts)
        source = with_stock_splits(source, self.preserve)
        source = with_stock_vocabularies(source, self.preserve)
        apart = ungrouped(source, self.preserve, self.runtime)
        rewrites = self.rewrites(apart)
        edits = {rewrite.function: rewrite.edit for rewrite in rewrites if rewrite.edit is not None}
        lowered = apply_edits(apart, edits) if edits else apart
        result, results, _ = expanded(lowered, self.preserve, self.runtime)
        if result is apart:
            # To take groups apart is a step on the way, and no gain.
            result = source
        columns, others = served_first(
            _expanded(column, results) for rewrite in rewrites for column in rewrite.columns
        )
        nodes, newer = (
            (count_nodes(graph_def), count_nodes(result)),
            newer_than(result, self.runtime),
        )
        report = FusionReport(columns, *nodes, newer=newer, others=others)
        return FusionResult(result, report, modified=result is not graph_def)

    def rewrite_body(self, view: GraphView, refusal: str, writers: SparseWriters) -> Rewrite:
        """See `LookupPass`."""
        recognised = self.named(view, recognise_all(view))
        matches = [self._without_gradient(view, match, writers) for match in recognised]
        refused = refuse_unsafe(view, matches, self.devices.types, self.tasks).all
        if self.runtime < OLDEST:
            refusal = refusal or TOO_OLD
        if refusal:
            refused = {
                lookup.anchor: NoMatch(refusal, lookup.anchor) for lookup in matches
            } | refused
        lookups = [lookup for lookup in matches if lookup.spec and lookup.anchor not in refused]
        choice = choose_stock(view, lookups, writers, self.runtime)
        columns = _columns(view, matches, refused | choice.refused, choice)
        return self.rewrite(view, columns, choice.edit)

    def _without_gradient(
        self, view: GraphView, lookup: LookupMatch, writers: SparseWriters
    ) -> LookupMatch:
        """Returns the lookup, or why it does not become other stock ops."""
        has_min_ops, reason = False, ""
        if lookup.spec is not None:
            has_min_ops = self._has_min_ops(view, lookup, writers)
        asks = lookup.has_few_ops and not has_min_ops
        if lookup.gradients or (asks and has_gradient(view, lookup.nodes())):
            reason = f"{HAS_GRADIENT}, which reads what is inside it"
        elif has_min_ops:
            reason = MIN_OPS
        if not reason:
            return lookup
        return replace(lookup, spec=None, failure=NoMatch(reason, lookup.anchor))

    def _has_min_ops(self, view: GraphView, lookup: LookupMatch, writers: SparseWriters) -> bool:
        """Whether a lookup has a dense sum, or a reduction of the rows it needs that fills none."""
        spec = lookup.full_spec
        if lookup.has_few_ops:
            if spec.column.is_dense_sum:
                return True
            may_stack = is_bare(lookup) and can_stack(view, spec)
            return view.op(lookup.anchor) in LAYER_ANCHORS - PRODUCTS and not may_stack
        if lookup.parts.fill is not None:
            return False
        if not lookup.unique:
            return True
        # Where a table is not read whole its distinct rows are found and gathered again.
        is_plain = spec.weights is None and spec.table.max_norm is None and not spec.table.strategy
        return is_plain and not reads_whole(view, lookup, writers, self.runtime)


def _columns(
    view: GraphView,
    matches: Collection[LookupMatch],
    refused: Mapping[str, NoMatch],
    choice: Choice,
) -> Iterator[ColumnReport]:
    groups = by_lookup(choice.plan)
    inside = {node for lookup in matches if lookup.anchor in groups for node in lookup.nodes()}
    for lookup in matches:
        if lookup.anchor in groups or not lookup.has_few_ops:
            yield column_report(view, lookup, refused, groups.get(lookup.anchor))
        elif lookup.anchor not in inside and is_reported(view, lookup):
            yield column_report(view, lookup, refused, None)
    yield from trained_columns(view)


def _expanded(column: ColumnReport, results: Mapping[str, Mapping[str, str]]) -> ColumnReport:
    """Returns what is said of a column whose ops each became stock ones, as all of a function.

    Args:
        column: the report.
        results: the nodes that hold the results of these ops, by function and op.
    """
    if column.fused or not column.fused_before or column.function not in results:
        return column
    form, op = Lowering.STOCK.value, results[column.function].get(column.anchor, column.anchor)
    return replace(column, fused=True, reason=None, node=None, form=form, op=op)


def remaining_fused_ops(
    graph_def: graph_pb2.GraphDef,
    report: FusionReport,
    runtime: Release = NEWEST,
    *,
    was_rewritten: bool = False,
) -> str | None:
    """Returns which op of this package is still there, why, and what to do; None if there is none.

    Args:
        graph_def: the result of the pass.
        report: that of the pass.
        runtime: the TensorFlow release that the pass wrote for.
        was_rewritten: whether the pass is known to have fused the model that it was given.
    """
    fused_ops = [
        (function, node)
        for function, nodes in _node_lists(graph_def)
        for node in nodes
        if node.op in OP_NAMES
    ]
    if not fused_ops:
        return None
    reasons = {(c.function, c.anchor): c.reason for c in report.lookups if not c.fused}
    lacking = expanded(ungrouped(graph_def, runtime=runtime), runtime=runtime).lacking
    left = [
        (node, lacking.get(function, reasons.get((function, node.name))))
        for function, node in fused_ops
    ]
    # One that is known not to fit says more than what is around it.
    node, reason = min(left, key=lambda pair: pair[1] is None)
    why = "" if reason is None else f": {reason}"
    advice = _advice(node.op, reason or "", was_rewritten)
    return f"{node.name} ({node.op}) cannot become stock ops{why}; {advice}"


def _advice(op: str, reason: str, was_rewritten: bool) -> str:
    if reason == TOO_OLD:
        return "or use the model that was fused instead"
    if IS_FOR in reason:
        return "name a newer runtime, or use the model that was fused instead"
    if was_rewritten:
        return "use the model that was fused instead"
    if op == UPDATE or op.endswith("Grad") or reason.startswith(HAS_GRADIENT):
        return "leave steps of training out of what is exported"
    return "build the model with do_fusion=None, or TensorFlow's own lookups, and export it again"


def _node_lists(
    graph_def: graph_pb2.GraphDef,
) -> Iterator[tuple[str, Iterable[node_def_pb2.NodeDef]]]:
    yield "", graph_def.node
    yield from ((f.signature.name, f.node_def) for f in graph_def.library.function)
