"""Turns a plan into the edit of a graph."""

from __future__ import annotations

from fusion.passes.edit import GraphEdit
from fusion.passes.emit_concat import ConcatEmitter
from fusion.passes.emit_forward import ForwardEmitter
from fusion.passes.emit_inference import InferenceEmitter
from fusion.passes.emit_split import SplitEmitter
from fusion.passes.emit_stacked import StackedEmitter
from fusion.passes.emit_stock import StockEmitter
from fusion.passes.emit_trained import TrainedEmitter
from fusion.passes.graph_view import GraphView
from fusion.passes.plan import Form, Plan


def emit(view: GraphView, plan: Plan) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan."""
    edit = GraphEdit(view)
    known: dict[tuple[object, ...], str] = {}
    concats = ConcatEmitter(edit, known)
    inference = InferenceEmitter(edit, known, concats)
    split, trained = SplitEmitter(edit, known), TrainedEmitter(edit, known, concats)
    forward, stock = ForwardEmitter(edit, known), StockEmitter(edit, known)
    stacked = StackedEmitter(edit, known, concats)
    for group in plan.groups:
        if group.form is Form.GROUPED:
            inference.group(group)
        elif group.form is Form.SINGLE:
            inference.lookup(group.lookups[0])
        elif group.form is Form.TRAINED:
            trained.group(group)
        elif group.form is Form.FORWARD:
            forward.lookup(group.lookups[0])
        elif group.form is Form.STACKED:
            stacked.group(group)
        elif group.form is Form.STOCK:
            stock.lookup(group.lookups[0], group.reads_whole)
        else:
            split.lookup(group.lookups[0])
    concats.finish()
    return edit
