"""The one gather that lookups are made of: whole rows along axis 0."""

from __future__ import annotations

from fusion.passes.graph_view import GraphView


def is_row_gather(view: GraphView, name: str) -> bool:
    """Whether the node is a plain gather along axis 0: `inputs[0][inputs[1]]`."""
    op = view.op(name)
    if op == "Gather":
        return True
    if op != "GatherV2" or view.int_attr(name, "batch_dims"):
        return False
    axis = view.constant(view.inputs(name)[2])
    return axis is not None and axis.ndim == 0 and int(axis) == 0
