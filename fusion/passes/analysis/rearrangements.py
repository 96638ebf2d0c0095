"""Ops that hand on all elements of a tensor in their order, in another shape or in the same.

Reshapes do so, and so do slices that leave nothing out: `rows[:, 0]` of rows [B, 1, D].
"""

from __future__ import annotations

from fusion.passes.analysis.crossed_sizes import as_measured
from fusion.passes.analysis.symbolic_shapes import Element, ShapeMath, Vector, reshaped
from fusion.passes.graph.tensor import ALIAS_OPS
from fusion.passes.graph.values import Node, Value

REARRANGEMENTS = frozenset(
    {"ExpandDims", "GatherV2", "Reshape", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice"}
    | {"Unpack"}
)
"""Ops that may do so."""


def rearranged_input(node: Node) -> Value:
    """Returns the tensor whose elements an op of `REARRANGEMENTS` hands on."""
    return node.input(_position(node.op))


def without_last_axis(value: Value) -> Value | None:
    """Returns the tensor that a node gives a last axis of size 1, as `x[..., tf.newaxis]` does.

    Args:
        value: the result of the node.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    node = Node(value.view, value.node)
    op = node.op
    if op not in REARRANGEMENTS:
        return None
    inner = rearranged_input(node)
    if op == "ExpandDims" and node.input(1).item == -1:
        return inner
    shapes = ShapeMath()
    shape = shapes.shape_of(inner)
    is_column = shape is not None and rearranged(shapes, node, _position(op), shape) == (*shape, 1)
    return inner if is_column else None


def rearranged(shapes: ShapeMath, node: Node, position: int, shape: Vector) -> Vector | None:
    """Returns the shape of the only output of a node that hands on an input's elements in order.

    Args:
        shapes: of the graph's tensors.
        node: the node.
        position: of the input.
        shape: of the input.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    op = node.op
    if position != _position(op):
        return None
    if op in ALIAS_OPS:
        return shape
    rules = {
        "ExpandDims": _expanded,
        "GatherV2": _gathered,
        "Reshape": _reshaped,
        "Slice": _sliced,
        "Split": _split,
        "SplitV": _split,
        "Squeeze": _squeezed,
        "StridedSlice": _strided,
        "Unpack": _unpacked,
    }
    if op != "Reshape":
        shape = as_measured(shape)  # others fail where a size of 1 is 0
    return rules[op](shapes, node, shape) if op in rules else None


def reshaped_input(node: Node) -> Value | None:
    """Returns the tensor that a node gives another shape, as gradients of rearrangements do.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    op, inputs = node.op, node.inputs
    if op == "Reshape" or (op == "Pack" and len(inputs) == 1):
        return inputs[0]
    if op == "StridedSliceGrad":
        shapes = ShapeMath()
        shape = shapes.vector(inputs[0])
        return None if shape is None or _strided(shapes, node, shape) is None else inputs[4]
    return None


def _position(op: str) -> int:
    return 1 if op == "Split" else 0


def _reshaped(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    target = shapes.vector(node.input(1))
    return None if target is None else reshaped(shape, target)


def _expanded(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    at = _axis(node.input(1), len(shape) + 1)
    return None if at is None else (*shape[:at], 1, *shape[at:])


def _squeezed(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    axes = node.attr("squeeze_dims")
    gone = {axis % len(shape) for axis in axes.list.i} if axes is not None and shape else set()
    if not gone or any(shape[axis] != 1 for axis in gone):
        return None
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _gathered(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    """Of the only index of an axis."""
    _, indices, axis = node.inputs
    at, index = _axis(axis, len(shape)), indices.constant
    if at is None or index is None or node.int_attr("batch_dims"):
        return None
    if shape[at] != 1 or index.size != 1 or index.any():
        return None
    return (*shape[:at], *index.shape, *shape[at + 1 :])


def _unpacked(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    at = node.int_attr("axis")
    if not -len(shape) <= at < len(shape) or node.int_attr("num") != 1:
        return None
    at %= len(shape)
    return (*shape[:at], *shape[at + 1 :]) if shape[at] == 1 else None


def _split(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    """Into one piece."""
    is_even = node.op == "Split"
    at = _axis(node.input(0 if is_even else 2), len(shape))
    if at is None or node.int_attr("num_split") != 1:
        return None
    if is_even:
        return shape
    return shape if shapes.vector(node.input(1)) in ((-1,), (shape[at],)) else None


def _sliced(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    begin, sizes = (shapes.vector(bound) for bound in node.inputs[1:])
    if begin is None or sizes is None or any(begin) or len(sizes) != len(shape):
        return None
    return shape if all(map(_is_all, sizes, shape)) else None


def _is_all(size: Element, of: Element) -> bool:
    """Whether a Slice takes an axis whole."""
    return size in (-1, of)


def _strided(shapes: ShapeMath, node: Node, shape: Vector) -> Vector | None:
    """Of a StridedSlice, or of the gradient of one: what it takes out of a tensor of this shape."""
    bounds = [bound.constant for bound in node.inputs[1:4]]
    if any(bound is None or bound.ndim != 1 for bound in bounds):
        return None
    begin, end, strides = (bound.tolist() for bound in bounds if bound is not None)
    masks = {
        key: node.int_attr(f"{key}_mask")
        for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def has(mask: str, at: int) -> bool:
        return bool(masks[mask] >> at & 1)

    count = len(begin)
    ellipses = [at for at in range(count) if has("ellipsis", at)]
    taken = [at for at in range(count) if not has("ellipsis", at) and not has("new_axis", at)]
    left = len(shape) - len(taken)
    if len(ellipses) > 1 or left < 0:
        return None
    result: list[Element] = []
    sizes = iter(shape)
    for at in range(count):
        if has("ellipsis", at):
            result += [next(sizes) for _ in range(left)]
        elif has("new_axis", at):
            result.append(1)
        elif has("shrink_axis", at):
            if next(sizes) != 1 or begin[at] not in (0, -1) or strides[at] != 1:
                return None
        else:
            size = next(sizes)
            is_first = has("begin", at) or begin[at] == 0 or _is_at_least(-begin[at], size)
            is_last = has("end", at) or _is_at_least(end[at], size)
            if strides[at] != 1 or not is_first or not is_last:
                return None
            result.append(size)
    return (*result, *sizes)


def _is_at_least(number: int, size: Element) -> bool:
    return isinstance(size, int) and number >= size


def _axis(axis: Value, rank: int) -> int | None:
    """Returns an axis from the front; None if it is not known, or is none of so many."""
    at: int | None = axis.item
    return None if at is None or not -rank <= at < rank else at % rank
