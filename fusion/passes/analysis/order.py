"""Which nodes of a graph run before which others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_, or_

from fusion.passes.graph.view import GraphView


class Order:
    """The order of some nodes among each other, by data and control edges.

    The graph has no loops. One pass over it collects for each node which of the nodes in question
    it waits for, as the bits of an integer. A Merge waits for one of its inputs: surely for what
    all of them wait for, maybe for what any does.

    Args:
        view: the graph.
        names: the nodes in question.
    """

    def __init__(self, view: GraphView, names: Iterable[str]) -> None:
        self._bits = {name: 1 << index for index, name in enumerate(dict.fromkeys(names))}
        self._sure: dict[str, int] = {}
        self._maybe: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        stack, opened = [*reversed(view.nodes)], set[str]()
        while stack:
            name = stack[-1]
            if name in self._numbers:
                stack.pop()
                continue
            before = [*(tensor.node for tensor in view.inputs(name)), *view.controls(name)]
            if name not in opened:
                opened.add(name)
                stack += (other for other in before if other not in opened and other in view.nodes)
                continue
            self._add(view, name, before)
            stack.pop()

    def _add(self, view: GraphView, name: str, before: Sequence[str]) -> None:
        """Adds a node behind those that it waits for."""
        own = self._bits.get(name, 0)
        maybe = [self._maybe.get(other, 0) for other in before]
        sure = [self._sure.get(other, 0) for other in before]
        joined = and_ if view.op(name) == "Merge" and not view.controls(name) else or_
        self._maybe[name] = reduce(or_, maybe, own)
        self._sure[name] = own | (reduce(joined, sure) if sure else 0)
        self._numbers[name] = len(self._numbers)

    def is_before(self, first: str, second: str) -> bool:
        """Whether `second` surely waits for `first`, one of the nodes in question, or is it."""
        return bool(self._sure[second] & self._bits[first])

    def may_be_before(self, first: str, second: str) -> bool:
        """Whether `second` may wait for `first`, one of the nodes in question, or is it."""
        return bool(self._maybe[second] & self._bits[first])

    def number(self, name: str) -> int:
        """The place of a node in an order in which nothing runs before what it waits for."""
        return self._numbers[name]
