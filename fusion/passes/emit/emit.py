"""Turns a plan into the edit of a graph."""

from __future__ import annotations

from fusion.passes.emit.concat import ConcatEmitter
from fusion.passes.emit.forward_only import ForwardEmitter
from fusion.passes.emit.fused import InferenceEmitter
from fusion.passes.emit.ragged_gradients import RaggedGradientEmitter
from fusion.passes.emit.result_sizes import SizeEmitter
from fusion.passes.emit.split import SplitEmitter
from fusion.passes.emit.stacked import StackedEmitter
from fusion.passes.emit.stock import StockEmitter
from fusion.passes.emit.trained import TrainedEmitter
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.runtime_ops import drop_later_defaults
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.plan import Lowering, Plan
from fusion.schema.op_history import NEWEST, Release


def emit(view: GraphView, plan: Plan, runtime: Release = NEWEST) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan.

    Args:
        view: the graph.
        plan: the plan.
        runtime: the TensorFlow release that has to know what stock ops are emitted.
    """
    edit = GraphEdit(view)
    concats = ConcatEmitter(edit)
    inference = InferenceEmitter(edit, concats)
    split, trained = SplitEmitter(edit), TrainedEmitter(edit, concats, plan)
    forward, stock = ForwardEmitter(edit), StockEmitter(edit, runtime)
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
    RaggedGradientEmitter(edit).finish(plan.groups)
    SizeEmitter(edit, plan.measures).finish(plan.groups)
    for node in edit.added.values():
        drop_later_defaults(node, runtime)
    return edit
