"""Decides which trained lookups share their ops: those side by side in a concat.

The gradient of a concat takes the gradient of each of its inputs out of its own. One op can read
them where they are; then nothing is left that needs the inputs themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.tensor import Tensor, Use
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.concats import groups_of, results_of, slot_in_concat
from fusion.passes.plan.plan import Backward, Group, Lowering
from fusion.passes.plan.safety import removed_nodes
from fusion.passes.recognise.backward.concat_gradient import ConcatGradient, ConcatSlice
from fusion.passes.recognise.lookup_match import LookupMatch

Slot = tuple[str, int]
"""A concat and the index of one of its inputs."""


def plan_trained(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    everyone: Sequence[LookupMatch],
) -> tuple[Group, ...]:
    """Returns groups of all trained lookups, those that share no op in groups of their own.

    Args:
        view: the graph.
        lookups: the trained ones.
        everyone: all lookups that are fused.
    """
    gone = {name for lookup in lookups for name in removed_nodes(lookup)}
    slices, matrices = _ConcatSlices(view, lookups, everyone), results_of(everyone)
    members: dict[str, Slot] = {}
    for lookup in lookups:
        where = slices.slot(lookup)
        if where is not None:
            members[lookup.anchor] = where
    by_anchor = {lookup.anchor: lookup for lookup in lookups}
    while True:
        staying = [by_anchor[anchor] for anchor in members]
        parts = {name for lookup in staying for part in slices.parts(lookup) for name in part.nodes}
        parts = _unread(view, parts, gone)
        unread = frozenset(gone | parts | dead_with(view, gone | parts, unseen=False))
        fitting: dict[str, dict[int, LookupMatch]] = {}
        for lookup in staying:
            concat, index = members[lookup.anchor]
            if slot_in_concat(view, lookup, unread) == (concat, index):
                fitting.setdefault(concat, {})[index] = lookup
        groups = [
            group
            for concat, at in fitting.items()
            for group in groups_of(view, concat, at, matrices, Lowering.TRAINED)
        ]
        grouped = {lookup.anchor for group in groups for lookup in group.lookups}
        if grouped == members.keys():
            break
        members = {anchor: slot for anchor, slot in members.items() if anchor in grouped}
    shared = (slices.group(group) for group in groups)
    alone = (_alone(lookup) for lookup in lookups if lookup.anchor not in members)
    return (*shared, *alone)


def plan_alone(lookups: Iterable[LookupMatch]) -> tuple[Group, ...]:
    """Returns groups of one trained lookup each."""
    return tuple(_alone(lookup) for lookup in lookups)


def _alone(lookup: LookupMatch) -> Group:
    backwards = tuple(Backward(g.top, (0,), (g.output,), g.nodes) for g in lookup.backward)
    return Group(Lowering.TRAINED, (lookup,), backwards=backwards)


def _unread(view: GraphView, names: set[str], gone: set[str]) -> set[str]:
    """Returns those of the nodes that only each other and those that are gone read."""
    left = set(names)

    def stays(use: Use) -> bool:
        return use.node not in left and use.node not in gone and view.is_live(use.node)

    stack = list(names)
    while stack:
        name = stack.pop()
        if name in left and any(use.position < 0 or stays(use) for use in view.uses(name)):
            left.remove(name)
            stack += [tensor.node for tensor in view.inputs(name)]
    return left


class _ConcatSlices:
    """Where the gradients of lookups in concats come from."""

    def __init__(
        self, view: GraphView, lookups: Iterable[LookupMatch], everyone: Iterable[LookupMatch]
    ) -> None:
        self._view = view
        self._widths = {
            lookup.spec.output: lookup.spec.table.shape[1]
            for lookup in everyone
            if lookup.spec is not None
        }
        self._concats: dict[str, ConcatGradient] = {}
        self._slots: dict[str, Slot] = {}
        self._parts: dict[str, tuple[ConcatSlice, ...]] = {}
        for lookup in lookups:
            self._find(lookup)

    def slot(self, lookup: LookupMatch) -> Slot | None:
        """Returns the concat whose gradient has all of the lookup's in it, and the index there."""
        return self._slots.get(lookup.anchor)

    def parts(self, lookup: LookupMatch) -> tuple[ConcatSlice, ...]:
        """Returns what the lookup's gradients are of those of the concat."""
        return self._parts.get(lookup.anchor, ())

    def group(self, group: Group) -> Group:
        """Returns the group with the gradients that it computes."""
        wholes = dict.fromkeys(
            part.whole for lookup in group.lookups for part in self.parts(lookup)
        )
        backwards = tuple(self._backward(group, whole) for whole in wholes)
        return Group(
            Lowering.TRAINED,
            group.columns,
            group.concat,
            group.start,
            group.whole,
            backwards=backwards,
        )

    def _backward(self, group: Group, whole: Tensor) -> Backward:
        offsets: list[int] = []
        outputs: list[Tensor | None] = []
        nodes: list[str] = []
        for lookup in group.lookups:
            pairs = zip(lookup.backward, self.parts(lookup), strict=True)
            own = [(gradient, part) for gradient, part in pairs if part.whole == whole]
            # Of a lookup that has no part in this gradient it is computed as well, and not read.
            offsets.append(self.parts(lookup)[0].offset)
            outputs.append(own[0][0].output if own else None)
            nodes += [name for gradient, part in own for name in (*gradient.nodes, *part.nodes)]
        return Backward(whole, tuple(offsets), tuple(outputs), tuple(dict.fromkeys(nodes)))

    def _find(self, lookup: LookupMatch) -> None:
        view, spec = self._view, lookup.full_spec
        for use in view.tensor_uses(spec.output):
            if use.position < 0 or view.op(use.node) != "ConcatV2":
                continue
            if use.position == len(view.inputs(use.node)) - 1:
                continue  # the axis
            concat = self._concat(use.node)
            tops = (Value(view, gradient.top) for gradient in lookup.backward)
            slices = [concat.part(top, use.position) for top in tops]
            parts = tuple(part for part in slices if part is not None)
            wholes = {part.whole for part in parts}
            if parts and len(parts) == len(slices) == len(wholes):
                self._slots[lookup.anchor] = (use.node, use.position)
                self._parts[lookup.anchor] = parts
                return

    def _concat(self, name: str) -> ConcatGradient:
        if name not in self._concats:
            widths = map(self._width, self._view.inputs(name)[:-1])
            self._concats[name] = ConcatGradient(Node(self._view, name), tuple(widths))
        return self._concats[name]

    def _width(self, tensor: Tensor) -> int | None:
        known = self._widths.get(self._view.resolve(tensor))
        if known is not None:
            return known
        shape = self._view.shape(tensor)
        return shape[1] if shape is not None and len(shape) == 2 else None
