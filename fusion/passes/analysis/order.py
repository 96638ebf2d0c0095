"""Which nodes of a graph run before which others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_, or_

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import NEXT_ITERATIONS, GraphView

_ENTERS = frozenset({"Enter", "RefEnter"})
_EXITS = frozenset({"Exit", "RefExit"})

#: What a Switch tests, and which of its outputs is taken.
_Condition = tuple[Tensor, int]


class Order:
    """The order of some nodes among each other, by data and control edges.

    One pass over the graph collects for each node which of the nodes in question it waits for, as
    the bits of an integer. A Merge waits for one of its inputs: surely for what all of them wait
    for, not counting those that are dead wherever the other node runs. Of a v1 loop that is the
    order in its first iteration: what a later one hands on is not counted.

    Args:
        view: the graph.
        names: the nodes in question.
    """

    def __init__(self, view: GraphView, names: Iterable[str]) -> None:
        self._bits = {name: 1 << index for index, name in enumerate(dict.fromkeys(names))}
        self._sure: dict[str, int] = {}
        self._maybe: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._conditions: dict[str, frozenset[_Condition]] = {}
        self._under: dict[_Condition, int] = {}
        self._in_loops: set[str] = set()
        stack, opened = [*reversed(view.nodes)], set[str]()
        while stack:
            name = stack[-1]
            if name in self._numbers:
                stack.pop()
                continue
            before = [*(tensor.node for tensor in view.inputs(name)), *view.controls(name)]
            before = [other for other in before if view.op(other) not in NEXT_ITERATIONS]
            if name not in opened:
                opened.add(name)
                stack += (other for other in before if other not in opened and other in view.nodes)
                continue
            self._add(view, name, before)
            stack.pop()

    def _add(self, view: GraphView, name: str, before: Sequence[str]) -> None:
        """Adds a node behind those that it waits for."""
        own = self._bits.get(name, 0)
        maybe = reduce(or_, (self._maybe.get(other, 0) for other in before), own)
        if view.op(name) == "Merge" and before:
            sure = own | self._merged(before)
        else:
            sure = reduce(or_, (self._sure.get(other, 0) for other in before), own)
        self._maybe[name], self._sure[name] = maybe, sure
        self._numbers[name] = len(self._numbers)
        if view.op(name) in _EXITS:
            # What is taken inside of a loop is another matter.
            return
        if view.op(name) in _ENTERS or not self._in_loops.isdisjoint(before):
            self._in_loops.add(name)
        conditions = self._conditions_of(view, name, before)
        if conditions:
            self._conditions[name] = conditions
            for condition in conditions if own else ():
                self._under[condition] = self._under.get(condition, 0) | own

    def _merged(self, before: Sequence[str]) -> int:
        """What a Merge surely waits for."""
        all_of = [self._sure.get(other, 0) | self._not_with(other) for other in before]
        any_of = [self._sure.get(other, 0) for other in before]
        return reduce(and_, all_of) & reduce(or_, any_of)

    def _not_with(self, name: str) -> int:
        """The nodes in question that are dead wherever a node runs."""
        conditions = self._conditions.get(name, frozenset())
        return reduce(or_, (self._under.get((test, 1 - k), 0) for test, k in conditions), 0)

    def _conditions_of(
        self, view: GraphView, name: str, before: Sequence[str]
    ) -> frozenset[_Condition]:
        """Under which conditions a node runs at all."""
        found = [self._conditions.get(other, frozenset()) for other in before]
        if view.op(name) == "Merge":
            return reduce(and_, found) if found else frozenset()
        taken = {
            (view.resolve(view.inputs(tensor.node)[1]), tensor.index)
            for tensor in view.inputs(name)
            if view.op(tensor.node) == "Switch"
        }
        return frozenset(taken).union(*found)

    def is_before(self, first: str, second: str) -> bool:
        """Whether `second` surely waits for `first`, if that runs, or is it."""
        return bool(self._sure[second] & self._bits[first])

    def may_be_before(self, first: str, second: str) -> bool:
        """Whether `second` may wait for `first`, one of the nodes in question, or is it."""
        return bool(self._maybe[second] & self._bits[first])

    def conditions(self, name: str) -> frozenset[tuple[Tensor, int]]:
        """Returns what is tested, and with which result, wherever a node runs."""
        return self._conditions.get(name, frozenset())

    def is_in_loop(self, name: str) -> bool:
        """Whether a node is inside of a v1 loop."""
        return name in self._in_loops

    def number(self, name: str) -> int:
        """The place of a node in an order in which nothing runs before what it waits for."""
        return self._numbers[name]
