"""What of a graph's results and effects depends on a node."""

from __future__ import annotations

from collections.abc import Iterator

from fusion.passes.graph.reach import reached
from fusion.passes.graph.view import GraphView

ELSEWHERE = "another result needs its ids, and not the lookup"
"""What is said of ids that are not needed with a lookup alone."""


def results_of(view: GraphView, name: str, past: str = "") -> frozenset[str]:
    """Returns the results of a graph, or of a function, and its effects that depend on a node.

    Two nodes with equal ones are needed together: each result needs both, or none.

    Args:
        view: the graph.
        name: the node.
        past: a node; what depends on `name` by way of it alone is left out.
    """

    def after(one: str) -> Iterator[str]:
        if one != past:
            yield from (use.node for use in view.uses(one) if use.position >= 0)
            yield from (waiting for waiting in view.control_uses(one) if waiting in view.nodes)

    nodes = reached([name], after)
    returned = {use.node for one in nodes for use in view.uses(one) if use.position < 0}
    ends = (
        one
        for one in nodes
        if one in view.preserved
        or one in view.awaited
        or (not (view.uses(one) or view.control_uses(one)) and view.is_live(one))
        or view.acts(one)
    )
    return frozenset(returned).union(ends)


def is_needed_with(view: GraphView, name: str, lookup: str, results: frozenset[str]) -> bool:
    """Whether all that needs a node needs a lookup behind it, or the lookup waits for it.

    Args:
        view: the graph.
        name: the node.
        lookup: the lookup.
        results: its `results_of`.
    """
    others = results_of(view, name, past=lookup) - results
    return not others or others <= reached([lookup], view.before).keys()
