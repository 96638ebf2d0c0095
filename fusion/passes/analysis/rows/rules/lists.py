"""Lists of tensors, which loops read and write: each element has all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, empty_list
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule


@rule("TensorListReserve", "EmptyTensorList")
def _made(operands: Operands) -> Fact:
    """An empty list; of how many elements no row says."""
    operands.constant(1)
    _check_sizes(operands, 0)
    length = operands.node.view.integers(operands.node.input(1).tensor)
    has_length = operands.node.op == "TensorListReserve" and length is not None
    return empty_list(int(length) if has_length and length is not None else None)


@rule("TensorListFromTensor")
def _of_tensor(operands: Operands) -> Fact:
    _check_sizes(operands, 1)
    fact = operands.of_rows(0)
    if not fact.axis:
        raise Mixes("TensorListFromTensor makes an element of each row")
    return replace(_list_of(fact.moved(fact.axis - 1)), shape=_without_rows(operands, 0, fact))


@rule("TensorListStack")
def _stacked(operands: Operands) -> Fact:
    _check_sizes(operands, 1)
    fact = _elements(operands)
    return replace(fact, kind=Kind.ROWS, axis=fact.axis + 1)


@rule("TensorListGetItem")
def _got(operands: Operands) -> Fact:
    operands.constant(1)
    _check_sizes(operands, 2)
    return _element(operands)


@rule("TensorListSetItem")
def _set(operands: Operands) -> Fact:
    operands.constant(1)
    return _with(operands, 2)


@rule("TensorListPushBack")
def _pushed(operands: Operands) -> Fact:
    found = _with(operands, 1)
    return replace(found, shape=(None, *found.shape[1:])) if found.has_rows else found


@rule("TensorListPopBack")
def _popped(operands: Operands) -> Sequence[Fact]:
    _check_sizes(operands, 1)
    whole = _elements(operands)
    return [replace(whole, shape=(None, *whole.shape[1:])), _element(operands)]


@rule("TensorListLength")
def _length(operands: Operands) -> Fact:
    """No row says how many elements there are."""
    if not operands.facts[0].is_empty_list:
        _elements(operands)
    return CONSTANT


def _with(operands: Operands, index: int) -> Fact:
    """The fact of a list that an operand is put into."""
    whole = operands.facts[0]
    if not operands.facts[index].has_rows and (whole == CONSTANT or whole.is_empty_list):
        return CONSTANT
    item = operands.of_rows(index)
    sizes = _without_rows(operands, index, item)
    if whole.is_empty_list:
        return replace(_list_of(item), shape=(*whole.shape, *sizes))
    known = _elements(operands)
    if (known.axis, known.layout) != (item.axis, item.layout):
        raise Mixes(f"the rows of elements of {operands.node.op} lie along different axes")
    if len(known.shape) != len(sizes) + 1:
        raise Mixes(f"elements of {operands.node.op} have different ranks")
    both = zip(sizes, known.shape[1:], strict=True)
    shape = (known.shape[0], *(a if a == b else None for a, b in both))
    return replace(_list_of(item), side=operands.side, shape=shape)


def _elements(operands: Operands) -> Fact:
    """The fact of a list that something was put into."""
    fact = operands.facts[0]
    if fact.kind is not Kind.LIST:
        raise Mixes(f"operand 0 of {operands.node.op} has {fact.kind.value}")
    if fact.is_empty_list:
        raise Mixes(f"{operands.node.op} reads a list that nothing was put into")
    return fact


def _element(operands: Operands) -> Fact:
    fact = _elements(operands)
    return replace(fact, kind=Kind.ROWS, shape=fact.shape[1:])


def _list_of(fact: Fact) -> Fact:
    return replace(fact, kind=Kind.LIST)


def _without_rows(operands: Operands, index: int, fact: Fact) -> tuple[int | None, ...]:
    """Returns the sizes of an operand, None for that of the axis of rows."""
    return tuple(None if k == fact.axis else n for k, n in enumerate(operands.shape(index)))


def _check_sizes(operands: Operands, index: int) -> None:
    if operands.facts[index].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes(f"{operands.node.op} has a shape that depends on values")
