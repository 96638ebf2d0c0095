"""Quotients of sums: by how many were added, by the sum of their weights, or by a root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.gathers import Gathered
from fusion.passes.recognise.stock.masks import Mask, match_flat_mask, match_weights
from fusion.schema.attributes import HALF_TYPES

DIVISIONS = {"DivNoNan": True, "RealDiv": False}
"""Ops that divide, and whether a quotient by 0 is 0."""

_MAX_COUNTED = 2048
"""Sums of more ones are rounded in float16 on the way."""


@dataclass(frozen=True)
class Quotient:
    """What a sum is divided by.

    Attributes:
        combiner: mean or sqrtn; sum or max if it is not divided.
        no_nan: whether a quotient by 0 is 0.
        epsilon: is added to the divisor.
        output: the quotient.
        nodes: what is between, the sum left out.
    """

    combiner: str
    no_nan: bool
    epsilon: float | Tensor
    output: Tensor
    nodes: tuple[str, ...]


def division_of(view: GraphView, total: str, *, may_be_measured: bool = False) -> str | None:
    """Returns the division that alone reads a sum, to divide it; None if there is none.

    Args:
        view: the graph.
        total: the sum.
        may_be_measured: whether those do not count that ask for the shape of the sum.
    """
    uses = view.uses(total)
    if may_be_measured:
        uses = [use for use in uses if view.op(use.node) not in ("Shape", "ShapeN")]
    if len(uses) != 1 or uses[0].position != 0 or total in view.preserved:
        return None
    division = uses[0].node
    return None if view.op(division) not in DIVISIONS or view.controls(division) else division


def match_quotient(
    view: GraphView, reduction: str, gather: Gathered, mask: Mask, keeps: bool
) -> Quotient:
    """Explains the division of a sum, if it is by the sum of its mask or of its weights.

    Args:
        view: the graph.
        reduction: the sum.
        gather: where its rows come from.
        mask: which of them count.
        keeps: whether the sum keeps the axis.
    """
    none = Quotient("sum", True, 0.0, Tensor(reduction), ())
    division = division_of(view, reduction)
    if division is None or _is_rounded_otherwise(gather, mask):
        return none
    divisor = view.inputs(division)[1]
    epsilon: float | Tensor = 0.0
    tensor = view.resolve(divisor)
    if view.op(tensor.node) in ("Add", "AddV2"):
        one, other = view.inputs(tensor.node)
        if view.shape(other) != ():
            one, other = other, one
        epsilon, tensor = _epsilon(view, other), view.resolve(one)
        # The op has them in the place of weights.
        is_beside_weights = isinstance(epsilon, Tensor) and mask.weights is not None
        if view.shape(other) != () or is_beside_weights:
            return none
    is_root = view.op(tensor.node) == "Sqrt"
    if is_root:
        if epsilon:
            return none
        tensor = view.resolve(view.inputs(tensor.node)[0])
    if not _is_count(view, tensor, gather, mask, keeps, squared=is_root):
        return none
    # What only the divisor needs dies with it.
    combiner = "sqrtn" if is_root else "mean"
    return Quotient(combiner, DIVISIONS[view.op(division)], epsilon, Tensor(division), (division,))


def _epsilon(view: GraphView, tensor: Tensor) -> float | Tensor:
    """Returns a number that an attr can hold, which is a float32, or else the tensor."""
    value = view.constant(tensor)
    if value is None or value.ndim or float(np.float32(value)) != float(value):
        return view.resolve(tensor)
    return float(value)


def _is_rounded_otherwise(gather: Gathered, mask: Mask) -> bool:
    """Whether the op does not round the quotient of two sums of half types as stock does.

    Without a mask it has a Mean, which in bfloat16 is rounded once.
    """
    if gather.dtype == types_pb2.DT_BFLOAT16:
        return mask.is_all
    length = None if gather.shape is None else gather.shape[-2]
    is_counted = isinstance(length, int) and length <= _MAX_COUNTED
    return gather.dtype == types_pb2.DT_HALF and not is_counted


def _is_count(
    view: GraphView, tensor: Tensor, gather: Gathered, mask: Mask, keeps: bool, squared: bool
) -> bool:
    """Whether a tensor is, for each row, the sum of the mask or weights, or their squares' sum."""
    op, rank = view.op(tensor.node), len(gather.shape or ())
    if op == "Cast" and mask.lengths is not None:
        of = view.inputs(tensor.node)[0]
        shape = view.shape(of)
        fits = shape is not None and len(shape) == 2 and shape[1] == 1 and not keeps
        return fits and are_equal(view, of, mask.lengths) and not squared
    if op == "Cast":
        # Of the sum of a mask as integers.
        tensor = view.resolve(view.inputs(tensor.node)[0])
        op = view.op(tensor.node)
    if op != "Sum" or view.type_attr(tensor.node, "T") in HALF_TYPES - {gather.dtype}:
        return False
    of, axes = view.inputs(tensor.node)
    axis = view.constant(axes)
    if axis is None or axis.size != 1:
        return False
    at, kept = int(axis.reshape(())), view.flag_attr(tensor.node, "keep_dims")
    source = view.resolve(of)
    if squared:
        if view.op(source.node) != "Square":
            return False
        source = view.resolve(view.inputs(source.node)[0])
    over_last = at in (-1, rank - 2) and kept and not keeps and _is_flat(view, source, rank)
    over_middle = at in (-2, rank - 2) and kept == keeps and not _is_flat(view, source, rank)
    if not over_last and not over_middle:
        return False
    if over_middle and _are_equal(view, source, mask.weights):
        return True
    find = match_flat_mask if over_last else match_weights
    found = find(view, source, gather)
    if isinstance(found, NoMatch):
        return False
    is_same = _are_equal(view, found.lengths, mask.lengths) and found.ignored == mask.ignored
    return is_same and _are_equal(view, found.weights, mask.weights)


def _are_equal(view: GraphView, one: Tensor | None, other: Tensor | None) -> bool:
    """Whether there are two equal tensors, or none."""
    return one == other or (one is not None and other is not None and are_equal(view, one, other))


def _is_flat(view: GraphView, tensor: Tensor, rank: int) -> bool:
    """Whether a mask has the shape of the ids, and no axis more."""
    shape = view.shape(tensor)
    return shape is not None and len(shape) == rank - 1
