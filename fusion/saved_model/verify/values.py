"""Comparison of the values of two tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ValueDifference(NamedTuple):
    """The difference of two arrays.

    Attributes:
        detail: for people.
        differing: bool, for each element whether it differs; empty if the arrays have not the same
            dtype and shape.
        max_abs: the largest absolute difference of numbers that are finite in both, else None.
    """

    detail: str
    differing: NDArray[np.bool_]
    max_abs: float | None = None


def difference_of(
    a: NDArray[Any], b: NDArray[Any], tolerance: float, largest_ever: float = 0.0
) -> ValueDifference | None:
    """Returns the difference of two arrays, or None.

    Args:
        a: the expected array.
        b: the other one.
        tolerance: see `nearly_same`; 0 compares bits; with infinity, what are no floats may be any.
        largest_ever: likewise.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        detail = f"{a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        return ValueDifference(detail, np.zeros(0, bool))
    same = same_bits(a, b)
    if tolerance and is_float(a):
        same |= nearly_same(a, b, tolerance, largest_ever)
    if same.all() or (tolerance == math.inf and not is_float(a)):
        return None
    largest = None
    detail = f"{int(np.count_nonzero(~same))} of {a.size} elements differ"
    if a.dtype != object:
        largest = largest_finite(_gaps(a, b))
        detail += "" if largest is None else f", by at most {largest:.3g}"
    return ValueDifference(detail, ~same, largest)


def deviation_of(a: NDArray[Any], b: NDArray[Any]) -> tuple[float | None, float | None, int]:
    """Returns by how much two arrays of one dtype and shape differ.

    Args:
        a: the expected array.
        b: the other one.

    Returns:
        The largest absolute difference of numbers that are finite in both and the largest finite
        magnitude in `a`, None if there are none; and how many elements are not equal to the bit.
    """
    differing = int(np.count_nonzero(~same_bits(a, b)))
    if a.dtype == object:
        return None, None, differing
    magnitudes = np.abs(a.astype(np.complex128))
    return largest_finite(_gaps(a, b)), largest_finite(magnitudes), differing


def _gaps(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        gaps: NDArray[np.float64] = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
    return gaps


def largest_finite(values: NDArray[np.float64]) -> float | None:
    """Returns the largest finite number, None if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else None


def unmatched(
    a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]], tolerance: float
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Returns the first arrays of two equally long sequences that have no equal in the other.

    The order means nothing: calls of a function may run in any.
    """
    others = list(b)
    remaining: list[NDArray[Any]] = []
    for value in a:
        equal = (i for i, v in enumerate(others) if difference_of(value, v, tolerance) is None)
        if (index := next(equal, None)) is None:
            remaining.append(value)
        else:
            del others[index]
    return (remaining[0], others[0]) if remaining else None


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns elementwise whether two arrays of one shape and dtype are equal to the bit.

    Any NaN equals any NaN; 0.0 and -0.0 differ.
    """
    if a.dtype == object:
        return np.asarray(a == b, dtype=bool)
    size = a.dtype.itemsize
    raw_a = np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, size)
    raw_b = np.ascontiguousarray(b).reshape(-1).view(np.uint8).reshape(-1, size)
    same = (raw_a == raw_b).all(axis=1).reshape(a.shape)
    if is_float(a):
        same |= np.isnan(a) & np.isnan(b)
    return np.asarray(same, dtype=bool)


def varying_outputs(
    first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> tuple[str, ...]:
    """Returns the outputs that differ between two runs of one model on the same inputs."""
    return tuple(
        key
        for key, value in first.items()
        if value.shape != second[key].shape or not same_bits(value, second[key]).all()
    )


def is_float(a: NDArray[Any]) -> bool:
    """Whether the elements are floating-point numbers, complex ones included."""
    # Kind V: bfloat16 and its relatives.
    return a.dtype.kind in "fcV"


def nearly_same(
    a: NDArray[Any], b: NDArray[Any], tolerance: float, largest_ever: float = 0.0
) -> NDArray[np.bool_]:
    """Returns elementwise whether numbers agree but for rounding.

    They may differ by `tolerance` times the largest finite magnitude in `a`, or `largest_ever` if
    that is more, or by four units in the last place of that if their dtype is coarser. What is not
    finite has to be equal, with a `tolerance` of infinity as well.
    """
    with np.errstate(all="ignore"):
        wide_a, wide_b = (array.astype(np.complex128) for array in (a, b))
        largest = max(largest_finite(np.abs(wide_a)) or 0.0, largest_ever)
        gaps = np.abs(wide_a - wide_b)
        if tolerance == math.inf:
            return np.isfinite(gaps)
        return np.asarray(gaps <= max(tolerance, 4 * _unit(a.dtype)) * largest, dtype=bool)


def _unit(dtype: np.dtype[Any]) -> float:
    """The distance of 1 from the next number."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)
