"""Turns a plan into the edit of a graph."""

from __future__ import annotations

from fusion.passes.emit.concat import ConcatEmitter
from fusion.passes.emit.forward_only import ForwardEmitter
from fusion.passes.emit.fused import InferenceEmitter
from fusion.passes.emit.result_sizes import SizeEmitter
from fusion.passes.emit.split import SplitEmitter
from fusion.passes.emit.stacked import StackedEmitter
from fusion.passes.emit.stock import StockEmitter
from fusion.passes.emit.trained import TrainedEmitter
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.plan import Lowering, Plan


def emit(view: GraphView, plan: Plan) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan."""
    edit = GraphEdit(view)
    concats = ConcatEmitter(edit)
    inference = InferenceEmitter(edit, concats)
    split, trained = SplitEmitter(edit), TrainedEmitter(edit, concats, plan)
    forward, stock = ForwardEmitter(edit), StockEmitter(edit)
    stacked = StackedEmitter(edit, concats)
    for group in plan.groups:
        if group.form is Lowering.GROUPED:
            inference.group(group)
        elif group.form is Lowering.SINGLE:
            inference.lookup(group.lookups[0])
        elif group.form is Lowering.TRAINED:
            trained.group(group)
        elif group.form is Lowering.FORWARD:
            forward.group(group)
        elif group.form is Lowering.STACKED:
            stacked.group(group)
        elif group.form is Lowering.STOCK:
            stock.lookup(group.lookups[0], group.reads_whole)
        else:
            split.lookup(group.lookups[0])
    concats.finish()
    SizeEmitter(edit, plan.measures).finish(plan.groups)
    return edit
