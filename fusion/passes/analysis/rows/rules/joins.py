"""Tensors side by side, and parts of one."""

from __future__ import annotations

from dataclasses import replace

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, joined, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import alike, rule


@rule("ConcatV2")
def _concat(operands: Operands) -> Fact:
    if operands.facts[0].kind is Kind.SUMMARY:
        raise Mixes("ConcatV2 of what all rows have in common")
    axis = operands.axis(operands.count - 1, operands.rank(0))
    facts = [operands.of_rows(index) for index in range(operands.count - 1)]
    if any(fact.axis != axis for fact in facts):
        return operands.apart(alike(operands, range(operands.count - 1)), axis)
    # All rows of one operand, then all of the next, as the heads of an attention.
    if len({fact.factor for fact in facts}) > 1 or not facts[0].factor:
        raise Mixes("ConcatV2 goes over the rows")
    return rows(joined(facts), axis, facts[0].factor, sum(fact.blocks for fact in facts))


@rule("Pack")
def _pack(operands: Operands) -> Fact:
    fact, rank = alike(operands, range(operands.count)), operands.rank(0)
    axis = operands.node.int_attr("axis")
    axis = axis + rank + 1 if axis < 0 else axis
    return fact.moved(fact.axis + (axis <= fact.axis))


@rule("Unpack")
def _unpack(operands: Operands) -> Fact:
    axis = operands.node.int_attr("axis")
    axis = axis + operands.rank(0) if axis < 0 else axis
    fact = operands.apart(operands.of_rows(0), axis)
    return fact.moved(fact.axis - (axis < fact.axis))


@rule("Split")
def _split(operands: Operands) -> Fact:
    fact, count = operands.of_rows(1), operands.node.int_attr("num_split")
    if fact.axis != operands.axis(0, operands.rank(1)):
        return fact
    if not fact.factor or fact.blocks % count:
        raise Mixes("Split goes over the rows")
    return replace(fact, blocks=fact.blocks // count)


@rule("SplitV")
def _split_by_sizes(operands: Operands) -> Fact:
    operands.constant(1)
    return operands.apart(operands.of_rows(0), operands.axis(2, operands.rank(0)))
