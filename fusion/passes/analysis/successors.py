"""Which nodes surely run after which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fusion.passes.graph.view import GraphView

_MERGES = frozenset({"Merge", "RefMerge"})


class Successors:
    """The nodes that run after all of a set of nodes, for many sets at once.

    A Merge runs as soon as one of its inputs is there: it is after what all of them are after.

    Args:
        view: the graph; in one with v1 loops nothing is sure.
        starts: the sets.
        moved: nodes whose control edges are to lead from all nodes of these sets instead.
        without: nodes through which no order counts, because they are to be replaced.
    """

    def __init__(
        self,
        view: GraphView,
        starts: Sequence[Collection[str]],
        moved: Mapping[str, Collection[str]] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._without = without
        # A bit for each node of a set, and for each set those that its nodes have.
        bits: dict[str, int] = {}
        for name in dict.fromkeys(name for names in starts for name in names):
            bits[name] = 1 << len(bits)
        self._masks = [sum(bits[name] for name in {*names}) for names in starts]
        self._moved = {
            name: sum(bits[start] for start in {*starts}) for name, starts in (moved or {}).items()
        }
        self._after: dict[str, int] = {}
        if not view.has_loops:
            self._follow(view, bits)

    def has(self, index: int, name: str) -> bool:
        """Whether a node runs after all nodes of set `index`, or is the only one of it."""
        mask = self._masks[index]
        return self._after.get(name, 0) & mask == mask

    def _follow(self, view: GraphView, bits: dict[str, int]) -> None:
        """Goes through the graph, each node behind those that it waits for."""
        left: dict[str, int] = {}
        ready: list[str] = []
        for name in view.nodes:
            left[name] = len(view.inputs(name)) + len(view.controls(name))
            if not left[name]:
                ready.append(name)
        while ready:
            name = ready.pop()
            self._after[name] = self._known(view, name) | bits.get(name, 0)
            for user in (*(use.node for use in view.uses(name)), *view.control_uses(name)):
                if user in left:
                    left[user] -= 1
                    if not left[user]:
                        ready.append(user)

    def _known(self, view: GraphView, name: str) -> int:
        if name in self._without:
            return 0
        after = [self._after.get(tensor.node, 0) for tensor in view.inputs(name)]
        result = 0
        if view.op(name) in _MERGES:
            result = after[0] if after else 0
            for mask in after:
                result &= mask
        else:
            for mask in after:
                result |= mask
        for before in view.controls(name):
            result |= self._after.get(before, 0) | self._moved.get(before, 0)
        return result
