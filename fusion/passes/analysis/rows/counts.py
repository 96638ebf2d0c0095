"""How integers that follow from sizes depend on the number of rows, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from fusion.passes.graph.tensor import Shape
from fusion.passes.graph.values import Node, Value

_MAX_ELEMENTS = 64


class Count(Enum):
    """An integer that is not known."""

    FIXED = "the same for any number of rows"
    ROWS = "a multiple of the number of rows"
    OTHER = "depends on the number of rows in another way"


Element = int | Count
Elements = tuple[Element, ...] | None
"""The elements of a tensor in their order; None: each may be any."""

_KEEPS = frozenset(
    {"Identity", "Cast", "StopGradient", "Snapshot", "Reshape", "ExpandDims", "Squeeze"}
)


def of_shape(shape: Shape | None, axis: int) -> Elements:
    """Returns the sizes of a tensor with an axis of rows."""
    if shape is None:
        return None
    fixed = (Count.FIXED if size is None else size for size in shape)
    return tuple(Count.ROWS if k == axis else size for k, size in enumerate(fixed))


def of_constant(value: Value) -> Elements:
    """Returns the elements of a tensor that depends on no rows."""
    if value.producer.op == "Pack" and value.shape == (value.producer.input_count,):
        items = [of_constant(one) for one in value.producer.inputs]
        return tuple(Count.FIXED if one is None else one[0] for one in items)
    array = value.constant
    if array is not None and array.dtype.kind in "iub" and array.size <= _MAX_ELEMENTS:
        return tuple(int(element) for element in array.reshape(-1))
    return _all(value, Count.FIXED)


def computed(node: Node, operands: Sequence[Elements]) -> list[Elements]:
    """Returns the elements of the results of an op on sizes.

    Args:
        node: it.
        operands: the elements of what it reads.
    """
    if node.op == "Unpack":
        (elements,) = operands
        is_vector = elements is not None and node.input(0).shape == (len(elements),)
        if is_vector and elements is not None:
            return [(element,) for element in elements]
    found = _single(node, operands)
    if found is None:
        found = _general(node, operands)
    return [found]


def _single(node: Node, operands: Sequence[Elements]) -> Elements:
    first, op = operands[0], node.op
    if op in _KEEPS:
        return first
    if op == "Pack" and all(e is not None and len(e) == 1 for e in operands):
        return tuple(element for elements in operands for element in elements or ())
    if op == "ConcatV2" and len(node.output().shape or ()) == 1:
        if any(elements is None for elements in operands[:-1]):
            return None
        return tuple(element for elements in operands[:-1] for element in elements or ())
    if first is None:
        return None
    if op in ("StridedSlice", "Slice", "GatherV2") and node.input(0).shape == (len(first),):
        return _taken(node, first)
    if op == "Prod":
        total: Element = 1
        for element in first:
            total = _product(total, element)
        return (total,) if node.output().shape in ((), (1,)) else None
    if op in _BINARY:
        return _each(_BINARY[op], first, operands[1])
    return None


def _taken(node: Node, elements: tuple[Element, ...]) -> Elements:
    numbers = [node.input(k).constant for k in range(1, node.input_count)]
    if any(number is None for number in numbers):
        return None
    array: npt.NDArray[Any] = np.empty(len(elements), object)
    array[:] = elements
    flat = [[int(one) for one in np.reshape(number, -1)] for number in numbers]  # type: ignore[arg-type]
    if node.op == "GatherV2":
        if any(not -len(elements) <= one < len(elements) for one in flat[0]):
            return None
        return tuple(array[flat[0]])
    if node.op == "Slice":
        (begin,), (size,) = flat
        return tuple(array[begin:] if size < 0 else array[begin : begin + size])
    if any(len(one) != 1 for one in flat) or node.int_attr("new_axis_mask"):
        return None
    if node.int_attr("ellipsis_mask"):
        return elements
    (begin,), (end,), (stride,) = flat
    if node.int_attr("shrink_axis_mask"):
        return (array[begin],) if -len(elements) <= begin < len(elements) else None
    first = None if node.int_attr("begin_mask") else begin
    return tuple(array[first : None if node.int_attr("end_mask") else end : stride])


def _each(
    compute: Callable[[Element, Element], Element], first: tuple[Element, ...], second: Elements
) -> Elements:
    if second is None:
        return None
    count = max(len(first), len(second))
    if {len(first), len(second)} - {1, count}:
        return None
    pairs = zip(first * (count // len(first)), second * (count // len(second)), strict=True)
    return tuple(compute(a, b) for a, b in pairs)


def _product(a: Element, b: Element) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if Count.OTHER in (a, b) or (a is Count.ROWS and b is Count.ROWS):
        return Count.OTHER
    return Count.ROWS if Count.ROWS in (a, b) else Count.FIXED


def _quotient(a: Element, b: Element) -> Element:
    """What divides a number of rows by a fixed one; the result's size shows if it is whole."""
    if Count.OTHER in (a, b) or b is Count.ROWS:
        return Count.OTHER
    return Count.ROWS if a is Count.ROWS else Count.FIXED


def _larger(a: Element, b: Element) -> Element:
    if a == b:
        return a
    if Count.ROWS in (a, b):
        return Count.ROWS if 1 in (a, b) else Count.OTHER
    return Count.OTHER if Count.OTHER in (a, b) else Count.FIXED


_BINARY: dict[str, Callable[[Element, Element], Element]] = {
    "Mul": _product,
    "FloorDiv": _quotient,
    "TruncateDiv": _quotient,
    "Maximum": _larger,
    "BroadcastArgs": _larger,
}


def _general(node: Node, operands: Sequence[Elements]) -> Elements:
    """What any op makes of fixed numbers is fixed."""
    is_fixed = all(
        elements is not None and not {Count.ROWS, Count.OTHER} & {*elements}
        for elements in operands
    )
    return _all(node.output(), Count.FIXED) if is_fixed else None


def _all(value: Value, element: Element) -> Elements:
    shape = value.shape
    if shape is None or None in shape:
        return None
    size = math.prod(size or 0 for size in shape)
    return (element,) * size if size <= _MAX_ELEMENTS else None
