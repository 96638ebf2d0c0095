"""The same elements in another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fusion.passes.graph.values import Node
from fusion.passes.requests.meetings.registry import factor_of, rule
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import ROWS, Assembled, Part, Sizes, Term


@rule("Reshape", "ExpandDims", "Squeeze")
def _reshaped(graph: NewGraph, node: Node) -> Assembled | None:
    """Of parts side by side: each is reshaped by itself, if no element changes its part."""
    value = graph.assembled(node.input(0).tensor, may_be_flat=True)
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or value is None or value.is_plain:
        return None
    factor = factor_of(graph, node)
    if value.is_flat:
        return replace(value, is_flat=False) if sizes == value.sizes else None
    if factor != value.factor:
        return _flattened(value, sizes, factor)
    if not value.is_whole or not value.is_in_order:
        return None
    axis, ratio = (0, (1, 1)) if len(value.parts) == 1 else _new_axis(value, sizes)
    if axis is None:
        return None
    up, down = ratio
    dtype, parts = graph.dtype(node.input(0).tensor), []
    for part in value.parts:
        if part.size * up % down:
            return None
        size = part.size * up // down
        own = sizes if len(value.parts) == 1 else (*sizes[:axis], size, *sizes[axis + 1 :])
        terms = tuple(
            Term(graph.writer.reshape(node.name, t.tensor, own, dtype), t.of_request, own)
            for t in part.terms
        )
        parts.append(Part(size, terms))
    return Assembled(sizes, axis, tuple(parts), factor)


def _flattened(value: Assembled, sizes: Sizes, factor: int) -> Assembled | None:
    """Notes that all axes but the last are one, as in front of a product of three axes."""
    inner, last = value.sizes[1:-1], len(value.sizes) - 1
    is_flat = len(sizes) == 2 and sizes == (ROWS, value.sizes[-1]) and value.factor == 1
    if not is_flat or value.row_axis or factor != math.prod(inner):
        return None
    if len(value.parts) > 1 and value.axis != last:
        return None
    return replace(value, is_flat=True)


def _new_axis(value: Assembled, sizes: Sizes) -> tuple[int | None, tuple[int, int]]:
    """Finds the axis along which parts lie after a reshape, and how their sizes change.

    Parts lie behind each other in each block of what is in front of their axis; so they do along
    another axis with the same sizes in front of it.
    """
    if ROWS not in value.sizes[: value.axis]:
        return None, (1, 1)
    before = _known(value.sizes[: value.axis])
    behind = math.prod(value.sizes[value.axis + 1 :])
    for axis in range(1, len(sizes)):
        if ROWS in sizes[:axis] and _known(sizes[:axis]) == before and sizes[axis] != 1:
            return axis, (behind, math.prod(sizes[axis + 1 :]))
    return None, (1, 1)


def _known(sizes: Sequence[int]) -> int:
    """The product of sizes without that of the rows."""
    return math.prod(size for size in sizes if size != ROWS)
