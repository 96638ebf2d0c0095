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
from fusion.passes.graph.view import GraphView


@dataclass(frozen=True)
class Spread:
    """The gradient of the entries of bags.

    Attributes:
        node: the Select.
        bags: the gradient of the bags.
    """

    node: str
    bags: Tensor


def spreads_of(view: GraphView, rows: Tensor) -> Iterator[Spread]:
    """Yields the gradients of entries by the numbers of their bags, of which none is negative."""
    for clipped in (use.node for use in view.tensor_uses(rows)):
        if view.op(clipped) != "Maximum" or not _clips(view, clipped, rows):
            continue
        for gather in (use.node for use in view.tensor_uses(Tensor(clipped)) if use.position == 1):
            if not is_row_gather(view, gather):
                continue
            for use in view.tensor_uses(Tensor(gather)):
                is_select = view.op(use.node) == "SelectV2" and use.position == 1
                if is_select and _takes_all(view, use.node, gather, rows):
                    yield Spread(use.node, view.inputs(gather)[0])


def _clips(view: GraphView, name: str, rows: Tensor) -> bool:
    """Whether a Maximum is that of row numbers and 0."""
    others = [view.resolve(one) for one in view.inputs(name)]
    if rows in others:
        others.remove(rows)
    (zeros, *more) = others
    return not more and _are_zeros(view, zeros, rows)


def _are_zeros(view: GraphView, zeros: Tensor, like: Tensor) -> bool:
    """Whether a tensor is zeros in the shape of another, or a zero."""
    zeros = view.resolve(zeros)
    if view.op(zeros.node) == "ZerosLike":
        return view.resolve(view.inputs(zeros.node)[0]) == like
    value = view.constant(zeros)
    return value is not None and not value.any() and value.shape in ((), view.shape(like))


def _takes_all(view: GraphView, select: str, gather: str, rows: Tensor) -> bool:
    """Whether a Select takes all elements of what is gathered, and gives them no other shape."""
    condition, _, zeros = view.inputs(select)
    test = view.resolve(condition)
    if not _are_zeros(view, zeros, Tensor(gather)) or view.op(test.node) != "LogicalAnd":
        return False
    one, other = (view.resolve(part) for part in view.inputs(test.node))
    return any(
        _is_column_of_trues(view, column, rows) and _are_trues(view, trues, gather)
        for column, trues in ((one, other), (other, one))
    )


def _is_column_of_trues(view: GraphView, column: Tensor, rows: Tensor) -> bool:
    """Whether a tensor is `rows >= 0` as a column."""
    if view.op(column.node) not in ("ExpandDims", "Reshape"):
        return False
    inner, how = view.inputs(column.node)
    test = view.resolve(inner)
    if view.op(test.node) != "GreaterEqual" or not compares_with(view, test, 0):
        return False
    if view.resolve(view.inputs(test.node)[0]) != rows:
        return False
    if view.op(column.node) == "ExpandDims":
        axis = view.constant(how)
        return axis is not None and axis.size == 1 and int(axis.reshape(())) in (1, -1)
    target = ShapeMath(view).vector(how)
    return target is not None and len(target) == 2 and target[1] == 1


def _are_trues(view: GraphView, trues: Tensor, gather: str) -> bool:
    """Whether a tensor is true for each element of what is gathered."""
    value = view.constant(trues)
    if value is not None:
        return bool(value.all()) and value.shape == view.shape(Tensor(gather))
    if view.op(trues.node) != "Fill":
        return False
    sizes, number = view.inputs(trues.node)
    value, measure = view.constant(number), view.resolve(sizes)
    if value is None or not value.all() or view.op(measure.node) != "Shape":
        return False
    return view.resolve(view.inputs(measure.node)[0]) == Tensor(gather)
