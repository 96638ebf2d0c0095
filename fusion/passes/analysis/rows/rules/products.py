"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from dataclasses import replace

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule


@rule("MatMul")
def _product(operands: Operands) -> Fact:
    if operands.facts[1].has_rows:
        raise Mixes("MatMul multiplies rows with each other")
    fact = operands.of_rows(0)
    if fact.axis != int(operands.node.flag_attr("transpose_a")):
        raise Mixes("MatMul adds up over the rows")
    return fact.moved(0)


@rule("BatchMatMulV2", "BatchMatMul", "BatchMatMulV3")
def _batched_product(operands: Operands) -> Fact:
    ranks = [operands.rank(0), operands.rank(1)]
    rank = max(ranks)
    places, left = [], operands.facts[0]
    for index, fact in enumerate(operands.facts):
        if fact.kind is Kind.CONSTANT:
            continue
        own = operands.of_rows(index)
        if not own.factor:
            raise Mixes(f"{operands.node.op} has rows of an unknown number of elements")
        places.append((own.axis + rank - ranks[index], own.layout))
    transposed = operands.node.flag_attr("adj_x") or operands.node.flag_attr("transpose_x")
    if len(set(places)) > 1:
        raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    ((axis, (blocks, factor)),) = set(places)
    if axis < rank - 2:
        for index, fact in enumerate(operands.facts):
            at = axis - (rank - ranks[index])
            if fact.kind is Kind.CONSTANT and at >= 0 and operands.shape(index)[at] != 1:
                raise Mixes(f"{operands.node.op} has another matrix for each row")
        return rows(operands.side, axis, factor, blocks)
    is_row = axis == rank - (1 if transposed else 2)
    if left.kind is Kind.ROWS and not operands.facts[1].has_rows and is_row:
        return left.moved(rank - 2)
    raise Mixes(f"{operands.node.op} multiplies rows with each other")


@rule("Einsum")
def _einsum(operands: Operands) -> Fact:
    equation = operands.node.text_attr("equation").replace(" ", "")
    terms, _, result = equation.partition("->")
    if "." in equation or "->" not in equation:
        raise Mixes(f"Einsum of {equation!r} is not understood")
    letters, layouts = set[str](), set[tuple[int, int]]()
    for index, (term, fact) in enumerate(zip(terms.split(","), operands.facts, strict=True)):
        if fact.kind is not Kind.CONSTANT:
            own = operands.of_rows(index)
            letters.add(term[own.axis])
            layouts.add(own.layout)
    if len(letters) > 1 or len(layouts) > 1:
        raise Mixes("the rows of operands of Einsum are different letters")
    (letter,) = letters
    if result.count(letter) != 1 or any(term.count(letter) > 1 for term in terms.split(",")):
        raise Mixes("Einsum adds up over the rows")
    for index, (term, fact) in enumerate(zip(terms.split(","), operands.facts, strict=True)):
        if fact.kind is not Kind.CONSTANT or letter not in term:
            continue
        if operands.shape(index)[term.index(letter)] != 1:
            raise Mixes("Einsum has another operand for each row")
    ((blocks, factor),) = layouts
    return rows(operands.side, result.index(letter), factor, blocks)


@rule("Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool", "LRN")
def _convolution(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    fact = operands.of_rows(0)
    if fact.axis or not fact.factor:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return fact


@rule("Conv2DBackpropInput")
def _transposed_convolution(operands: Operands) -> Fact:
    """A convolution that makes images larger, of sizes that it reads."""
    operands.constant(1)
    fact, sizes = operands.of_rows(2), operands.facts[0]
    if sizes.kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Conv2DBackpropInput has sizes that depend on values")
    if fact.axis or fact.layout != (1, 1) or operands.counts(0) != [0]:
        raise Mixes("Conv2DBackpropInput goes over the rows")
    return fact


@rule("SpaceToBatchND")
def _as_batches(operands: Operands) -> Fact:
    """All rows of one part of each image, then all of the next: blocks of rows."""
    operands.constant(1, 2)
    fact, parts = operands.of_rows(0), math.prod(operands.integers(1))
    if fact.axis or not fact.factor:
        raise Mixes("SpaceToBatchND goes over the rows")
    return replace(fact, blocks=fact.blocks * parts)


@rule("BatchToSpaceND")
def _from_batches(operands: Operands) -> Fact:
    operands.constant(1, 2)
    fact, parts = operands.of_rows(0), math.prod(operands.integers(1))
    if fact.axis or not fact.factor or not parts or fact.blocks % parts:
        raise Mixes("BatchToSpaceND goes over the rows")
    return replace(fact, blocks=fact.blocks // parts)
