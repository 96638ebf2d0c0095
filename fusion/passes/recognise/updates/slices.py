"""Gradients of the columns of a concat, which lie side by side in that of its result."""

from __future__ import annotations

from typing import NamedTuple

from fusion.passes.analysis.rearrangements import reshaped_input
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.concat_gradient import measured, packed_shapes


class ColumnSlice(NamedTuple):
    """Some columns of a matrix.

    Attributes:
        whole: the matrix, [n, W].
        offset: the first of the columns; -1: these are all there is.
    """

    whole: Tensor
    offset: int


def column_slice(view: GraphView, tensor: Tensor, dim: int) -> ColumnSlice:
    """Returns the matrix that `dim` columns are taken out of; all of it if it is not one.

    Args:
        view: the graph.
        tensor: [n, dim].
        dim: a known number.
    """
    found = ColumnSlice(view.resolve(tensor), -1)
    source, width = found.whole, dim
    while width and _is_free(view, source):
        offset = _offset(view, source, width)
        if offset is None:
            whole = _reshaped_matrix(view, source, width)
            if whole is None:
                break
        else:
            # The matrix may itself be columns of another.
            whole = view.resolve(view.inputs(source.node)[0])
            found = ColumnSlice(whole, max(0, found.offset) + offset)
            width = _width(view, whole) or 0
        source = whole
    return found


def _is_free(view: GraphView, tensor: Tensor) -> bool:
    return not view.controls(tensor.node) and tensor.node not in view.preserved


def _reshaped_matrix(view: GraphView, tensor: Tensor, width: int) -> Tensor | None:
    """Returns the matrix of the same number of columns and rows that a matrix is reshaped from."""
    while _is_free(view, tensor):
        inner = reshaped_input(view, tensor.node)
        if inner is None:
            return None
        tensor = view.resolve(inner)
        if _width(view, tensor) == width or _offset(view, tensor, width) is not None:
            return tensor
    return None


def _width(view: GraphView, tensor: Tensor) -> int | None:
    """The columns of a matrix; None if it is none, or they are not known."""
    shape = view.shape(tensor)
    return shape[1] if shape is not None and len(shape) == 2 else None


def _offset(view: GraphView, tensor: Tensor, dim: int) -> int | None:
    """The first column that a node takes out of a matrix, of all rows; None if it is none."""
    name, inputs = tensor.node, view.inputs(tensor.node)
    if view.op(name) == "Slice":
        begin, size = view.constant(inputs[1]), view.constant(inputs[2])
        if begin is None or size is None or begin.shape != (2,) or size.shape != (2,):
            return _concat_offset(view, tensor, dim)
        rows = (view.shape(inputs[0]) or (None,))[0]
        has_all_rows = begin[0] == 0 and size[0] in (-1, rows)
        return int(begin[1]) if has_all_rows and size[1] == dim else None
    return _split_offset(view, tensor, dim) if view.op(name) == "SplitV" else None


def _split_offset(view: GraphView, tensor: Tensor, dim: int) -> int | None:
    """The first column of an output of a SplitV, whose sizes may be computed."""
    whole, sizes, axis = view.inputs(tensor.node)
    number, shape = view.constant(axis), view.shape(whole)
    if number is None or shape is None or len(shape) != 2 or int(number) not in (1, -1):
        return None
    known = view.constant(sizes)
    widths: list[int | None] = (
        known.tolist()
        if known is not None
        else [_measured_width(view, shape) for shape in packed_shapes(view, sizes)]
    )
    before = [width for width in widths[: tensor.index] if width is not None and width >= 0]
    is_known = len(before) == tensor.index < len(widths) and widths[tensor.index] == dim
    return sum(before) if is_known else None


def _concat_offset(view: GraphView, tensor: Tensor, dim: int) -> int | None:
    """The first column of a Slice whose place is computed, as in the gradient of a concat."""
    _, begin, size = (view.resolve(part) for part in view.inputs(tensor.node))
    if view.op(begin.node) != "ConcatOffset":
        return None
    axis, *shapes = view.inputs(begin.node)
    number = view.constant(axis)
    if number is None or int(number) != 1 or view.resolve(shapes[begin.index]) != size:
        return None
    widths = [_measured_width(view, shape) for shape in shapes[: begin.index + 1]]
    known = [width for width in widths if width is not None]
    is_known = len(known) == len(widths) and known[-1] == dim
    return sum(known[:-1]) if is_known else None


def _measured_width(view: GraphView, shape: Tensor) -> int | None:
    """The columns of the matrix that something is the shape of."""
    sizes, of = view.constant(shape), measured(view, shape)
    if sizes is not None:
        return int(sizes[1]) if sizes.shape == (2,) else None
    return None if of is None else _width(view, of)
