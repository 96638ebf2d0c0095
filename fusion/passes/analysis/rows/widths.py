"""Widths that numbers of a graph say, whatever is fed."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    width, ids = only_number(node.input(1)), node.input(0).shape
    return None if width is None or ids is None or len(ids) != 2 else (ids[0], width)


def only_number(value: Value) -> int | None:
    """Returns the only number that a tensor can be, None if it can be several."""
    low, high = _bounds(value, _MAX_DEPTH)
    return int(low) if low == high and math.isfinite(low) else None


def crossed_shape(view: GraphView, name: str) -> Shape | None:
    """Returns the shape of a SparseToDense of the crosses of dense features, or None."""
    node = Node(view, name)
    cross = node.input(0).producer
    is_whole = [node.input(k).producer.name for k in (1, 2)] == [cross.name] * 2
    if not cross.op.startswith("SparseCross") or not is_whole or cross.int_attr("N"):
        return None
    attr = cross.attr("dense_types")
    shapes = [value.shape for value in cross.inputs[: 0 if attr is None else len(attr.list.type)]]
    width = 1
    for shape in shapes:
        if shape is None or len(shape) != 2 or shape[1] is None:
            return None
        width *= shape[1]
    return (None, width) if shapes else None


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


KNOWN_SHAPES: dict[str, Callable[[GraphView, str], Shape | None]] = {
    "DenseBincount": counted_shape,
    "SparseToDense": crossed_shape,
}
"""(a graph, a node) -> the shape of its result, if TensorFlow does not know it; rows in front."""
