"""Tensors of which each row is the same constant, as masks made of ones like another tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fusion.passes.graph.values import Node, Value

_MAX_DEPTH = 30
_MAX_ELEMENTS = 2**16
_KEEPS = frozenset({"Identity", "StopGradient", "Snapshot", "PreventGradient"})
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
}

Row = npt.NDArray[Any]


def constant_row(value: Value, factor: int) -> Row | None:
    """Returns what each row of a tensor is, whatever is fed; None if that is not known.

    Args:
        value: the tensor, whose rows lie along its first axis.
        factor: how many elements of that axis each row has; then a row has these as its first axis.
    """
    shape = value.shape
    if shape is None or None in shape[1:]:
        return None
    row = _row(value, _MAX_DEPTH)
    whole = tuple(size or 0 for size in shape[1:])
    return None if row is None else _as(row, (factor, *whole))


def _as(row: Row, sizes: tuple[int, ...]) -> Row | None:
    return row.reshape(sizes) if row.size == np.prod(sizes) else None


def _row(value: Value, depth: int) -> Row | None:
    """A row of a tensor, without its first axis."""
    node = value.producer
    if not depth:
        return None
    if node.op in ("OnesLike", "ZerosLike"):
        shape = value.shape
        if shape is None or None in shape or len(shape) < 2:
            return None
        sizes = [size or 0 for size in shape[1:]]
        if np.prod(sizes) > _MAX_ELEMENTS:
            return None
        return np.full(sizes, node.op == "OnesLike", np.float64)
    if node.op in _KEEPS:
        return _row(node.input(0), depth - 1)
    if node.op == "LogicalNot":
        row = _row(node.input(0), depth - 1)
        return None if row is None else np.logical_not(row)
    if node.op == "Cast":
        return _cast(node, depth)
    if node.op == "MatrixBandPart":
        return _band(node, depth)
    if node.op == "Reshape":
        return _reshaped(node, depth)
    return _binary(node, depth) if node.op in _BINARY else None


def _cast(node: Node, depth: int) -> Row | None:
    """Of small whole numbers, which are the same in each type."""
    row = _row(node.input(0), depth - 1)
    return row if row is not None and np.isin(row, (0, 1)).all() else None


def _band(node: Node, depth: int) -> Row | None:
    row = _row(node.input(0), depth - 1)
    bounds = [node.input(k).constant for k in (1, 2)]
    if row is None or row.ndim < 2 or any(one is None or one.size != 1 for one in bounds):
        return None
    lower, upper = (int(np.reshape(one, -1)[0]) for one in bounds)  # type: ignore[arg-type]
    i, j = np.indices(row.shape[-2:])
    is_kept = ((lower < 0) | (i - j <= lower)) & ((upper < 0) | (j - i <= upper))
    return np.where(is_kept, row, 0)


def _reshaped(node: Node, depth: int) -> Row | None:
    """A row whose elements are the same behind each other, if rows stay rows of one element."""
    row, shape = _row(node.input(0), depth - 1), node.output().shape
    if row is None or shape is None or None in shape[1:]:
        return None
    sizes = tuple(size or 0 for size in shape[1:])
    return row.reshape(-1) if not sizes else _as(row, sizes)


def _binary(node: Node, depth: int) -> Row | None:
    """Of two rows of one shape, or of a row and a number."""
    rows = []
    for operand in node.inputs:
        number = operand.constant
        row = np.asarray(number, np.float64) if _is_number(number) else _row(operand, depth - 1)
        rows.append(row)
    left, right = rows
    if left is None or right is None or (left.shape != right.shape and left.ndim and right.ndim):
        return None
    shapes = [operand.shape for operand in node.inputs if operand.constant is None]
    if len({*shapes}) > 1:
        return None
    return np.asarray(_BINARY[node.op](left, right))


def _is_number(number: Row | None) -> bool:
    """Whether it is one whole number, with which all types compute alike."""
    is_one = number is not None and number.ndim == 0 and number.dtype.kind in "fiub"
    return bool(is_one and abs(float(number)) <= 16 and float(number).is_integer())  # type: ignore[arg-type]
