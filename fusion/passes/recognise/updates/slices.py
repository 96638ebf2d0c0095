"""Gradients of the columns of a concat, which lie side by side in that of its result."""

from __future__ import annotations

from typing import NamedTuple

from fusion.passes.analysis.rearrangements import reshaped_input
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.backward.concat_gradient import measured, packed_shapes


class ColumnSlice(NamedTuple):
    """Some columns of a matrix.

    Attributes:
        whole: the matrix, [n, W].
        offset: the first of the columns; -1: these are all there is.
    """

    whole: Value
    offset: int


def column_slice(value: Value, dim: int) -> ColumnSlice:
    """Returns the matrix that `dim` columns are taken out of; all of it if it is not one.

    Args:
        value: [n, dim].
        dim: a known number.
    """
    columns = ColumnSlice(value.resolved, -1)
    source, width = columns.whole, dim
    while width and _is_free(source.producer):
        offset = _offset(source, width)
        if offset is None:
            whole = _reshaped_matrix(source, width)
            if whole is None:
                break
        else:
            # The matrix may itself be columns of another.
            whole = source.producer.input(0).resolved
            columns = ColumnSlice(whole, max(0, columns.offset) + offset)
            width = _width(whole) or 0
        source = whole
    return columns


def _is_free(node: Node) -> bool:
    return not node.controls and not node.is_preserved


def _reshaped_matrix(value: Value, width: int) -> Value | None:
    """Returns the matrix of the same number of columns and rows that a matrix is reshaped from."""
    while _is_free(value.producer):
        inner = reshaped_input(value.producer)
        if inner is None:
            return None
        value = inner.resolved
        if _width(value) == width or _offset(value, width) is not None:
            return value
    return None


def _width(value: Value) -> int | None:
    """The columns of a matrix; None if it is none, or they are not known."""
    shape = value.shape
    return shape[1] if shape is not None and len(shape) == 2 else None


def _offset(value: Value, dim: int) -> int | None:
    """The first column that a node takes out of a matrix, of all rows; None if it is none."""
    node = value.producer
    if node.op != "Slice":
        return _split_offset(value, dim) if node.op == "SplitV" else None
    matrix, *bounds = node.inputs
    begin, size = (bound.constant for bound in bounds)
    if begin is None or size is None or begin.shape != (2,) or size.shape != (2,):
        return _concat_offset(node, dim)
    rows = (matrix.shape or (None,))[0]
    has_all_rows = begin[0] == 0 and size[0] in (-1, rows)
    return int(begin[1]) if has_all_rows and size[1] == dim else None


def _split_offset(value: Value, dim: int) -> int | None:
    """The first column of an output of a SplitV, whose sizes may be computed."""
    whole, sizes, axis = value.producer.inputs
    shape, index = whole.shape, value.index
    if shape is None or len(shape) != 2 or axis.item not in (1, -1):
        return None
    known = sizes.constant
    widths: list[int | None] = (
        known.tolist() if known is not None else [*map(_measured_width, packed_shapes(sizes))]
    )
    before = [width for width in widths[:index] if width is not None and width >= 0]
    is_known = len(before) == index < len(widths) and widths[index] == dim
    return sum(before) if is_known else None


def _concat_offset(node: Node, dim: int) -> int | None:
    """The first column of a Slice whose place is computed, as in the gradient of a concat."""
    _, begin, size = (part.resolved for part in node.inputs)
    offsets, index = begin.producer, begin.index
    if offsets.op != "ConcatOffset":
        return None
    axis, *shapes = offsets.inputs
    if axis.item != 1 or shapes[index].resolved != size:
        return None
    widths = [_measured_width(shape) for shape in shapes[: index + 1]]
    known = [width for width in widths if width is not None]
    is_known = len(known) == len(widths) and known[-1] == dim
    return sum(known[:-1]) if is_known else None


def _measured_width(shape: Value) -> int | None:
    """The columns of the matrix that something is the shape of."""
    sizes, of = shape.constant, measured(shape)
    if sizes is not None:
        return int(sizes[1]) if sizes.shape == (2,) else None
    return None if of is None else _width(of)
