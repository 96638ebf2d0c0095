"""The gradient of a concat: how stock TensorFlow takes that of each of its inputs out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView


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
        view: the graph.
        concat: the concat's name.
        widths: of its inputs, None where unknown.
    """

    def __init__(self, view: GraphView, concat: str, widths: Sequence[int | None]) -> None:
        self._view = view
        self._inputs = view.inputs(concat)[:-1]
        self._widths = list(widths)
        self._offsets = _offsets(widths)
        self._known: dict[str, bool] = {}

    def part(self, top: Tensor, index: int) -> ConcatSlice | None:
        """Explains the gradient of input `index`.

        Args:
            top: that gradient.
            index: the number of the input.
        """
        view = self._view
        nodes: tuple[str, ...] = ()
        inner = view.resolve(top)
        if view.op(inner.node) == "Reshape":
            # What is taken out has two dimensions, and these numbers of rows and columns.
            nodes, inner = (inner.node,), view.resolve(view.inputs(inner.node)[0])
        offset, op = self._offsets[index], view.op(inner.node)
        if offset is None:
            return None
        is_slice = op == "Slice" and self._is_slice(inner.node, index, offset)
        is_split = op == "SplitV" and inner.index == index and self._is_of_all(inner.node)
        if not is_slice and not is_split:
            return None
        return ConcatSlice(view.resolve(view.inputs(inner.node)[0]), offset, (*nodes, inner.node))

    def _is_slice(self, name: str, index: int, offset: int) -> bool:
        """Whether a Slice takes the columns of an input out of a matrix."""
        view = self._view
        _, begin, size = view.inputs(name)
        begin, size = view.resolve(begin), view.resolve(size)
        first, count = view.constant(begin), view.constant(size)
        if first is not None and count is not None:
            width = self._widths[index]
            return list(first) == [0, offset] and len(count) == 2 and int(count[1]) == width
        if view.op(begin.node) != "ConcatOffset" or begin.index != index:
            return False
        shape = view.inputs(begin.node)[1 + index]
        return self._is_of_all(begin.node) and view.resolve(shape) == size

    def _is_of_all(self, name: str) -> bool:
        """Whether a SplitV or a ConcatOffset is one of all inputs."""
        if name not in self._known:
            is_split = self._view.op(name) == "SplitV"
            self._known[name] = self._is_split(name) if is_split else self._is_offset(name)
        return self._known[name]

    def _is_offset(self, name: str) -> bool:
        """Whether a ConcatOffset counts the columns before each input."""
        axis, *shapes = self._view.inputs(name)
        return _is_one(self._view, axis) and self._are_shapes(shapes)

    def _is_split(self, name: str) -> bool:
        """Whether a SplitV takes all inputs out of a matrix."""
        view, width = self._view, len(self._widths)
        _, sizes, axis = view.inputs(name)
        if not _is_one(view, axis) or view.int_attr(name, "num_split") != width:
            return False
        known = view.constant(sizes)
        if known is not None:
            return list(known) == self._widths
        return self._are_shapes(packed_shapes(view, sizes))

    def _are_shapes(self, shapes: Sequence[Tensor]) -> bool:
        """Whether these are the shapes of the inputs."""
        if len(shapes) != len(self._inputs):
            return False
        pairs = zip(shapes, self._inputs, strict=True)
        return all(is_shape_of(self._view, *pair) for pair in pairs)


def _offsets(widths: Sequence[int | None]) -> list[int | None]:
    """Returns the first column of each input, None behind one of unknown width."""
    offsets: list[int | None] = []
    offset: int | None = 0
    for width in widths:
        offsets.append(offset)
        offset = None if offset is None or width is None else offset + width
    return offsets


def packed_shapes(view: GraphView, widths: Tensor, axis: int = 1) -> tuple[Tensor, ...]:
    """Returns the shapes whose sizes along an axis a tensor has, or nothing.

    That is `squeeze(stack(shapes, axis=1)[axis:axis + 1, :])`.
    """
    squeeze = view.resolve(widths).node
    if view.op(squeeze) not in ("Squeeze", "Reshape"):
        return ()
    row = view.resolve(view.inputs(squeeze)[0]).node
    if view.op(row) != "Slice":
        return ()
    stacked, begin, size = view.inputs(row)
    pack = view.resolve(stacked).node
    if view.op(pack) != "Pack" or view.int_attr(pack, "axis") != 1:
        return ()
    shapes = view.inputs(pack)
    first, count = view.constant(begin), view.constant(size)
    if first is None or list(first) != [axis, 0]:
        return ()
    return shapes if count is not None and list(count) in ([1, -1], [1, len(shapes)]) else ()


def is_shape_of(view: GraphView, shape: Tensor, tensor: Tensor) -> bool:
    """Whether something is the shape of a tensor: measured, or the one that is known."""
    source = measured(view, shape)
    if source is not None:
        return source == view.resolve(tensor)
    value = view.constant(shape)
    return value is not None and tuple(value) == view.shape(tensor)


def measured(view: GraphView, shape: Tensor) -> Tensor | None:
    """Returns the tensor that something is the shape of."""
    source = view.resolve(shape)
    if view.op(source.node) not in ("Shape", "ShapeN"):
        return None
    return view.resolve(view.inputs(source.node)[source.index])


def _is_one(view: GraphView, tensor: Tensor) -> bool:
    value = view.constant(tensor)
    return value is not None and value.size == 1 and int(value.reshape(())) == 1
