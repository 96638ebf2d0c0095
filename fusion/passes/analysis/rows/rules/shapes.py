"""The same elements in another shape, and tensors of a new shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, Side, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import measured, rule


@rule("ExpandDims")
def _expanded(operands: Operands) -> Fact:
    axis = operands.axis(1, operands.rank(0) + 1)
    fact = operands.facts[0]
    if fact.kind is Kind.SUMMARY:
        return fact
    fact = operands.of_rows(0)
    return fact.moved(fact.axis + (axis <= fact.axis))


@rule("Squeeze")
def _squeezed(operands: Operands) -> Fact:
    attr = operands.node.attr("squeeze_dims")
    dims = [] if attr is None else [int(axis) for axis in attr.list.i]
    if operands.facts[0].kind is Kind.INSIDE and dims in ([1], [-1]):
        return operands.facts[0]  # the places of some elements of each row
    fact, rank = operands.of_rows(0), operands.rank(0)
    if not dims:
        raise Mixes("Squeeze without axes drops that of the rows where there is one row")
    axes = [axis + rank if axis < 0 else axis for axis in dims]
    for axis in axes:
        operands.apart(fact, axis)
    return fact.moved(fact.axis - sum(axis < fact.axis for axis in axes))


@rule("Transpose")
def _transposed(operands: Operands) -> Fact:
    fact, order = operands.of_rows(0), operands.integers(1)
    return fact.moved(order.index(fact.axis))


@rule("Reshape")
def _reshaped(operands: Operands) -> Fact:
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Reshape to a shape that depends on values")
    if len(operands.counts(1)) > 1:
        raise Mixes("Reshape to a shape of two numbers of rows")
    fact, shape = operands.of_rows(0), operands.shape(0)
    before = shape[: fact.axis]
    if None in before:
        raise Mixes("Reshape of unknown sizes in front of the rows")
    prefix = math.prod(size or 0 for size in before) * fact.blocks
    result = operands.result_shape()
    found = operands.row_axis(result, prefix)
    if found is None:
        raise Mixes("Reshape does not keep the rows apart")
    axis, factor, blocks = found
    if factor == 0:
        whole = shape[fact.axis + 1 :]
        known = math.prod(size for size in whole if size is not None) * max(fact.factor, 1)
        parts = _divided(known, result[axis + 1 :])
        is_whole = fact.factor and None not in whole
        factor = parts if is_whole else 0
    return rows(fact.side, axis, factor, blocks)


def _divided(elements: int, inner: Sequence[int | None]) -> int:
    """Returns how many parts of these sizes a row has of so many elements, or of a multiple."""
    part = 0 if None in inner else math.prod(size or 0 for size in inner)
    if not part or not elements or elements % part:
        raise Mixes("Reshape is not known to keep the rows apart")
    return elements // part


@rule("Fill")
def _filled(operands: Operands) -> Fact:
    operands.constant(1)
    sizes = operands.node.input(0).producer
    like = operands.known.get(sizes.input(0).tensor) if sizes.op == "Shape" else None
    if like is not None and like.kind is Kind.ENTRIES:
        return like  # a number for each entry
    return _new_rows(operands, 0)


def _new_rows(operands: Operands, sizes: int) -> Fact:
    """The fact of a tensor that has equal rows, as many as an operand of sizes says."""
    like = measured(operands, sizes) if operands.node.op != "Tile" else None
    if like is not None and like.factor:
        return replace(like, side=Side.NEITHER)
    shape = operands.result_shape()
    found = [axis for axis, size in enumerate(shape) if size and size % operands.batch == 0]
    if len(found) != 1 or None in shape or operands.counts(sizes) != found:
        raise Mixes(f"{operands.node.op} makes a tensor whose rows are not known")
    return rows(Side.NEITHER, found[0], (shape[found[0]] or 0) // operands.batch)


@rule("BroadcastTo")
def _broadcast_to(operands: Operands) -> Fact:
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("BroadcastTo to a shape that depends on values")
    fact = operands.facts[0]
    if fact.kind is Kind.CONSTANT:
        return _new_rows(operands, 1)
    fact, shape, result = operands.of_rows(0), operands.shape(0), operands.result_shape()
    axis = fact.axis + len(result) - len(shape)
    if result[axis] is None or result[axis] != shape[fact.axis] or {*operands.counts(1)} - {axis}:
        raise Mixes("BroadcastTo makes more rows")
    return fact.moved(axis)


@rule("Tile")
def _tiled(operands: Operands) -> Fact:
    fact = operands.facts[0]
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Tile by numbers that depend on values")
    if fact.kind is Kind.CONSTANT:
        return _new_rows(operands, 1)
    fact, size = operands.of_rows(0), operands.result_shape()[fact.axis]
    own = operands.shape(0)[fact.axis]
    if operands.counts(1) or not fact.factor or not size or not own:
        raise Mixes("Tile makes more rows")
    return replace(fact, blocks=fact.blocks * (size // own))


@rule("OneHot")
def _one_hot(operands: Operands) -> Fact:
    operands.constant(1, 2, 3)
    fact, rank = operands.of_rows(0), operands.rank(0)
    axis = operands.node.int_attr("axis")
    axis = rank if axis < 0 else axis
    return fact.moved(fact.axis + (axis <= fact.axis))


@rule("Pad", "PadV2", "MirrorPad")
def _padded(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    fact, amounts = operands.of_rows(0), operands.integers(1)
    if amounts[2 * fact.axis : 2 * fact.axis + 2] != [0, 0]:
        raise Mixes(f"{operands.node.op} makes more rows")
    return fact
