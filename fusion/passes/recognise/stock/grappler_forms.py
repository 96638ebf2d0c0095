"""A lookup that Grappler has changed, as it was built.

Grappler's SimplifyEmbeddingLookupStage lets a reduction read the whole table with the ids as they
are, which copies a resource variable in each step of training; the gradient goes on using the
distinct ids and what is gathered for them. Then both are there, of the same table at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.gradient import GRADIENTS
from fusion.passes.recognise.stock.reduction import Reduction

_Location = tuple[Tensor, tuple[str, ...]]
"""The handle of a variable, and what a read of it waits for; any other matrix, and nothing."""


def as_built(distinct: DistinctGathers, reduction: Reduction) -> Reduction:
    """Returns the reduction of gathered rows of distinct ids, if the graph still has these."""
    view = distinct.view
    if reduction.weighting is not None:
        return reduction
    gather = distinct.gather(reduction.positions, reduction.rows)
    if gather is None:
        return reduction
    positions = Tensor(view.resolve(view.inputs(gather)[1]).node, 1)
    read = view.resolve(reduction.rows)
    alone = view.op(read.node) == "ReadVariableOp" and all(
        other.node == reduction.anchor for other in view.uses(read.node)
    )
    nodes = (*reduction.nodes, *([read.node] if alone else []))
    return replace(reduction, rows=Tensor(gather), positions=positions, nodes=nodes)


@dataclass(frozen=True)
class DistinctGathers:
    """The gathers of distinct ids that have gradients: for each ids, found once."""

    view: GraphView
    _known: dict[Tensor, dict[_Location, str]] = field(default_factory=dict)

    def gather(self, ids: Tensor, table: Tensor) -> str | None:
        """Returns the gather from the table that is read whole, when it is; None if none is."""
        ids = self.view.resolve(ids)
        if ids not in self._known:
            gathers = list(self._gathers(ids))
            self._known[ids] = {self._source(name): name for name in reversed(gathers)}
        known = self._known[ids]
        return known.get(self._location(table)) if known else None

    def _gathers(self, ids: Tensor) -> Iterator[str]:
        view = self.view
        for use in view.tensor_uses(ids):
            positions, keys = Tensor(use.node, 1), Tensor(use.node, 0)
            if view.op(use.node) != "Unique":
                continue
            if any(view.op(other.node) in GRADIENTS for other in view.tensor_uses(positions)):
                readers = (other.node for other in view.tensor_uses(keys))
                yield from filter(self._is_gather, readers)

    def _is_gather(self, name: str) -> bool:
        return self.view.op(name) == "ResourceGather" or is_row_gather(self.view, name)

    def _source(self, gather: str) -> _Location:
        """Returns what a gather reads."""
        view, table = self.view, self.view.inputs(gather)[0]
        if view.op(gather) == "ResourceGather":
            return view.resolve(table), view.controls(gather)
        return self._location(table)

    def _location(self, table: Tensor) -> _Location:
        view, table = self.view, self.view.resolve(table)
        if view.op(table.node) == "ReadVariableOp":
            return view.resolve(view.inputs(table.node)[0]), view.controls(table.node)
        return table, ()
