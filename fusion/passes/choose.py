"""Chooses the plan that can be carried out."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.emit.emit import emit
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.plan import Form, Plan, Target, plan_each
from fusion.passes.plan.planner import are_awaited, are_ordered, fused_plans, split_plan
from fusion.passes.plan.stacks import stock_plans
from fusion.passes.recognise.lookup import Recognition


def settle(
    view: GraphView,
    lookups: Sequence[Recognition],
    writers: SparseWriters,
    forward: Sequence[Recognition] = (),
    target: Target = Target.FUSED,
) -> tuple[Plan, GraphEdit] | None:
    """Returns the first of the plans in which nothing would wait for itself, and its edit.

    The fewer ops, the more each of them waits for. None if not even one set of ops per lookup does.

    Args:
        forward: lookups whose gradients stay as they are.
        target: what to rewrite to.
    """
    if target is Target.STOCK:
        is_free = not are_awaited(view, lookups)
        choices = list(stock_plans(view, lookups, writers))
        if view.has_loops:
            # Their back edges are circles too; what is emitted alone waits for what it did.
            is_free, choices = True, choices[-1:]
        for plan in choices:
            edit = emit(view, plan)
            if is_free or not edit.is_circular():
                return plan, edit
        return None
    behind = plan_each(forward, Form.FORWARD).groups
    plans = (Plan((*plan.groups, *behind)) for plan in fused_plans(view, lookups, writers))
    if not are_ordered(view, lookups) and not are_awaited(view, forward):
        plan = next(plans)
        return plan, emit(view, plan)
    if view.has_loops:
        # Their back edges are circles too.
        plan = Plan((*split_plan(lookups).groups, *behind))
        return (plan, emit(view, plan)) if plan.groups else None
    for plan in plans:
        if not plan.groups:
            continue
        edit = emit(view, plan)
        if not edit.is_circular():
            return plan, edit
    return None
