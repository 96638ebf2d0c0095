"""Which of many cases of a test say most, where the cases are products of values.

Most of them say again what others say: a defect shows for a value, or for two that meet, and seldom
for three. So those are chosen in which most pairs of values meet, and every value is in one of them
at least. Which tests have how many, see tests/tiers.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def is_list(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether there is a value that no two rows share, so that each row would be chosen for it."""
    return any(len({*column}) == len(rows) for column in zip(*rows, strict=False))


def spread(values: Sequence[T], most: int) -> list[T]:
    """At most so many, in their order, in steps as equal as can be: the first and the last, too."""
    if len(values) <= most:
        return [*values]
    return [values[k * (len(values) - 1) // max(1, most - 1)] for k in range(most)]


def values(params: Mapping[str, Any]) -> list[Any]:
    """What can be compared of the parameters of a case, of each as many as it has fields."""
    return [one for _, value in sorted(params.items()) for one in _columns(value)]


def _columns(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value), *map(_identity, vars(value).values())]
    return [_identity(value)]


def _identity(value: Any) -> Any:
    """What is the same for the same values; of most types, these are the same objects."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_identity, value))
    if type(value).__name__ == "DType" or hasattr(value, "as_numpy_dtype"):
        return value  # of TensorFlow, and equal where they are the same
    return (type(value), value) if isinstance(value, _COMPARED) else id(value)


_COMPARED = (bool, bytes, float, int, str, type, type(None))


def chosen_rows(rows: Sequence[Sequence[Any]], most: int) -> list[int]:
    """The indices, in order, of rows in which every value of each column and most pairs are.

    Each row is the first that has most new values, of those most new pairs, and of those the values
    that are in the fewest rows so far. There are more than `most` where so many are needed for the
    values; there are fewer where these have all pairs.
    """
    values = [{*enumerate(row)} for row in rows]
    pairs = [{*itertools.combinations(enumerate(row), 2)} for row in rows]
    new_values, new_pairs = set().union(*values), set().union(*pairs)
    uses: Counter[Any] = Counter()
    chosen: list[int] = []
    left = list(range(len(rows)))

    def gain(k: int) -> tuple[int, int, int]:
        used = sum(uses[value] for value in values[k])
        return len(values[k] & new_values), len(pairs[k] & new_pairs), -used

    while new_values or (new_pairs and len(chosen) < most):
        best = max(left, key=gain)
        left.remove(best)
        chosen.append(best)
        new_values -= values[best]
        new_pairs -= pairs[best]
        uses.update(values[best])
    return sorted(chosen)
