"""Ops on the elements at one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusion.passes.analysis.rows.elementwise import ALIKE, BROADCAST, UNARY
from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, joined
from fusion.passes.analysis.rows.operands import Operands, broadcast
from fusion.passes.analysis.rows.rules.registry import rule


@rule(*UNARY)
def _unary(operands: Operands) -> Fact:
    fact, op = operands.facts[0], operands.node.op
    if fact.kind is Kind.LIST and op in ("Identity", "Snapshot"):
        return fact
    if fact.kind in (Kind.INDICES, Kind.SPLITS, Kind.ROW_NUMBERS, Kind.SPARSE_SHAPE):
        if op in ("Identity", "Snapshot", "StopGradient", "Cast"):
            return fact
        raise Mixes(f"{op} changes {fact.kind.value}")
    if fact.kind not in (Kind.ROWS, Kind.ENTRIES, Kind.SUMMARY):
        raise Mixes(f"{op} has {fact.kind.value}")
    if op == "EnsureShape" and fact.kind is not Kind.SUMMARY:
        # The graph of sizes has these already: a number of rows would not be the prime.
        size = operands.result_shape()[fact.axis]
        if size is not None and (size % operands.batch or fact.kind is Kind.ENTRIES):
            raise Mixes("EnsureShape says how many rows there are")
    if op == "Bitcast" and len(operands.result_shape()) <= fact.axis:
        raise Mixes("Bitcast joins rows")
    return fact


@rule("IdentityN")
def _each(operands: Operands) -> Sequence[Fact]:
    return operands.facts


@rule(*BROADCAST, *ALIKE)
def _broadcast(operands: Operands) -> Fact:
    kinds = {fact.kind for fact in operands.facts} - {Kind.CONSTANT}
    if kinds == {Kind.ENTRIES} or kinds == {Kind.SUMMARY}:
        (kind,) = kinds
        own = {fact for fact in operands.facts if fact.kind is kind}
        if len({fact.side for fact in own}) > 1:
            raise Mixes(f"{operands.node.op} has entries of requests and of candidates")
        if len({fact.source for fact in own}) > 1 and kind is Kind.ENTRIES:
            raise Mixes(f"{operands.node.op} has entries of two tensors")
        if kind is Kind.ENTRIES and any(
            fact.kind is Kind.CONSTANT and operands.rank(index) and operands.shape(index)[0] != 1
            for index, fact in enumerate(operands.facts)
        ):
            raise Mixes(f"{operands.node.op} has an operand for each entry")
        return own.pop()
    return broadcast(operands)


@rule("Select")
def _select(operands: Operands) -> Fact:
    test = operands.facts[0]
    if operands.rank(0) != 1:
        return broadcast(operands)
    result = broadcast(operands, [1, 2])
    if test.kind is not Kind.ROWS or result.axis or result.layout != test.layout:
        raise Mixes("Select goes over the rows")
    return replace(result, side=joined(operands.facts))


@rule("BiasAdd", "BiasAddV1")
def _bias(operands: Operands) -> Fact:
    operands.constant(1)
    fact, rank = operands.of_rows(0), operands.rank(0)
    channel = 1 if operands.node.text_attr("data_format") == "NCHW" else rank - 1
    return operands.apart(fact, channel)
