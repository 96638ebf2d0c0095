"""The gradient of a concat: how stock TensorFlow takes that of each of its inputs out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value

MEASURES = frozenset({"Shape", "ShapeN"})
"""What measures shapes: as many as it has inputs."""


@dataclass(frozen=True)
class ConcatSlice:
    """Some columns of the gradient of a concat's result.

    Attributes:
        whole: that gradient, [B, all columns].
        offset: the first of the columns.
        nodes: what takes them out of it.
    """

    whole: Tensor
    offset: int
    nodes: tuple[str, ...]


class ConcatGradient:
    """Explains gradients of the inputs of a concat along axis 1 as parts of its own.

    A concat may have thousands of inputs: what concerns them all is found out once.

    Args:
        concat: the concat.
        widths: of its inputs, None where unknown.
    """

    def __init__(self, concat: Node, widths: Sequence[int | None]) -> None:
        self._inputs = concat.inputs[:-1]
        self._widths = list(widths)
        self._offsets = _offsets(widths)
        self._known: dict[Node, bool] = {}

    def part(self, top: Value, index: int) -> ConcatSlice | None:
        """Explains the gradient of input `index`.

        Args:
            top: that gradient.
            index: the number of the input.
        """
        nodes: tuple[str, ...] = ()
        inner = top.resolved
        if (reshape := inner.producer).op == "Reshape":
            # What is taken out has two dimensions, and these numbers of rows and columns.
            nodes, inner = (reshape.name,), reshape.input(0).resolved
        offset, node = self._offsets[index], inner.producer
        if offset is None:
            return None
        is_slice = node.op == "Slice" and self._is_slice(node, index, offset)
        is_split = node.op == "SplitV" and inner.index == index and self._is_of_all(node)
        if not is_slice and not is_split:
            return None
        return ConcatSlice(node.input(0).resolved.tensor, offset, (*nodes, node.name))

    def _is_slice(self, node: Node, index: int, offset: int) -> bool:
        """Whether a Slice takes the columns of an input out of a matrix."""
        _, begin, size = node.inputs
        first, count = begin.constant, size.constant
        if first is not None and count is not None:
            width = self._widths[index]
            return list(first) == [0, offset] and len(count) == 2 and int(count[1]) == width
        offsets = begin.producer
        if offsets.op != "ConcatOffset" or begin.resolved.index != index:
            return False
        shape = offsets.input(1 + index)
        return self._is_of_all(offsets) and shape.resolved == size.resolved

    def _is_of_all(self, node: Node) -> bool:
        """Whether a SplitV or a ConcatOffset is one of all inputs."""
        if node not in self._known:
            is_split = node.op == "SplitV"
            self._known[node] = self._is_split(node) if is_split else self._is_offset(node)
        return self._known[node]

    def _is_offset(self, node: Node) -> bool:
        """Whether a ConcatOffset counts the columns before each input."""
        axis, *shapes = node.inputs
        return axis.item == 1 and are_shapes_of(shapes, self._inputs)

    def _is_split(self, node: Node) -> bool:
        """Whether a SplitV takes all inputs out of a matrix."""
        _, sizes, axis = node.inputs
        if axis.item != 1 or node.int_attr("num_split") != len(self._widths):
            return False
        known = sizes.constant
        if known is not None:
            return list(known) == self._widths
        return are_shapes_of(packed_shapes(sizes), self._inputs)


def _offsets(widths: Sequence[int | None]) -> list[int | None]:
    """Returns the first column of each input, None behind one of unknown width."""
    offsets: list[int | None] = []
    offset: int | None = 0
    for width in widths:
        offsets.append(offset)
        offset = None if offset is None or width is None else offset + width
    return offsets


def packed_shapes(widths: Value, axis: int = 1) -> tuple[Value, ...]:
    """Returns the shapes whose sizes along an axis a tensor has, or nothing.

    That is `squeeze(stack(shapes, axis=1)[axis:axis + 1, :])`.
    """
    squeeze = widths.producer
    if squeeze.op not in ("Squeeze", "Reshape"):
        return ()
    row = squeeze.input(0).producer
    if row.op != "Slice":
        return ()
    stacked, begin, size = row.inputs
    pack = stacked.producer
    if pack.op != "Pack" or pack.int_attr("axis") != 1 or begin.elements != [axis, 0]:
        return ()
    return pack.inputs if size.elements in ([1, -1], [1, pack.input_count]) else ()


def are_shapes_of(shapes: Sequence[Value], values: Sequence[Value]) -> bool:
    """Whether these are the shapes of as many tensors."""
    if len(shapes) != len(values):
        return False
    return all(is_shape_of(*pair) for pair in zip(shapes, values, strict=True))


def is_shape_of(shape: Value, value: Value) -> bool:
    """Whether something is the shape of a tensor: measured, or the one that is known."""
    source = measured(shape)
    if source is not None:
        return source == value.resolved
    sizes = shape.constant
    return sizes is not None and tuple(sizes) == value.shape


def measured(shape: Value) -> Value | None:
    """Returns the tensor that something is the shape of."""
    source = shape.producer
    return source.input(shape.resolved.index).resolved if source.op in MEASURES else None
