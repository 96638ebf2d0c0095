"""Lookups by ids, in tables and in each other."""

from __future__ import annotations

from dataclasses import replace

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule


@rule("GatherV2", "Gather")
def _gathered(operands: Operands) -> Fact:
    has_axis = operands.node.op == "GatherV2"
    axis = operands.axis(2, operands.rank(0)) if has_axis else 0
    batched = operands.node.int_attr("batch_dims") if has_axis else 0
    table, ids = operands.facts[0], operands.facts[1]
    if ids.kind is Kind.ENTRIES and table.kind is Kind.CONSTANT and not axis:
        return ids
    if table.kind is Kind.CONSTANT:
        fact = operands.of_rows(1)
        if batched:
            raise Mixes(f"{operands.node.op} has another table for each row")
        return fact.moved(fact.axis + axis)
    own = operands.of_rows(0)
    if ids.kind is Kind.CONSTANT:
        operands.apart(own, axis)
        if batched:
            raise Mixes(f"{operands.node.op} has other ids for each row")
        return own.moved(own.axis + (operands.rank(1) - 1 if axis < own.axis else 0))
    if ids.kind is Kind.INSIDE:
        if axis or batched:
            raise Mixes(f"{operands.node.op} takes places of each row along another axis")
        return _masked(operands, own)
    other = operands.of_rows(1)
    batched = batched + operands.rank(1) if batched < 0 else batched
    if own.axis != other.axis or own.axis >= batched or (own.factor, other.factor) != (1, 1):
        raise Mixes(f"{operands.node.op} looks up rows in each other")
    if own.blocks != other.blocks:
        raise Mixes(f"{operands.node.op} has rows in other blocks")
    return replace(own, side=operands.side)


def _masked(operands: Operands, own: Fact) -> Fact:
    """The elements of each row that a mask has, which is the same for all rows."""
    places = operands.facts[1].elements or ()
    if own.axis or own.blocks != 1 or own.factor != len(places):
        raise Mixes(f"{operands.node.op} has a mask of other rows")
    return rows(operands.side, 0, sum(1 for one in places if one))


@rule("ResourceGather")
def _resource_gathered(operands: Operands) -> Fact:
    operands.constant(0)
    if operands.node.int_attr("batch_dims"):
        raise Mixes("ResourceGather has another table for each row")
    return operands.facts[1] if operands.facts[1].kind is Kind.ENTRIES else operands.of_rows(1)


@rule("GatherNd")
def _gathered_elements(operands: Operands) -> Fact:
    table = operands.facts[0]
    depth = operands.shape(1)[-1]
    if depth is None:
        raise Mixes("GatherNd has indices of unknown depth")
    if table.kind is Kind.CONSTANT:
        return operands.apart(operands.of_rows(1), operands.rank(1) - 1)
    if operands.facts[1].kind is Kind.INDICES:
        fact = operands.of_rows(0)
        if fact.axis or fact.layout != (1, 1) or fact.side is not operands.facts[1].side:
            raise Mixes("GatherNd picks rows")
        return Fact(Kind.ENTRIES, fact.side, source=operands.facts[1].source)
    operands.constant(1)
    fact = operands.of_rows(0)
    if fact.axis < depth:
        raise Mixes("GatherNd picks rows")
    return fact.moved(fact.axis - depth + operands.rank(1) - 1)


@rule("LookupTableFindV2", "LookupTableFind")
def _looked_up(operands: Operands) -> Fact:
    operands.constant(0, 2)
    return operands.facts[1] if operands.facts[1].kind is Kind.ENTRIES else operands.of_rows(1)
