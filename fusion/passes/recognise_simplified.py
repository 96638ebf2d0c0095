"""A lookup that Grappler has changed, as it was built.

Grappler's SimplifyEmbeddingLookupStage lets a reduction read the whole variable with the ids as
they are, which copies the table in each step of training; the gradient goes on using the distinct
ids and what is gathered for them. Then both are there, of the same variable at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.recognise_gradient import GRADIENTS
from fusion.passes.recognise_reduction import Reduction

_Place = tuple[Tensor, tuple[str, ...]]
"""The handle of a variable, and what a read of it waits for."""


def as_built(distinct: DistinctGathers, reduction: Reduction) -> Reduction:
    """Returns the reduction of gathered rows of distinct ids, if the graph still has these."""
    view = distinct.view
    read = view.resolve(reduction.rows)
    if view.op(read.node) != "ReadVariableOp" or reduction.weighting is not None:
        return reduction
    gather = distinct.gather(reduction.positions, read.node)
    if gather is None:
        return reduction
    places = Tensor(view.inputs(gather)[1].node, 1)
    alone = all(other.node == reduction.anchor for other in view.uses(read.node))
    nodes = (*reduction.nodes, *([read.node] if alone else []))
    return replace(reduction, rows=Tensor(gather), positions=places, nodes=nodes)


@dataclass(frozen=True)
class DistinctGathers:
    """The gathers of distinct ids that have gradients: for each ids, found once."""

    view: GraphView
    _known: dict[Tensor, dict[_Place, str]] = field(default_factory=dict)

    def gather(self, ids: Tensor, read: str) -> str | None:
        """Returns the gather from the variable that is read whole, when it is; None if none is."""
        ids = self.view.resolve(ids)
        if ids not in self._known:
            gathers = list(self._gathers(ids))
            self._known[ids] = {self._place(name): name for name in reversed(gathers)}
        known = self._known[ids]
        return known.get(self._place(read)) if known else None

    def _gathers(self, ids: Tensor) -> Iterator[str]:
        view = self.view
        for use in view.tensor_uses(ids):
            places, keys = Tensor(use.node, 1), Tensor(use.node, 0)
            if view.op(use.node) != "Unique":
                continue
            if any(view.op(other.node) in GRADIENTS for other in view.tensor_uses(places)):
                readers = (other.node for other in view.tensor_uses(keys))
                yield from (name for name in readers if view.op(name) == "ResourceGather")

    def _place(self, name: str) -> _Place:
        view = self.view
        return view.resolve(view.inputs(name)[0]), view.controls(name)
