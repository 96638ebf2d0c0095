"""Whether a lookup agrees with stock TensorFlow, and how to see it again where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.bounds import Bounds
from tests.differential import ours
from tests.differential.case import Case
from tests.differential.run import Outcome, outcome
from tests.differential.stock import stock_outcome
from tests.differential.trained import trained_outcome

Array = Any

#: What a lookup may raise.
ERRORS = (ValueError, TypeError, tf.errors.InvalidArgumentError)


class Mismatch(AssertionError):
    """A lookup that does not agree with stock TensorFlow; the message is a program to see it."""

    def __init__(self, case: Case, error: BaseException) -> None:
        super().__init__(
            f"{error}\n\nTo see it again, in the root of the repository:\n\n"
            "from tests.differential.case import Case\n"
            "from tests.differential.compare import check\n\n"
            f"check({case!r})\n"
        )


def check(case: Case) -> bool:
    """Compares a lookup with stock TensorFlow, forward and gradient.

    Returns:
      Whether there were numbers to compare; otherwise both raised.

    Raises:
      Mismatch: they disagree.
    """
    try:
        with np.errstate(all="ignore"):
            return _check(case, _ours)
    except (AssertionError, *ERRORS) as error:
        raise Mismatch(case, error) from error


def _ours(case: Case) -> Outcome:
    """What the lookup under test gives."""
    return trained_outcome(case) if case.version == "trained" else outcome(case, ours.lookup)


def _check(case: Case, run: Callable[[Case], Outcome]) -> bool:
    try:
        expected = stock_outcome(case)
    except ERRORS as error:
        _check_raises(case, run, error)
        return False
    actual = run(case)
    assert actual.output.shape == expected.output.shape, (
        f"the shape is {actual.output.shape}, but stock's {expected.output.shape}"
    )
    # Of stock gathers they may; their gradients are nobody's promise.
    for ids in actual.ids if case.version != "lowered" else ():
        assert len(np.unique(ids)) == len(ids), f"ids of the gradient repeat: {ids}"
    _check_numbers(case, actual, expected)
    if case.is_repeated:
        again = run(case)
        assert again.to_bytes() == actual.to_bytes(), "the second run gives other bits"
    return True


def _check_raises(case: Case, run: Callable[[Case], Outcome], expected: Exception) -> None:
    try:
        run(case)
    except ERRORS:
        return
    raise AssertionError(f"stock raises {type(expected).__name__}: {expected}")


def _check_numbers(case: Case, actual: Outcome, expected: Outcome) -> None:
    entries, arrays = _Entries(case), case.arrays
    bounds = Bounds(
        arrays.table,
        entries.values,
        entries.rows,
        entries.weights if case.weights else None,
        case.combiner,
        case.max_norm,
        case.bags,
    )
    of_weights = np.zeros(len(entries.kept))
    if case.weights:
        kept = entries.kept.sum()
        of_weights[entries.kept] = bounds.weights_gradient(arrays.top_grad)[:kept]
    # Stock TensorFlow leaves the gradient of no entries at all uninitialised.
    has_entries = entries.kept.any() or (case.fill and case.bags)
    of_table = expected.table if has_entries else np.zeros_like(expected.table)
    flat = (case.bags, case.dim)
    _assert_within(
        "output",
        actual.output.reshape(flat),
        expected.output.reshape(flat),
        None if case.is_exact else bounds.output(),
    )
    _assert_within(
        "table's gradient",
        actual.table,
        of_table,
        None if case.has_exact_gradient else bounds.table_gradient(arrays.top_grad),
    )
    _assert_within("weights' gradient", actual.weights, expected.weights, of_weights)


class _Entries:
    """The entries that count, those filled in last.

    Attributes:
      kept: bool [nnz], the given ones among them.
      values, rows, weights: of each, [m].
    """

    def __init__(self, case: Case) -> None:
        arrays = case.arrays
        values, rows, weights = arrays.values.astype(np.int64), arrays.bags, arrays.weights
        self.kept = np.ones(len(values), bool)
        if case.prune:
            self.kept = values >= 0
            if case.weights and case.combiner != "sum":
                # TensorFlow's threads take denormal numbers for 0.
                smallest = np.finfo(np.float64 if case.dtype == "float64" else np.float32).tiny
                self.kept &= weights >= smallest
        values, rows, weights = values[self.kept], rows[self.kept], weights[self.kept]
        if case.fill and case.default_id is not None:
            empty = np.setdiff1d(np.arange(case.bags), rows)
            values = np.append(values, np.full(len(empty), case.default_id))
            rows = np.append(rows, empty)
            weights = np.append(weights, np.ones(len(empty), weights.dtype))
        self.values, self.rows, self.weights = values, rows, weights


def _assert_within(what: str, actual: Array, expected: Array, bound: Array | None) -> None:
    """Within the bound, or not finite in the same way; anything where the bound is inf.

    Without a bound the bits are equal, but that zeros may differ in sign and NaNs in payload.
    """
    assert actual.dtype == expected.dtype, f"{what} has dtype {actual.dtype}, not {expected.dtype}"
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if bound is not None:
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        same |= np.isposinf(bound) | (error <= bound)
    assert same.all(), f"{what}: {_first(~same, actual, expected, bound)}"


def _first(bad: Array, actual: Array, expected: Array, bound: Array | None) -> str:
    """How many elements are bad, and the first of them."""
    place = tuple(int(axis[0]) for axis in np.nonzero(bad))
    text = f"{bad.sum()} of {bad.size} elements differ, first {list(place)}: "
    text += f"{actual[place]!r}, but stock's {expected[place]!r}"
    return text if bound is None else f"{text}, bound {bound[place]:.3g}"
