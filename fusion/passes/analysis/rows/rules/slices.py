"""Slices."""

from __future__ import annotations

from fusion.passes.analysis.rows.counts import Count
from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule

_INT32_MAX = 2**31 - 1


@rule("Slice")
def _sliced(operands: Operands) -> Fact:
    fact, begin = operands.of_rows(0), operands.integers(1)
    kept = operands.result_shape()[fact.axis] == operands.shape(0)[fact.axis]
    if begin[fact.axis] or operands.shape(0)[fact.axis] is None or not kept:
        raise Mixes("Slice takes some of the rows")
    if operands.facts[2].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Slice of a size that depends on values")
    if {*operands.counts(2)} - {fact.axis}:
        raise Mixes("Slice of another size than rows depends on their number")
    return fact


@rule("StridedSlice")
def _strided(operands: Operands) -> Fact:
    kinds = {fact.kind for fact in operands.facts[1:]}
    if operands.facts[0].kind is Kind.INDICES and kinds == {Kind.CONSTANT}:
        return _row_numbers(operands)
    if operands.facts[0].kind is Kind.SPARSE_SHAPE and kinds == {Kind.CONSTANT}:
        return _row_count(operands)
    if kinds - {Kind.CONSTANT, Kind.SIZES}:
        raise Mixes("StridedSlice by numbers that depend on values")
    fact, node = operands.of_rows(0), operands.node
    count = operands.shape(1)[0]
    if count is None or node.int_attr("ellipsis_mask").bit_count() > 1:
        raise Mixes("StridedSlice is not understood")
    position, axis = _specified(operands, count)
    for bound, mask in ((1, "begin_mask"), (2, "end_mask"), (3, "")):
        masked = node.int_attr(mask) if mask else 0
        if any(k != position and not masked >> k & 1 for k in operands.counts(bound)):
            raise Mixes("StridedSlice of another axis depends on the number of rows")
    if position is not None:
        _whole_axis(operands, position, axis)
    return fact.moved(axis)


def _specified(operands: Operands, count: int) -> tuple[int | None, int]:
    """Finds what a StridedSlice says of the axis of rows.

    Args:
        operands: of it.
        count: how many specifications it has.

    Returns:
        The specification of that axis, None if there is none; the axis in the result.
    """
    node, rows_axis = operands.node, operands.facts[0].axis
    new, shrunk = node.int_attr("new_axis_mask"), node.int_attr("shrink_axis_mask")
    ellipsis = node.int_attr("ellipsis_mask")
    taken = sum(1 for k in range(count) if not ((new | ellipsis) >> k) & 1)
    axis, result = 0, 0
    for k in range(count):
        if ellipsis >> k & 1:
            skipped = operands.rank(0) - taken
            if axis <= rows_axis < axis + skipped:
                return None, result + rows_axis - axis
            axis, result = axis + skipped, result + skipped
        elif new >> k & 1:
            result += 1
        elif axis == rows_axis:
            return k, result
        else:
            axis += 1
            result += not shrunk >> k & 1
    return None, result + rows_axis - axis


def _whole_axis(operands: Operands, k: int, result: int) -> None:
    """Checks that the specification `k` of a StridedSlice takes all of an axis."""
    node = operands.node
    if node.int_attr("shrink_axis_mask") >> k & 1:
        raise Mixes("StridedSlice picks a row")
    begin, end, stride = (
        None if elements is None else elements[k] for elements in map(operands.elements, (1, 2, 3))
    )
    if stride != 1 or not (begin == 0 or node.int_attr("begin_mask") >> k & 1):
        raise Mixes("StridedSlice takes some of the rows")
    size, whole = operands.result_shape()[result], operands.shape(0)[operands.facts[0].axis]
    is_last = end is Count.ROWS or (isinstance(end, int) and end >= _INT32_MAX)
    to_end = is_last and size is not None and size == whole
    if not (to_end or node.int_attr("end_mask") >> k & 1):
        raise Mixes("StridedSlice takes some of the rows")


def _row_numbers(operands: Operands) -> Fact:
    """The fact of a column of the indices of a sparse tensor."""
    node, fact = operands.node, operands.facts[0]
    begin = operands.integers(1)
    whole = node.int_attr("begin_mask") & 1 and node.int_attr("end_mask") & 1
    others = any(node.int_attr(f"{key}_mask") for key in ("ellipsis", "new_axis"))
    if others or operands.integers(3)[:1] != [1]:
        raise Mixes("StridedSlice changes the order of indices of a sparse tensor")
    if len(begin) != 2 or not whole or not node.int_attr("shrink_axis_mask") & 2:
        raise Mixes("StridedSlice changes indices of a sparse tensor")
    kind = Kind.ENTRIES if begin[1] else Kind.ROW_NUMBERS
    return Fact(kind, fact.side, source=fact.source)


def _row_count(operands: Operands) -> Fact:
    """The fact of the first element of the dense shape of a sparse tensor."""
    node, fact = operands.node, operands.facts[0]
    if operands.integers(1) != [0] or not node.int_attr("shrink_axis_mask"):
        raise Mixes("StridedSlice takes more of a dense shape than the number of rows")
    return Fact(Kind.SIZES, fact.side, elements=(Count.ROWS,), source=fact.source)
