"""Widths that numbers of a graph say, whatever is fed."""

from __future__ import annotations

import math

from fusion.passes.graph.tensor import Shape
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView

_KEEPS = frozenset({"Identity", "Cast", "StopGradient", "Snapshot"})
_MAX_DEPTH = 20

Bounds = tuple[float, float]


def counted_shape(view: GraphView, name: str) -> Shape | None:
    """Returns the shape of a DenseBincount of several rows, None if its width depends on ids.

    `tf.math.bincount` of a `minlength` that is the `maxlength` has the minimum of that and of a
    maximum of that and something else, so that TensorFlow knows no width.
    """
    node = Node(view, name)
    low, high = _bounds(node.input(1), _MAX_DEPTH)
    ids = node.input(0).shape
    if low != high or not math.isfinite(low) or ids is None or len(ids) != 2:
        return None
    return ids[0], int(low)


def _bounds(value: Value, depth: int) -> Bounds:
    """The least and the largest number that a tensor of one integer can be."""
    number = value.constant
    if number is not None and number.size == 1 and number.dtype.kind in "iu":
        return (int(number.reshape(-1)[0]),) * 2
    node = value.producer
    if depth and node.op in _KEEPS:
        return _bounds(node.input(0), depth - 1)
    if depth and node.op in ("Minimum", "Maximum"):
        chosen = min if node.op == "Minimum" else max
        (a, b), (c, d) = (_bounds(node.input(k), depth - 1) for k in (0, 1))
        return chosen(a, c), chosen(b, d)
    return -math.inf, math.inf
