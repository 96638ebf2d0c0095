"""A lookup that Grappler has changed, as it was built.

Grappler's SimplifyEmbeddingLookupStage lets a reduction read the whole table with the ids as they
are, which copies a resource variable in each step of training; the gradient goes on using the
distinct ids and what is gathered for them. Then both are there, of the same table at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.stock.reduction import GRADIENTS, Reduction

_OF_VARIABLE = "ResourceGather"

_Location = tuple[Value, tuple[str, ...]]
"""The handle of a variable, and what a read of it waits for; any other matrix, and nothing."""


def as_built(distinct: DistinctGathers, reduction: Reduction) -> Reduction:
    """Returns the reduction of gathered rows of distinct ids, if the graph still has these."""
    if reduction.weighting is not None:
        return reduction
    gather = distinct.gather(reduction.positions, reduction.rows)
    if gather is None:
        return reduction
    positions = gather.input(1).producer.output(1)
    read = reduction.rows.producer
    alone = read.op == "ReadVariableOp" and all(
        user == reduction.anchor for user, _, _ in read.uses
    )
    nodes = (*reduction.nodes, *([read.name] if alone else []))
    return replace(reduction, rows=gather.output(), positions=positions, nodes=nodes)


@dataclass(frozen=True)
class DistinctGathers:
    """The gathers of distinct ids that have gradients: for each ids, found once."""

    _known: dict[Value, dict[_Location, Node]] = field(default_factory=dict)

    def gather(self, ids: Value, table: Value) -> Node | None:
        """Returns the gather from the table that is read whole, when it is; None if none is."""
        ids = ids.resolved
        if ids not in self._known:
            self._known[ids] = {_source(node): node for node in reversed([*_gathers(ids)])}
        known = self._known[ids]
        return known.get(_location(table)) if known else None


def _gathers(ids: Value) -> Iterator[Node]:
    for unique, _, _ in ids.uses:
        if unique.op != "Unique":
            continue
        if any(user.op in GRADIENTS for user, _, _ in unique.output(1).uses):
            readers = (user for user, _, _ in unique.output(0).uses)
            yield from (one for one in readers if one.op == _OF_VARIABLE or is_row_gather(one))


def _source(gather: Node) -> _Location:
    """Returns what a gather reads."""
    table = gather.input(0)
    return (table.resolved, gather.controls) if gather.op == _OF_VARIABLE else _location(table)


def _location(table: Value) -> _Location:
    read = table.producer
    if read.op == "ReadVariableOp":
        return read.input(0).resolved, read.controls
    return table.resolved, ()
