"""Turns a plan into the edit of a graph."""

from __future__ import annotations

from fusion.passes.edit import GraphEdit
from fusion.passes.emit_inference import InferenceEmitter
from fusion.passes.emit_split import SplitEmitter
from fusion.passes.graph_view import GraphView
from fusion.passes.plan import Form, Plan


def emit(view: GraphView, plan: Plan) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan."""
    edit = GraphEdit(view)
    known: dict[tuple[object, ...], str] = {}
    split, inference = SplitEmitter(edit, known), InferenceEmitter(edit, known)
    for group in plan.groups:
        if group.form is Form.GROUPED:
            inference.group(group)
        elif group.form is Form.SINGLE:
            inference.lookup(group.lookups[0])
        else:
            split.lookup(group.lookups[0])
    inference.finish()
    return edit
