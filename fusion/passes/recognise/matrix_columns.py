"""Columns that are taken out of a matrix: `ids[:, 3]`, `ids[:, 3:4]`, or one of all of them."""

from __future__ import annotations

from typing import NamedTuple

from fusion.passes.graph.values import Node, Value


class MatrixColumn(NamedTuple):
    """A column of a matrix, and its number."""

    matrix: Value
    column: int


def match_column(value: Value) -> MatrixColumn | None:
    """Returns the column of a matrix that a tensor is, [B] or [B, 1]; None if it is none.

    What takes it out waits for nothing else, nor do the constants that say which it is.
    """
    value = value.resolved
    node = value.producer
    rules = {"StridedSlice": _sliced, "Unpack": _unpacked, "Split": _split}
    if node.op not in rules or node.controls:
        return None
    constants = [one.producer for one in node.inputs if one.producer.op == "Const"]
    if any(constant.controls for constant in constants):
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
    shape, constants = matrix.shape, [bound.constant for bound in bounds]
    if shape is None or len(shape) != 2 or shape[1] is None:
        return None
    sizes = [None if bound is None else bound.size for bound in constants]
    if sizes != [2, 2, 2] or node.int_attr("ellipsis_mask") or node.int_attr("new_axis_mask"):
        return None
    rows, columns = zip(*(bound.tolist() for bound in constants if bound is not None), strict=True)
    masks = [node.int_attr(f"{key}_mask") for key in ("begin", "end", "shrink_axis")]
    is_every_row = rows[2] == 1 and [mask & 1 for mask in masks] == [1, 1, 0]
    if not is_every_row or columns[2] != 1:
        return None
    has_no_begin, has_no_end, is_vector = (bool(mask & 2) for mask in masks)
    begin, end = (bound + shape[1] if bound < 0 else bound for bound in columns[:2])
    if is_vector:  # the end is not read, nor the mask
        return MatrixColumn(matrix, begin)
    begin, end = 0 if has_no_begin else begin, shape[1] if has_no_end else min(end, shape[1])
    return MatrixColumn(matrix, begin) if end - begin == 1 else None


def _unpacked(node: Node, index: int) -> MatrixColumn | None:
    matrix, axis = node.input(0), node.int_attr("axis")
    return MatrixColumn(matrix, index) if axis in (1, -1) else None


def _split(node: Node, index: int) -> MatrixColumn | None:
    axis, matrix = node.inputs
    shape = matrix.shape
    width = None if shape is None or len(shape) != 2 else shape[1]
    is_each = axis.item in (1, -1) and width == node.int_attr("num_split")
    return MatrixColumn(matrix, index) if is_each else None
