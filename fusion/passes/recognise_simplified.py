"""A lookup that Grappler has changed, as it was built.

Grappler's SimplifyEmbeddingLookupStage lets a reduction read the whole variable with the ids as
they are, which copies the table in each step of training; the gradient goes on using the distinct
ids and what is gathered for them. Then both are there, of the same variable at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.recognise_gradient import GRADIENTS
from fusion.passes.recognise_reduction import Reduction


def as_built(view: GraphView, reduction: Reduction) -> Reduction:
    """Returns the reduction of gathered rows of distinct ids, if the graph still has these."""
    read = view.resolve(reduction.rows)
    if view.op(read.node) != "ReadVariableOp" or reduction.weighting is not None:
        return reduction
    for use in view.tensor_uses(view.resolve(reduction.positions)):
        places, keys = Tensor(use.node, 1), Tensor(use.node, 0)
        if view.op(use.node) != "Unique":
            continue
        if not any(view.op(other.node) in GRADIENTS for other in view.tensor_uses(places)):
            continue
        gathers = [u.node for u in view.tensor_uses(keys) if _reads_same(view, u.node, read.node)]
        if gathers:
            alone = all(other.node == reduction.anchor for other in view.uses(read.node))
            nodes = (*reduction.nodes, *([read.node] if alone else []))
            return replace(reduction, rows=Tensor(gathers[0]), positions=places, nodes=nodes)
    return reduction


def _reads_same(view: GraphView, gather: str, read: str) -> bool:
    """Whether a gather reads the variable that is read whole, when it is."""
    if view.op(gather) != "ResourceGather":
        return False
    handles = (view.resolve(view.inputs(name)[0]) for name in (gather, read))
    return len({*handles}) == 1 and view.controls(gather) == view.controls(read)
