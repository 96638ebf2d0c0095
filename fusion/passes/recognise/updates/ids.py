"""What stock ops do to the ids and the values of a gradient before an optimizer has them.

tf_keras and compat.v1 sum the values of repeated ids; Keras 3's Embedding lets negative ids count
from the end; the gradient of a gather has a vector of ids. One op does all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np

from fusion.passes.graph.idioms import compares_with, pass_casts
from fusion.passes.graph.tensor import ALIAS_OPS
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView


class Summed(NamedTuple):
    """Entries whose values are summed, those of each id.

    Attributes:
        ids: [n], which may be repeated.
        values: of each sum, [n, D].
        nodes: what sums them.
    """

    ids: Value
    values: tuple[Value, ...]
    nodes: tuple[str, ...]


class RawIds(NamedTuple):
    """Ids as they were before stock ops made them a vector of rows.

    Attributes:
        ids: of any rank, with as many elements.
        wraps: whether an id in [-rows, 0) stands for id + rows.
        nodes: what stood in between.
    """

    ids: Value
    wraps: bool
    nodes: tuple[str, ...]


def summed(ids: Value, entries: Sequence[Value], own: Set[str]) -> Summed | None:
    """Explains entries that are sums of values of repeated ids, and have no other consumers.

    The distinct ids may have other consumers: two tables of the same ids have them from one node.

    Args:
        ids: of the entries.
        entries: all that there are.
        own: the nodes of the update.
    """
    if not are_distinct(ids) or not entries:
        return None
    unique = ids.producer
    sums = dict.fromkeys(Node(entry.view, entry.node) for entry in entries)
    for total in sums:
        if total.op != "UnsortedSegmentSum" or total.is_preserved:
            return None
        _, segments, count = total.inputs
        if segments.resolved != unique.output(1) or not _is_size(count, ids):
            return None
    names = [total.name for total in sums]
    between = _between(ids.view, names, own)
    if between is None:
        return None
    values = tuple(entry.producer.input(0).resolved for entry in entries)
    return Summed(unique.input(0).resolved, values, (unique.name, *names, *between))


def are_distinct(ids: Value) -> bool:
    """Whether no element of a vector is there twice."""
    unique = Node(ids.view, ids.node)
    return unique.op == "Unique" and ids.index == 0 and not unique.is_preserved


def _is_size(count: Value, vector: Value) -> bool:
    """Whether a scalar is the number of elements of a vector."""
    measure = pass_casts(count)[0].producer
    if measure.op == "StridedSlice":
        # The only scalar in a vector of one element.
        measure = pass_casts(measure.input(0))[0].producer
        if measure.op != "Shape":
            return False
    elif measure.op != "Size":
        return False
    return measure.input(0).resolved == vector


def _between(view: GraphView, names: Iterable[str], own: Set[str]) -> list[str] | None:
    """Returns the nodes between these and an update's own; None if one has other consumers."""
    stack, nodes = [*names], dict[str, None]()
    while stack:
        for use in view.uses(stack.pop()):
            if use.node in own or use.node in nodes:
                continue
            is_alias = use.position >= 0 and view.op(use.node) in ALIAS_OPS
            if not is_alias or use.node in view.preserved:
                return None
            nodes[use.node] = None
            stack.append(use.node)
    return [*nodes]


def raw_ids(ids: Value, rows: int) -> RawIds:
    """Explains a vector of ids of a table.

    Args:
        ids: [n].
        rows: of the table.
    """
    wraps, nodes, preserved = False, list[str](), ids.view.preserved
    while True:
        source, passed = pass_casts(ids, widening=True)
        if not preserved.isdisjoint(passed):
            return RawIds(ids, wraps, tuple(nodes))
        nodes += passed
        step, node = None, source.producer
        if not node.is_preserved and not node.controls:
            if node.op == "Reshape" and _is_flat(node, rows):
                step = _Step(node.input(0), (node.name,))
            elif node.op == "SelectV2" and not wraps:
                step = _unwrapped(node, rows)
                wraps = step is not None
        if step is None:
            return RawIds(source, wraps, tuple(nodes))
        nodes += step.nodes
        ids = step.ids


class _Step(NamedTuple):
    """Ids as they were before some nodes."""

    ids: Value
    nodes: tuple[str, ...]


def _is_flat(reshape: Node, rows: int) -> bool:
    """Whether a Reshape makes a vector of all elements there are."""
    whole, sizes = reshape.inputs
    known = whole.shape
    if sizes.constant is not None:
        is_known = known is not None and None not in known
        count = int(np.prod([size or 0 for size in known or ()], dtype=np.int64))
        return sizes.elements == [-1] or (is_known and sizes.elements == [count])
    source = sizes.producer
    if source.op == "ExpandDims" or (source.op == "Pack" and source.input_count == 1):
        size = pass_casts(source.input(0))[0].producer
        if size.op == "Size":
            # A tensor of as many elements, and of no others.
            return raw_ids(size.input(0), rows).ids == raw_ids(whole, rows).ids
    return False


def _unwrapped(select: Node, rows: int) -> _Step | None:
    """Explains `ids < 0 ? ids + rows : ids`; None if it is not that, or may be fed in between."""
    condition, sum_, original = select.inputs
    test, moved, ids = condition.producer, sum_.producer, original.resolved
    if test.op != "Less" or moved.op not in ("Add", "AddV2"):
        return None
    if test.input(0).resolved != ids or not compares_with(test, 0):
        return None
    terms = [term.resolved for term in moved.inputs]
    others = [term.scalar for term in terms if term.constant is not None]
    if ids not in terms or others != [rows]:
        return None
    nodes = (select.name, test.name, moved.name, *condition.aliases, *sum_.aliases)
    view = select.view
    if not view.preserved.isdisjoint(nodes) or any(map(view.controls, nodes)):
        return None
    return _Step(original, nodes)
