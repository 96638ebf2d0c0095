"""The gradient of a segment sum: how stock TensorFlow brings it from bags to their entries.

    Select(rows >= 0 and ones, Gather(bags, Maximum(rows, 0)), zeros)

It leaves out what belongs to no bag, which nothing does where row splits say the bags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusion.passes.analysis.symbolic_shapes import ShapeMath
from fusion.passes.graph.idioms import compares_with, is_row_gather
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value


@dataclass(frozen=True)
class Spread:
    """The gradient of the entries of bags.

    Attributes:
        node: the Select.
        bags: the gradient of the bags.
    """

    node: str
    bags: Tensor


def spreads_of(rows: Value) -> Iterator[Spread]:
    """Yields the gradients of entries by the numbers of their bags, of which none is negative."""
    for clipped in (use.node for use in rows.uses):
        if clipped.op != "Maximum" or not _clips(clipped, rows):
            continue
        for gather in (use.node for use in clipped.output().uses if use.position == 1):
            if not is_row_gather(gather):
                continue
            for node, position, _ in gather.output().uses:
                if node.op == "SelectV2" and position == 1 and _takes_all(node, gather, rows):
                    yield Spread(node.name, gather.input(0).tensor)


def _clips(maximum: Node, rows: Value) -> bool:
    """Whether a Maximum is that of row numbers and 0."""
    others = [one.resolved for one in maximum.inputs]
    if rows in others:
        others.remove(rows)
    (zeros, *more) = others
    return not more and _are_zeros(zeros, rows)


def _are_zeros(zeros: Value, like: Value) -> bool:
    """Whether a tensor is zeros in the shape of another, or a zero."""
    if zeros.producer.op == "ZerosLike":
        return zeros.producer.input(0).resolved == like
    value = zeros.constant
    return value is not None and not value.any() and value.shape in ((), like.shape)


def _takes_all(select: Node, gather: Node, rows: Value) -> bool:
    """Whether a Select takes all elements of what is gathered, and gives them no other shape."""
    condition, _, zeros = select.inputs
    test = condition.producer
    if not _are_zeros(zeros, gather.output()) or test.op != "LogicalAnd":
        return False
    one, other = test.inputs
    return any(
        _is_column_of_trues(column, rows) and _are_trues(trues, gather.output())
        for column, trues in ((one, other), (other, one))
    )


def _is_column_of_trues(value: Value, rows: Value) -> bool:
    """Whether a tensor is `rows >= 0` as a column."""
    column = value.producer
    if column.op not in ("ExpandDims", "Reshape"):
        return False
    inner, how = column.inputs
    test = inner.producer
    if test.op != "GreaterEqual" or not compares_with(test, 0):
        return False
    if test.input(0).resolved != rows:
        return False
    if column.op == "ExpandDims":
        return how.item in (1, -1)
    target = ShapeMath().vector(how)
    return target is not None and len(target) == 2 and target[1] == 1


def _are_trues(trues: Value, gathered: Value) -> bool:
    """Whether a tensor is true for each element of what is gathered."""
    value = trues.constant
    if value is not None:
        return bool(value.all()) and value.shape == gathered.shape
    if trues.producer.op != "Fill":
        return False
    sizes, number = trues.producer.inputs
    value, measure = number.constant, sizes.producer
    if value is None or not value.all() or measure.op != "Shape":
        return False
    return measure.input(0).resolved == gathered
