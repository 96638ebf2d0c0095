"""Ops along another axis than that of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule


@rule("Softmax", "LogSoftmax")
def _softmax(operands: Operands) -> Fact:
    return operands.apart(operands.of_rows(0), operands.rank(0) - 1)


@rule("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm")
def _reduction(operands: Operands) -> Fact:
    operands.constant(1)
    if operands.facts[0].kind in (Kind.ENTRIES, Kind.SUMMARY):
        if operands.node.op in ("Max", "Min", "All", "Any"):
            return Fact(Kind.SUMMARY, operands.facts[0].side)
        raise Mixes(f"{operands.node.op} goes over the entries of all rows")
    fact, rank = operands.of_rows(0), operands.rank(0)
    axes = {axis + rank if axis < 0 else axis for axis in operands.integers(1)}
    if fact.axis in axes:
        if operands.node.op in ("Max", "Min", "All", "Any"):
            return Fact(Kind.SUMMARY, fact.side)
        raise Mixes(f"{operands.node.op} goes over the rows")
    if operands.node.flag_attr("keep_dims"):
        return fact
    return fact.moved(fact.axis - sum(axis < fact.axis for axis in axes))


@rule("ArgMax", "ArgMin")
def _arg(operands: Operands) -> Fact:
    axis = operands.axis(1, operands.rank(0))
    fact = operands.apart(operands.of_rows(0), axis)
    return fact.moved(fact.axis - (axis < fact.axis))


@rule("Cumsum", "Cumprod")
def _cumulative(operands: Operands) -> Fact:
    return operands.apart(operands.of_rows(0), operands.axis(1, operands.rank(0)))


@rule("ReverseV2")
def _reversed(operands: Operands) -> Fact:
    rank = operands.rank(0)
    for axis in operands.integers(1):
        operands.apart(operands.of_rows(0), axis + rank if axis < 0 else axis)
    return operands.of_rows(0)


@rule("Roll")
def _rolled(operands: Operands) -> Fact:
    operands.constant(1)
    rank = operands.rank(0)
    for axis in operands.integers(2):
        operands.apart(operands.of_rows(0), axis + rank if axis < 0 else axis)
    return operands.of_rows(0)


@rule("Assert")
def _asserted(operands: Operands) -> Fact:
    if operands.facts[0].kind not in (Kind.CONSTANT, Kind.SUMMARY):
        raise Mixes(f"Assert checks {operands.facts[0].kind.value}")
    return Fact(Kind.SUMMARY, operands.side)


@rule("TopKV2")
def _top(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    return operands.apart(operands.of_rows(0), operands.rank(0) - 1)


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _normalised(operands: Operands) -> Sequence[Fact]:
    fact = operands.of_rows(0)
    if operands.node.flag_attr("is_training"):
        if fact.axis != 1 or operands.node.text_attr("data_format") != "NCHW":
            raise Mixes("the moments are of all rows of the batch: it is in training mode")
        return _normalised_each(operands)
    operands.constant(1, 2, 3, 4)
    if fact.axis:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return [fact, *([CONSTANT] * 5)]


def _normalised_each(operands: Operands) -> Sequence[Fact]:
    """The facts of a layer normalisation, for which the rows are channels."""
    operands.constant(3, 4)
    if {operands.shape(3), operands.shape(4)} != {(0,)}:
        raise Mixes("the moments are of batches before")
    fact = operands.facts[0]
    for index in (1, 2):
        of_rows = operands.of_rows(index)
        if of_rows.axis or of_rows.layout != fact.layout:
            raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    each = rows(operands.side, 0, fact.factor, fact.blocks)
    return [replace(fact, side=operands.side), *([each] * 5)]
