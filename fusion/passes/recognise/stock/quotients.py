"""Quotients of sums: by how many were added, by the sum of their weights, or by a root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.gathers import Gathered
from fusion.passes.recognise.stock.masks import Mask, match_flat_mask, match_weights
from fusion.schema.attributes import HALF_TYPES

DIVISIONS = {"DivNoNan": True, "RealDiv": False}
"""Ops that divide, and whether a quotient by 0 is 0."""

_MEASURES = ("Shape", "ShapeN")

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
    epsilon: float | Value
    output: Value
    nodes: tuple[str, ...]


def division_of(total: Node, *, may_be_measured: bool = False) -> Node | None:
    """Returns the division that alone reads a sum, to divide it; None if there is none.

    Args:
        total: the sum.
        may_be_measured: whether those do not count that ask for the shape of the sum.
    """
    uses = [use for use in total.uses if not may_be_measured or use.node.op not in _MEASURES]
    if len(uses) != 1 or uses[0].position != 0 or total.is_preserved:
        return None
    division = uses[0].node
    return None if division.op not in DIVISIONS or division.controls else division


def match_quotient(reduction: Node, gather: Gathered, mask: Mask, keeps: bool) -> Quotient:
    """Explains the division of a sum, if it is by the sum of its mask or of its weights.

    Args:
        reduction: the sum.
        gather: where its rows come from.
        mask: which of them count.
        keeps: whether the sum keeps the axis.
    """
    none = Quotient("sum", True, 0.0, reduction.output(), ())
    division = division_of(reduction)
    if division is None or _is_rounded_otherwise(gather, mask):
        return none
    epsilon: float | Value = 0.0
    divisor = division.input(1)
    if divisor.producer.op in ("Add", "AddV2"):
        divisor, other = divisor.producer.inputs
        if other.shape != ():
            divisor, other = other, divisor
        epsilon = _epsilon(other)
        # The op has them in the place of weights.
        has_weights = isinstance(epsilon, Value) and mask.weights is not None
        if other.shape != () or has_weights:
            return none
    is_root = divisor.producer.op == "Sqrt"
    if is_root:
        if epsilon:
            return none
        divisor = divisor.producer.input(0)
    if not _is_count(divisor, gather, mask, keeps, squared=is_root):
        return none
    # What only the divisor needs dies with it.
    combiner, no_nan = "sqrtn" if is_root else "mean", DIVISIONS[division.op]
    return Quotient(combiner, no_nan, epsilon, division.output(), (division.name,))


def _epsilon(value: Value) -> float | Value:
    """Returns a number that an attr can hold, which is a float32, or else the tensor."""
    number = value.scalar
    if number is None or float(np.float32(number)) != float(number):
        return value.resolved
    return float(number)


def _is_rounded_otherwise(gather: Gathered, mask: Mask) -> bool:
    """Whether the op does not round the quotient of two sums of half types as stock does.

    Without a mask it has a Mean, which in bfloat16 is rounded once.
    """
    if gather.dtype == types_pb2.DT_BFLOAT16:
        return mask.is_all
    length = None if gather.shape is None else gather.shape[-2]
    is_counted = isinstance(length, int) and length <= _MAX_COUNTED
    return gather.dtype == types_pb2.DT_HALF and not is_counted


def _is_count(count: Value, gather: Gathered, mask: Mask, keeps: bool, squared: bool) -> bool:
    """Whether a tensor is, for each row, the sum of the mask or weights, or their squares' sum."""
    total, rank = count.producer, len(gather.shape or ())
    if total.op == "Cast" and mask.lengths is not None:
        of = total.input(0)
        shape = of.shape
        fits = shape is not None and len(shape) == 2 and shape[1] == 1 and not keeps
        return fits and are_equal(of, mask.lengths) and not squared
    if total.op == "Cast":
        # Of the sum of a mask as integers.
        total = total.input(0).producer
    if total.op != "Sum" or total.type_attr("T") in HALF_TYPES - {gather.dtype}:
        return False
    of, axis = total.inputs
    at, keeps_axis = axis.item, total.flag_attr("keep_dims")
    source = of.resolved
    if squared:
        square = of.producer
        if square.op != "Square":
            return False
        source = square.input(0).resolved
    over_last = at in (-1, rank - 2) and keeps_axis and not keeps and _is_flat(source, rank)
    over_middle = at in (-2, rank - 2) and keeps_axis == keeps and not _is_flat(source, rank)
    if not over_last and not over_middle:
        return False
    if over_middle and _are_equal(source, mask.weights):
        return True
    find = match_flat_mask if over_last else match_weights
    other = find(source, gather)
    if isinstance(other, NoMatch):
        return False
    is_same = _are_equal(other.lengths, mask.lengths) and other.ignored == mask.ignored
    return is_same and _are_equal(other.weights, mask.weights)


def _are_equal(one: Value | None, other: Value | None) -> bool:
    """Whether there are two equal tensors, or none."""
    return one == other or (one is not None and other is not None and are_equal(one, other))


def _is_flat(mask: Value, rank: int) -> bool:
    """Whether a mask has the shape of the ids, and no axis more."""
    shape = mask.shape
    return shape is not None and len(shape) == rank - 1
