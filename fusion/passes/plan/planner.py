"""Decides which ops each lookup becomes, and which lookups one op computes together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.concats import groups_in_concats
from fusion.passes.plan.forms import fits_one_op
from fusion.passes.plan.joins import MIN_LOOKUPS, groups_in_joins, is_better_alone, worth_joining
from fusion.passes.plan.plan import Group, Lowering, Plan, plan_each
from fusion.passes.plan.trained import plan_alone, plan_trained
from fusion.passes.plan.training_step import NO_STEP, TrainingStep
from fusion.passes.recognise.lookup_match import LookupMatch


def are_ordered(view: GraphView, lookups: Iterable[LookupMatch]) -> bool:
    """Whether control edges lead into lookups or out of them, or may."""
    if any(lookup.gradients for lookup in lookups):
        # Groups may share an op that each of them would wait for.
        return True
    return are_awaited(view, lookups)


def are_awaited(view: GraphView, lookups: Iterable[LookupMatch]) -> bool:
    """Whether control edges lead into lookups or out of them."""
    if not view.has_controls:
        return False
    return any(
        lookup.control_inputs(view) or any(map(view.control_uses, lookup.nodes()))
        for lookup in lookups
    )


def fused_plans(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    writers: SparseWriters,
    step: TrainingStep = NO_STEP,
) -> Iterator[Plan]:
    """Yields plans, the best one first."""
    trained = [lookup for lookup in lookups if lookup.gradients]
    rest = [lookup for lookup in lookups if not lookup.gradients]
    alone = plan_alone(trained)
    shared = alone
    if len(trained) >= MIN_LOOKUPS:
        shared = plan_trained(view, trained, lookups)
    taken = {group.concat for group in shared}
    for plan in _plans_of_rest(view, rest, writers, step, taken):
        yield Plan((*plan.groups, *shared), step.measures)
    if shared != alone:
        for plan in _plans_of_rest(view, rest, writers, step, set()):
            yield Plan((*plan.groups, *alone), step.measures)


def _plans_of_rest(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    writers: SparseWriters,
    step: TrainingStep,
    taken: set[str],
) -> Iterator[Plan]:
    """Yields plans for lookups that are not trained; `taken` are concats of others."""
    vanishing = {node for lookup in lookups for node in lookup.nodes()}
    single = [
        lookup
        for lookup in lookups
        if lookup.anchor not in step.refused and fits_one_op(view, lookup, vanishing, writers)
    ]
    names = {lookup.anchor for lookup in single}
    split = split_plan(lookup for lookup in lookups if lookup.anchor not in names).groups
    joinable = worth_joining(view, single, step.unread)
    joined = groups_in_joins(view, joinable, taken, step.unread)
    left = _without(joinable, joined)
    before: tuple[Group, ...] = ()
    for nested in (True, False):
        groups = groups_in_concats(
            view, lookups, left, joined, nested, taken, step.unread, step.inferable
        )
        if groups != before:
            yield Plan((*split, *_alone(view, _without(single, groups)).groups, *groups))
        before = groups
    if single:
        yield Plan((*split, *_alone(view, single).groups))
    yield split_plan(lookups)


def _without(lookups: Iterable[LookupMatch], groups: Iterable[Group]) -> list[LookupMatch]:
    grouped = {lookup.anchor for group in groups for lookup in group.lookups}
    return [lookup for lookup in lookups if lookup.anchor not in grouped]


def _alone(view: GraphView, lookups: Iterable[LookupMatch]) -> Plan:
    """Returns a plan with an op for each lookup that is better alone than its stock ops."""
    better = (lookup for lookup in lookups if is_better_alone(view, lookup))
    return plan_each(better, Lowering.SINGLE)


def split_plan(lookups: Iterable[LookupMatch]) -> Plan:
    """Returns a plan with ops around the stock gather; what has them already is left as it is."""
    return plan_each((lookup for lookup in lookups if not lookup.has_few_ops), Lowering.SPLIT)
