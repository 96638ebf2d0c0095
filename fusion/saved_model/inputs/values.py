"""Values of one tensor: numbers and words that a model knows, and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.saved_model.inputs.cases import Ids
from fusion.saved_model.inputs.constraints import Array, Bounds
from fusion.saved_model.inputs.vocabularies import Known

UNUSUAL = 0.25
"""So many values are unusual in a batch that is to show such ones."""

_UNKNOWN_ROWS = 10
_MAX_WORDS = 5
"""In a text that is split into words."""


def integers(
    rng: np.random.Generator,
    ids: Ids,
    dtype: tf.DType,
    shape: tuple[int, ...],
    rows: int | None,
    bounds: Bounds | None,
) -> Array:
    """Returns integers in [0, rows), and about a quarter of those that a batch is to show.

    Args:
        rng: what to draw them with.
        ids: what the batch is to show.
        dtype: theirs.
        shape: their shape.
        rows: those of the table that they index; None if they index none that is known.
        bounds: the values that the model accepts.
    """
    largest = int(dtype.max)
    count = max(min(_UNKNOWN_ROWS if rows is None else rows, largest), 1)
    low, end = 0, count
    if bounds is not None:
        low, end = bounds.integers(count)
    values: Array = rng.integers(low, end, size=shape).astype(dtype.as_numpy_dtype)
    return _with_others(rng, values, _unusual(ids, dtype, rows, count))


def known_numbers(
    rng: np.random.Generator,
    ids: Ids,
    dtype: tf.DType,
    shape: tuple[int, ...],
    known: Known,
    rows: int | None,
    bounds: Bounds | None,
) -> Array | None:
    """Returns numbers that a table knows, and some others; None if it knows none that fits.

    Args: see `integers`; `known` are those that the table knows.
    """
    numpy_dtype = dtype.as_numpy_dtype
    numbers = np.array([n for n in known.values if not isinstance(n, bytes)], dtype=object)
    fits = [dtype.is_floating or dtype.min <= n <= dtype.max for n in numbers]
    candidates = numbers[np.array(fits, bool)].astype(numpy_dtype)
    accepted = (bounds or Bounds()).hold(candidates)
    if rows is not None:
        accepted &= (candidates >= 0) & (candidates < rows)
    candidates = candidates[accepted]
    if not candidates.size:
        return None
    values: Array = candidates[rng.integers(candidates.size, size=shape)]
    others: list[int] = []
    if dtype.is_integer:
        others = _unusual(ids, dtype, rows, candidates.size if rows is None else rows)
        if ids is Ids.UNKNOWN:
            likely = (*range(_UNKNOWN_ROWS), int(candidates.max()) + 1, int(candidates.max()) + 2)
            others = [n for n in likely if n <= dtype.max and n not in {*numbers.tolist()}]
    return _with_others(rng, values, others)


def known_words(
    rng: np.random.Generator,
    ids: Ids,
    shape: tuple[int, ...],
    known: Known,
    others: Sequence[bytes],
) -> Array | None:
    """Returns words that a table knows, and some others; None if it knows none.

    Args:
        rng: what to draw them with.
        ids: what the batch is to show.
        shape: their shape.
        known: the words that the table knows.
        others: words, which it may know or not.
    """
    candidates = [word for word in known.values if isinstance(word, bytes)]
    if not candidates:
        return None
    unknown = [*{*others} - {*candidates}] if ids is Ids.UNKNOWN else []
    unknown.sort()
    if known.separator is None:
        words = np.array(candidates, dtype=object)
        return _with_others(rng, words[rng.integers(len(words), size=shape)], unknown)
    texts = np.empty(int(np.prod(shape)), dtype=object)
    for index in range(texts.size):
        drawn = [candidates[n] for n in rng.integers(len(candidates), size=_MAX_WORDS)]
        texts[index] = known.separator.join(drawn[: rng.integers(1, _MAX_WORDS + 1)])
    return _with_others(rng, texts.reshape(shape), unknown)


def bounded(rng: np.random.Generator, numbers: Array, bounds: Bounds) -> Array:
    """Returns numbers strictly between bounds."""
    low, high = np.isfinite(bounds.low), np.isfinite(bounds.high)
    if low and high:
        return bounds.low + (bounds.high - bounds.low) * rng.uniform(0.05, 0.95, numbers.shape)
    far = np.abs(numbers) + 0.01
    if low:
        return bounds.low + far
    return bounds.high - far if high else numbers


def _unusual(ids: Ids, dtype: tf.DType, rows: int | None, count: int) -> list[int]:
    """The integers that a batch is to show, of `count` usual ones."""
    if ids is Ids.NEGATIVE and not dtype.is_unsigned:
        return [n for n in (-1, -2, -count) if n >= int(dtype.min)]
    if ids is Ids.BEYOND and rows is not None:
        return [n for n in (rows, rows + 1, 2 * rows) if n <= int(dtype.max)]
    return []


def _with_others(rng: np.random.Generator, values: Array, others: Sequence[Any]) -> Array:
    """Returns values with about a quarter of others among them, at least one if there are any."""
    if not others or not values.size:
        return values
    chosen = np.asarray(rng.random(values.shape) < UNUSUAL)
    chosen.reshape(-1)[rng.integers(chosen.size)] = True
    drawn = np.array(others, values.dtype)[rng.integers(len(others), size=values.shape)]
    return np.where(chosen, drawn, values)
