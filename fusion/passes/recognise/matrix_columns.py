"""Columns that are taken out of a matrix: `ids[:, 3]`, `ids[:, 3:4]`, or one of all of them."""

from __future__ import annotations

from typing import NamedTuple

from fusion.passes.graph.values import Node, Value


class MatrixColumn(NamedTuple):
    """A column of a matrix, and its number."""

    matrix: Value
    column: int


def match_column(value: Value) -> MatrixColumn | None:
    """Returns the column of a matrix that a tensor is, [B] or [B, 1]; None if it is none."""
    value = value.resolved
    node = value.producer
    rules = {"StridedSlice": _sliced, "Unpack": _unpacked, "Split": _split}
    if node.op not in rules or node.controls:
        return None
    column = rules[node.op](node, value.index)
    if column is None:
        return None
    shape = column.matrix.shape
    if shape is None or len(shape) != 2 or shape[1] is None or not 0 <= column.column < shape[1]:
        return None
    return column


def _sliced(node: Node, index: int) -> MatrixColumn | None:
    matrix, *bounds = node.inputs
    begin, end, strides = (bound.elements for bound in bounds)
    shape = matrix.shape
    if shape is None or len(shape) != 2 or shape[1] is None:
        return None
    if not all(isinstance(bound, list) and len(bound) == 2 for bound in (begin, end, strides)):
        return None
    assert isinstance(begin, list) and isinstance(end, list) and isinstance(strides, list)
    masks = [node.int_attr(f"{key}_mask") for key in ("begin", "end", "shrink_axis")]
    others = [node.int_attr(f"{key}_mask") for key in ("ellipsis", "new_axis")]
    all_rows = masks[0] & 1 and masks[1] & 1 and not masks[2] & 1 and strides[0] == 1
    if any(others) or not all_rows or strides[1] != 1:
        return None
    first = 0 if masks[0] & 2 and not masks[2] & 2 else begin[1]
    first += shape[1] if first < 0 else 0
    if masks[2] & 2:
        return MatrixColumn(matrix, first)
    last = shape[1] if masks[1] & 2 else end[1]
    last = min(last + (shape[1] if last < 0 else 0), shape[1])
    return MatrixColumn(matrix, first) if last - first == 1 else None


def _unpacked(node: Node, index: int) -> MatrixColumn | None:
    matrix, axis = node.input(0), node.int_attr("axis")
    return MatrixColumn(matrix, index) if axis in (1, -1) else None


def _split(node: Node, index: int) -> MatrixColumn | None:
    axis, matrix = node.inputs
    shape = matrix.shape
    width = None if shape is None or len(shape) != 2 else shape[1]
    is_each = axis.item in (1, -1) and width == node.int_attr("num_split")
    return MatrixColumn(matrix, index) if is_each else None
