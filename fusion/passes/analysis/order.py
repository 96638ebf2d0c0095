"""Which nodes of a graph run before which others, by data and control edges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, reduce
from operator import and_, or_

from fusion.passes.graph.tensor import NEXT_ITERATIONS, Tensor
from fusion.passes.graph.view import GraphView

_MERGES = frozenset({"Merge", "RefMerge"})
_SWITCHES = frozenset({"Switch", "RefSwitch"})
_ENTERS = frozenset({"Enter", "RefEnter"})
_EXITS = frozenset({"Exit", "RefExit"})

#: A node, or several of which any will do: nodes; tensors, for which those wait who read them; and
#: control inputs as NodeDefs have them, "^node".
Start = str | frozenset[str | Tensor]

#: What a Switch tests, and which of its outputs is taken.
Condition = tuple[Tensor, int]

_ALWAYS: frozenset[Condition] = frozenset()


class Order:
    """Which of some nodes, the *starts*, each node of a graph waits for.

    One pass over the graph collects them for each node, as the bits of an integer. A node waits for
    all of its inputs, dead or not. Only a Merge does not: it waits for its control inputs, and for
    one data input that is live. So it surely waits for what each data input waits for; but one
    input need not wait for a start that is dead wherever that input is live. Of a v1 loop this is
    the order in its first iteration: what a later one hands on is not counted.

    Args:
        view: the graph.
        starts: the nodes in question.
        moved: nodes whose control edges are to lead from all of these starts as well.
        without: nodes through which no order counts, because they are to be replaced.
    """

    def __init__(
        self,
        view: GraphView,
        starts: Iterable[Start],
        *,
        moved: Mapping[str, Collection[str]] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._view = view
        self._bits = {start: 1 << index for index, start in enumerate(dict.fromkeys(starts))}
        self._own: dict[str, int] = {}
        self._by_data: dict[Tensor, int] = {}
        self._by_control: dict[str, int] = {}
        for start, bit in self._bits.items():
            for member in _members(start):
                if isinstance(member, Tensor):
                    self._by_data[member] = self._by_data.get(member, 0) | bit
                elif member[0] == "^":
                    self._by_control[member[1:]] = self._by_control.get(member[1:], 0) | bit
                else:
                    self._own[member] = self._own.get(member, 0) | bit
        for name, others in (moved or {}).items():
            bits = reduce(or_, (self._bits[other] for other in others), 0)
            self._by_control[name] = self._by_control.get(name, 0) | bits
        self._merges = frozenset(view.named(*_MERGES))
        self._repeated = frozenset(view.named(*NEXT_ITERATIONS))
        self._without = self._repeated.union(without)

    def is_before(self, first: Start, second: str) -> bool:
        """Whether a node surely waits for a start, if that runs, or is it."""
        return bool(self._sure[second] & self._bits[first])

    def may_be_before(self, first: Start, second: str) -> bool:
        """Whether a node may wait for a start, or is it."""
        return bool(self._maybe[second] & self._bits[first])

    def conditions(self, name: str) -> frozenset[Condition]:
        """Returns what is tested, and with which result, wherever a node runs."""
        return self._branches.conditions(name)

    def is_in_loop(self, name: str) -> bool:
        """Whether a node is inside of a v1 loop."""
        return name in self._in_loops

    def number(self, name: str) -> int:
        """The index of a node in an order in which nothing runs before what it waits for."""
        return self._numbers[name]

    def _before(self, name: str) -> list[str]:
        """The nodes that a node has inputs from, in the first iteration of a loop."""
        before = [*(tensor.node for tensor in self._view.inputs(name)), *self._view.controls(name)]
        return [other for other in before if other not in self._repeated]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """All nodes, each behind those that it waits for, with their indices."""
        nodes = self._view.nodes
        numbers: dict[str, int] = {}
        stack, opened = [*reversed(nodes)], set[str]()
        while stack:
            name = stack[-1]
            if name not in opened:
                opened.add(name)
                before = self._before(name)
                stack += (other for other in before if other not in opened and other in nodes)
                continue
            stack.pop()
            numbers.setdefault(name, len(numbers))
        return numbers

    @cached_property
    def _sure(self) -> dict[str, int]:
        """The starts that each node surely waits for."""
        view, own, by_data, by_control = self._view, self._own, self._by_data, self._by_control
        sure: dict[str, int] = {}
        for name in self._numbers:
            result = own.get(name, 0)
            if name not in self._without:
                if name in self._merges:
                    result |= self._merged(name, sure)
                else:
                    for tensor in view.inputs(name):
                        result |= sure.get(tensor.node, 0)
                        if by_data:
                            result |= by_data.get(tensor, 0)
                for before in view.controls(name):
                    result |= sure.get(before, 0) | by_control.get(before, 0)
            sure[name] = result
        return sure

    def _merged(self, name: str, sure: Mapping[str, int]) -> int:
        """The starts that a Merge surely waits for by data."""
        any_of, all_of = 0, -1
        for tensor in self._view.inputs(name):
            if tensor.node not in self._repeated:
                mask = sure.get(tensor.node, 0) | self._by_data.get(tensor, 0)
                any_of |= mask
                all_of &= mask | self._dead_with(tensor)
        return any_of & all_of

    def _dead_with(self, tensor: Tensor) -> int:
        """The starts that are dead wherever a tensor is live."""
        conditions = self._branches.conditions(tensor)
        return reduce(or_, (self._under.get((test, 1 - k), 0) for test, k in conditions), 0)

    @cached_property
    def _under(self) -> dict[Condition, int]:
        """The starts that are live under a condition alone."""
        under: dict[Condition, int] = {}
        for start, bit in self._bits.items():
            for condition in reduce(and_, map(self._branches.conditions, _members(start))):
                under[condition] = under.get(condition, 0) | bit
        return under

    @cached_property
    def _maybe(self) -> dict[str, int]:
        """The starts that each node may wait for."""
        maybe: dict[str, int] = {}
        for name in self._numbers:
            masks = [maybe.get(other, 0) for other in self._before(name)]
            maybe[name] = reduce(or_, masks, self._own.get(name, 0))
        return maybe

    @cached_property
    def _branches(self) -> _Branches:
        return _Branches(self._view, self._numbers)

    @cached_property
    def _in_loops(self) -> frozenset[str]:
        """The nodes inside of v1 loops."""
        view, inside = self._view, set[str]()
        for name in self._numbers if view.has_loops else ():
            is_inside = view.op(name) in _ENTERS or not inside.isdisjoint(self._before(name))
            if is_inside and view.op(name) not in _EXITS:
                inside.add(name)
        return frozenset(inside)


class _Branches:
    """Under which conditions nodes are live.

    Args:
        view: the graph.
        names: all nodes, each behind those that it waits for.
    """

    def __init__(self, view: GraphView, names: Iterable[str]) -> None:
        self._view = view
        self._switches = frozenset(view.named(*_SWITCHES))
        #: Those of nodes that have some.
        self._known: dict[str, frozenset[Condition]] = {}
        if self._switches:
            # What a loop tests is another matter behind it, and in its next iteration.
            cut = frozenset(view.named(*_EXITS, *NEXT_ITERATIONS))
            for name in names:
                if name not in cut and (conditions := self._inherited(name)):
                    self._known[name] = conditions

    def conditions(self, member: str | Tensor) -> frozenset[Condition]:
        """Returns what is tested, and with which result, wherever a node or tensor is live."""
        if not isinstance(member, Tensor):
            return self._known.get(member.removeprefix("^"), _ALWAYS)
        known = self._known.get(member.node, _ALWAYS)
        return known | self._taken(member) if member.node in self._switches else known

    def _taken(self, output: Tensor) -> frozenset[Condition]:
        """The condition of an output of a Switch."""
        test = self._view.inputs(output.node)[1]
        return frozenset({(self._view.resolve(test), output.index)})

    def _inherited(self, name: str) -> frozenset[Condition]:
        """The conditions of the inputs of a node; of a Merge, those that they share."""
        view, known, result = self._view, self._known, _ALWAYS
        if view.op(name) in _MERGES:
            # There is a next iteration only where there is a first one.
            inputs = (one for one in view.inputs(name) if view.op(one.node) not in NEXT_ITERATIONS)
            conditions = [*map(self.conditions, inputs)]
            return reduce(and_, conditions) if conditions else _ALWAYS
        for tensor in view.inputs(name):
            if tensor.node in known:
                result |= known[tensor.node]
            if tensor.node in self._switches:
                result |= self._taken(tensor)
        for before in view.controls(name):
            if before in known:
                result |= known[before]
        return result


def _members(start: Start) -> Iterable[str | Tensor]:
    """The nodes and tensors that are meant by a start."""
    return (start,) if isinstance(start, str) else start
