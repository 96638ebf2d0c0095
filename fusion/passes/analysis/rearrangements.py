"""Ops that hand on all elements of a tensor in their order, in another shape or in the same.

Reshapes do so, and so do slices that leave nothing out: `rows[:, 0]` of rows [B, 1, D].
"""

from __future__ import annotations

from fusion.passes.analysis.symbolic_shapes import Element, ShapeMath, Vector, reshaped
from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.view import GraphView

REARRANGEMENTS = frozenset(
    {"ExpandDims", "GatherV2", "Reshape", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice"}
    | {"Unpack"}
)
"""Ops that may do so."""


def rearranged_input(view: GraphView, name: str) -> Tensor:
    """Returns the tensor whose elements an op of `REARRANGEMENTS` hands on."""
    return view.inputs(name)[_position(view.op(name))]


def behind_last_axis(view: GraphView, tensor: Tensor) -> Tensor | None:
    """Returns the tensor that a node gives a last axis of size 1, as `x[..., tf.newaxis]` does.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    name, op = tensor.node, view.op(tensor.node)
    if op not in REARRANGEMENTS:
        return None
    inner = rearranged_input(view, name)
    if op == "ExpandDims" and _is_last(view, view.inputs(name)[1]):
        return inner
    shapes = ShapeMath(view)
    shape = shapes.shape_of(inner)
    is_column = shape is not None and rearranged(shapes, name, _position(op), shape) == (*shape, 1)
    return inner if is_column else None


def rearranged(shapes: ShapeMath, name: str, position: int, shape: Vector) -> Vector | None:
    """Returns the shape of the only output of a node that hands on an input's elements in order.

    Args:
        shapes: of the graph's tensors.
        name: the node.
        position: of the input.
        shape: of the input.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    op = shapes.view.op(name)
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
    return rules[op](shapes, name, shape) if op in rules else None


def reshaped_input(view: GraphView, name: str) -> Tensor | None:
    """Returns the tensor that a node gives another shape, as gradients of rearrangements do.

    Returns:
        None if the node does something else, or is not known to do this.
    """
    op, inputs = view.op(name), view.inputs(name)
    if op == "Reshape" or (op == "Pack" and len(inputs) == 1):
        return inputs[0]
    if op == "StridedSliceGrad":
        shapes = ShapeMath(view)
        shape = shapes.vector(inputs[0])
        return None if shape is None or _strided(shapes, name, shape) is None else inputs[4]
    return None


def _position(op: str) -> int:
    return 1 if op == "Split" else 0


def _reshaped(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    target = shapes.vector(shapes.view.inputs(name)[1])
    return None if target is None else reshaped(shape, target)


def _expanded(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    at = _number(shapes.view, shapes.view.inputs(name)[1], len(shape) + 1)
    return None if at is None else (*shape[:at], 1, *shape[at:])


def _squeezed(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    axes = shapes.view.attr(name, "squeeze_dims")
    gone = {axis % len(shape) for axis in axes.list.i} if axes is not None and shape else set()
    if not gone or any(shape[axis] != 1 for axis in gone):
        return None
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _gathered(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    """Of the only index of an axis."""
    view = shapes.view
    _, indices, axis = view.inputs(name)
    at, index = _number(view, axis, len(shape)), view.constant(indices)
    if at is None or index is None or view.int_attr(name, "batch_dims"):
        return None
    if shape[at] != 1 or index.size != 1 or index.any():
        return None
    return (*shape[:at], *index.shape, *shape[at + 1 :])


def _unpacked(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    at = shapes.view.int_attr(name, "axis")
    if not -len(shape) <= at < len(shape) or shapes.view.int_attr(name, "num") != 1:
        return None
    at %= len(shape)
    return (*shape[:at], *shape[at + 1 :]) if shape[at] == 1 else None


def _split(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    """Into one piece."""
    view = shapes.view
    axis = view.inputs(name)[0 if view.op(name) == "Split" else 2]
    at = _number(view, axis, len(shape))
    if at is None or view.int_attr(name, "num_split") != 1:
        return None
    if view.op(name) == "Split":
        return shape
    return shape if shapes.vector(view.inputs(name)[1]) in ((-1,), (shape[at],)) else None


def _sliced(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    begin, sizes = (shapes.vector(bound) for bound in shapes.view.inputs(name)[1:])
    if begin is None or sizes is None or any(begin) or len(sizes) != len(shape):
        return None
    return shape if all(map(_is_all, sizes, shape)) else None


def _is_all(size: Element, of: Element) -> bool:
    """Whether a Slice takes an axis whole."""
    return size in (-1, of)


def _strided(shapes: ShapeMath, name: str, shape: Vector) -> Vector | None:
    """Of a StridedSlice, or of the gradient of one: what it takes out of a tensor of this shape."""
    view = shapes.view
    bounds = [view.constant(bound) for bound in view.inputs(name)[1:4]]
    if any(bound is None or bound.ndim != 1 for bound in bounds):
        return None
    begin, end, strides = (bound.tolist() for bound in bounds if bound is not None)
    masks = {
        key: view.int_attr(name, f"{key}_mask")
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


def _is_last(view: GraphView, axis: Tensor) -> bool:
    """Whether an axis is the last one of any rank."""
    value = view.constant(axis)
    return value is not None and value.size == 1 and int(value.reshape(())) == -1


def _number(view: GraphView, axis: Tensor, rank: int) -> int | None:
    """Returns an axis from the front; None if it is not known, or is none of so many."""
    value = view.constant(axis)
    at = None if value is None or value.size != 1 else int(value.reshape(()))
    if at is None or not -rank <= at < rank:
        return None
    return at % rank
