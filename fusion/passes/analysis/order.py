"""Which nodes of a graph run before which others."""

from __future__ import annotations

from collections.abc import Iterable

from fusion.passes.graph.view import GraphView


class Order:
    """The order of some nodes among each other, by data and control edges.

    The graph has no loops. One pass over it collects for each node which of the nodes in question
    it waits for, as the bits of an integer.

    Args:
        view: the graph.
        names: the nodes in question.
    """

    def __init__(self, view: GraphView, names: Iterable[str]) -> None:
        self._bits = {name: 1 << index for index, name in enumerate(dict.fromkeys(names))}
        self._masks: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        stack = [*reversed(view.nodes)]
        opened: set[str] = set()
        while stack:
            name = stack[-1]
            if name in self._masks:
                stack.pop()
                continue
            before = [*(tensor.node for tensor in view.inputs(name)), *view.controls(name)]
            if name not in opened:
                opened.add(name)
                stack += (other for other in before if other not in opened and other in view.nodes)
                continue
            mask = self._bits.get(name, 0)
            for other in before:
                mask |= self._masks.get(other, 0)
            self._masks[name] = mask
            self._numbers[name] = len(self._numbers)
            stack.pop()

    def is_before(self, first: str, second: str) -> bool:
        """Whether `second` waits for `first`, one of the nodes in question, or is it."""
        return bool(self._masks[second] & self._bits[first])

    def number(self, name: str) -> int:
        """The place of a node in an order in which nothing runs before what it waits for."""
        return self._numbers[name]
