"""What stock ops do to the ids and the values of a gradient before an optimizer has them.

tf_keras and compat.v1 sum the values of repeated ids; Keras 3's Embedding lets negative ids count
from the end; the gradient of a gather has a vector of ids. One op does all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np

from fusion.passes.graph.idioms import compares_with, pass_casts
from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.view import GraphView


class Summed(NamedTuple):
    """Entries whose values are summed, those of each id.

    Attributes:
        ids: [n], which may be repeated.
        values: of each sum, [n, D].
        nodes: what sums them.
    """

    ids: Tensor
    values: tuple[Tensor, ...]
    nodes: tuple[str, ...]


class RawIds(NamedTuple):
    """Ids as they were before stock ops made them a vector of rows.

    Attributes:
        tensor: of any rank, with as many elements.
        wraps: whether an id in [-rows, 0) stands for id + rows.
        nodes: what stood in between.
    """

    tensor: Tensor
    wraps: bool
    nodes: tuple[str, ...]


def summed(view: GraphView, ids: Tensor, entries: Sequence[Tensor], own: Set[str]) -> Summed | None:
    """Explains entries that are sums of values of repeated ids, and have no other consumers.

    The distinct ids may have other consumers: two tables of the same ids have them from one node.

    Args:
        view: the graph.
        ids: of the entries.
        entries: all that there are.
        own: the nodes of the update.
    """
    unique = ids.node
    if not are_distinct(view, ids) or not entries:
        return None
    for entry in entries:
        if view.op(entry.node) != "UnsortedSegmentSum" or entry.node in view.preserved:
            return None
        _, segments, count = view.inputs(entry.node)
        is_by_unique = view.resolve(segments) == Tensor(unique, 1)
        if not is_by_unique or not _is_size(view, count, ids):
            return None
    sums = {entry.node for entry in entries}
    between = _between(view, sums, own)
    if between is None:
        return None
    values = tuple(view.resolve(view.inputs(entry.node)[0]) for entry in entries)
    return Summed(view.resolve(view.inputs(unique)[0]), values, (unique, *sums, *between))


def are_distinct(view: GraphView, ids: Tensor) -> bool:
    """Whether no element of a vector is there twice."""
    is_unique = view.op(ids.node) == "Unique" and ids.index == 0
    return is_unique and ids.node not in view.preserved


def _is_size(view: GraphView, count: Tensor, vector: Tensor) -> bool:
    """Whether a scalar is the number of elements of a vector."""
    source, _ = pass_casts(view, count)
    if view.op(source.node) == "StridedSlice":
        # The only scalar in a vector of one element.
        source, _ = pass_casts(view, view.inputs(source.node)[0])
        if view.op(source.node) != "Shape":
            return False
    elif view.op(source.node) != "Size":
        return False
    return view.resolve(view.inputs(source.node)[0]) == vector


def _between(view: GraphView, names: Iterable[str], own: Set[str]) -> list[str] | None:
    """Returns the nodes between these and an update's own; None if one has other consumers."""
    stack, found = [*names], dict[str, None]()
    while stack:
        for use in view.uses(stack.pop()):
            if use.node in own or use.node in found:
                continue
            is_alias = use.position >= 0 and view.op(use.node) in ALIAS_OPS
            if not is_alias or use.node in view.preserved:
                return None
            found[use.node] = None
            stack.append(use.node)
    return [*found]


def raw_ids(view: GraphView, ids: Tensor, rows: int) -> RawIds:
    """Explains a vector of ids of a table.

    Args:
        view: the graph.
        ids: [n].
        rows: of the table.
    """
    tensor, wraps, nodes = ids, False, list[str]()
    while True:
        source, passed = pass_casts(view, tensor, widening=True)
        name = source.node
        if not view.preserved.isdisjoint(passed):
            return RawIds(tensor, wraps, tuple(nodes))
        nodes += passed
        step = None
        if name not in view.preserved and not view.controls(name):
            if view.op(name) == "Reshape" and _is_flat(view, name, rows):
                step = _Step(view.inputs(name)[0], (name,))
            elif view.op(name) == "SelectV2" and not wraps:
                step = _unwrapped(view, name, rows)
                wraps = step is not None
        if step is None:
            return RawIds(source, wraps, tuple(nodes))
        nodes += step.nodes
        tensor = step.ids


class _Step(NamedTuple):
    """Ids as they were before some nodes."""

    ids: Tensor
    nodes: tuple[str, ...]


def _is_flat(view: GraphView, name: str, rows: int) -> bool:
    """Whether a Reshape makes a vector of all elements there are."""
    whole, shape = view.inputs(name)
    sizes, known = view.constant(shape), view.shape(whole)
    if sizes is not None:
        is_known = known is not None and None not in known
        count = int(np.prod([size or 0 for size in known or ()], dtype=np.int64))
        return sizes.tolist() == [-1] or (is_known and sizes.tolist() == [count])
    source = view.resolve(shape)
    if view.op(source.node) == "ExpandDims" or (
        view.op(source.node) == "Pack" and len(view.inputs(source.node)) == 1
    ):
        size, _ = pass_casts(view, view.inputs(source.node)[0])
        if view.op(size.node) == "Size":
            # A tensor of as many elements, and of no others.
            measured = view.inputs(size.node)[0]
            return raw_ids(view, measured, rows).tensor == raw_ids(view, whole, rows).tensor
    return False


def _unwrapped(view: GraphView, select: str, rows: int) -> _Step | None:
    """Explains `ids < 0 ? ids + rows : ids`; None if it is not that, or may be fed in between."""
    sides = view.inputs(select)
    test, moved, ids = (view.resolve(tensor) for tensor in sides)
    if view.op(test.node) != "Less" or view.op(moved.node) not in ("Add", "AddV2"):
        return None
    if view.resolve(view.inputs(test.node)[0]) != ids or not compares_with(view, test, 0):
        return None
    terms = [view.resolve(term) for term in view.inputs(moved.node)]
    others = [value for term in terms if (value := view.constant(term)) is not None]
    if ids not in terms or len(others) != 1 or others[0].ndim or others[0] != rows:
        return None
    passed = (name for side in sides[:2] for name in view.aliases(side))
    nodes = (select, test.node, moved.node, *passed)
    if not view.preserved.isdisjoint(nodes) or any(map(view.controls, nodes)):
        return None
    return _Step(sides[2], nodes)
