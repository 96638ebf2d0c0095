"""Chooses the ops that lookups become: the first plan in which nothing would wait for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorflow.core.framework import node_def_pb2

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.emit.emit import emit
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.runtime_ops import lacking
from fusion.passes.graph.tensor import ARG_OP
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import is_bare
from fusion.passes.plan.plan import Group, Plan
from fusion.passes.plan.planner import are_awaited, are_ordered, fused_plans
from fusion.passes.plan.stacks import TOO_FEW, stock_plans
from fusion.passes.plan.training_step import NO_STEP, TrainingStep
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.schema.op_history import NEWEST, Release

MIN_OPS = "it has as few stock ops as it can have"
"""What is said of lookups that nothing better is known for."""


@dataclass(frozen=True)
class Choice:
    """What becomes of the lookups of a graph.

    Attributes:
        plan: of those that are rewritten.
        edit: of the graph; None if there are none.
        refused: why others stay, by anchor.
    """

    plan: Plan = field(default_factory=lambda: Plan(()))
    edit: GraphEdit | None = None
    refused: dict[str, NoMatch] = field(default_factory=dict)


def choose_fused(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    writers: SparseWriters,
    forward: Sequence[Group] = (),
    step: TrainingStep = NO_STEP,
) -> Choice:
    """Chooses fused ops.

    Args:
        view: the graph.
        lookups: those that may be rewritten.
        writers: of variables.
        forward: groups of a lookup each whose gradients stay as they are.
        step: what of them is trained beside their gradients.
    """
    refused: dict[str, NoMatch] = {}
    while lookups or forward:
        planned = _fused(view, lookups, writers, forward, step)
        if planned is not None:
            plan, edit = planned
            return Choice(plan, edit if plan.groups else None, refused)
        if not forward:
            refused |= _refuse_circular(view, lookups)
            lookups = [lookup for lookup in lookups if lookup.anchor not in refused]
        forward = ()
    return Choice(refused=refused)


def choose_stock(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    writers: SparseWriters,
    runtime: Release = NEWEST,
) -> Choice:
    """Chooses fewer stock ops, of those that a TensorFlow release has."""
    refused: dict[str, NoMatch] = {}
    while lookups:
        planned = _stock(view, lookups, writers, runtime)
        unknown = {} if planned is None else _refuse_unknown(*planned, runtime)
        if unknown:
            refused |= unknown
        elif planned is not None and not _is_in_vain(planned[1]):
            taken = {lookup.anchor for group in planned[0].groups for lookup in group.lookups}
            left = [lookup.anchor for lookup in lookups if lookup.anchor not in taken]
            refused |= {anchor: NoMatch(TOO_FEW, anchor) for anchor in left}
            return Choice(*planned, refused)
        elif planned is not None:
            for lookup in lookups:
                why = TOO_FEW if is_bare(lookup) else MIN_OPS
                refused[lookup.anchor] = NoMatch(why, lookup.anchor)
        else:
            refused |= _refuse_circular(view, lookups)
        lookups = [lookup for lookup in lookups if lookup.anchor not in refused]
    return Choice(refused=refused)


def _fused(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    writers: SparseWriters,
    forward: Sequence[Group],
    step: TrainingStep,
) -> tuple[Plan, GraphEdit] | None:
    """Returns the first plan without circles; None if not even one set of ops per lookup is one.

    The fewer ops, the more each of them waits for.
    """
    plans = (
        Plan((*plan.groups, *forward), plan.measures)
        for plan in fused_plans(view, lookups, writers, step)
    )
    forward_only = [lookup for group in forward for lookup in group.lookups]
    if not (step.is_any or are_ordered(view, lookups) or are_awaited(view, forward_only)):
        plan = next(plans)
        return plan, emit(view, plan)
    candidates = [plan for plan in plans if plan.groups]
    if not candidates:
        # There is nothing better for any of them.
        return Plan(()), emit(view, Plan(()))
    return _first_free(view, candidates)


def _stock(
    view: GraphView, lookups: Sequence[LookupMatch], writers: SparseWriters, runtime: Release
) -> tuple[Plan, GraphEdit] | None:
    plans = list(stock_plans(view, lookups, writers, runtime))
    if view.has_loops:
        # Their back edges are circles too; what is emitted alone waits for what it did.
        return plans[-1], emit(view, plans[-1], runtime)
    if not are_awaited(view, lookups):
        return plans[0], emit(view, plans[0], runtime)
    return _first_free(view, plans, runtime)


def _first_free(
    view: GraphView, plans: Iterable[Plan], runtime: Release = NEWEST
) -> tuple[Plan, GraphEdit] | None:
    edits = ((plan, emit(view, plan, runtime)) for plan in plans)
    return next(((plan, edit) for plan, edit in edits if not edit.is_circular()), None)


def _refuse_unknown(plan: Plan, edit: GraphEdit, runtime: Release) -> dict[str, NoMatch]:
    """Returns why lookups stay that would become what a TensorFlow release does not have."""
    if runtime >= NEWEST:
        return {}
    positions, refused = edit.positions(), dict[str, NoMatch]()
    for node in edit.added.values():
        use = lacking(node, runtime, edit.view.nodes.values())
        if use is not None:
            groups = [one for one in plan.groups if one.op == positions[node.name]] or plan.groups
            for lookup in (lookup for group in groups for lookup in group.lookups):
                refused.setdefault(lookup.anchor, NoMatch(use.refusal(runtime), lookup.anchor))
    return refused


def _is_in_vain(edit: GraphEdit) -> bool:
    """Whether an edit makes the ops that are there already, as of lookups that the pass has made.

    Constants do not count, since equal ones become one.
    """
    return _ops(edit.build()) == _ops(edit.view.nodes.values())


def _ops(nodes: Iterable[node_def_pb2.NodeDef]) -> Counter[str]:
    return Counter(node.op for node in nodes if node.op not in ("Const", ARG_OP))


def _refuse_circular(view: GraphView, lookups: Sequence[LookupMatch]) -> dict[str, NoMatch]:
    """Returns why those of the lookups stay that wait for something, which leads round in a circle.

    A lookup's emitted ops are fewer than its stock ones, so that one waits for more than it did.
    """
    waiting = [lookup for lookup in lookups if lookup.control_inputs(view)] or lookups
    why = "with other lookups, control dependencies would lead round in a circle"
    return {lookup.anchor: NoMatch(why, lookup.anchor) for lookup in waiting}
