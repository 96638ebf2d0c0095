"""Which of many cases of a test `make test` runs; `make soak` and `make fuzz` run them all.

Where the cases of a test are products of values, most say again what others say: a defect shows
for a value, or for two that meet, and seldom for three. So of more than `_MOST` cases those run in
which most pairs of values meet, and every value is in one of them at least.

Of a test whose cases each take long, and say nearly the same, fewer run: four, or as many as its
marker says, and as many more as there are values. Cases that are no product are spread evenly from
the first to the last.

    @pytest.mark.costly(24)

None run of a test that takes very long and shows on the whole what others show in parts, or what is
not the product: `costly(0)`.

`FUSION_ALL_CASES=1` has all of them run.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

ALL_CASES = os.environ.get("FUSION_ALL_CASES", "0") != "0"

#: Cases of a test, but for those of values that are in no others.
_MOST = 8
#: Cases of a test that is marked `costly`, and does not say how many.
_MOST_COSTLY = 4


def some(values: Sequence[T], step: int) -> Sequence[T]:
    """Of cases that are no product, such as seeds: each `step`-th, or all of them."""
    return values if ALL_CASES else values[::step]


def covering(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of all tests that are to run, in their order."""
    if ALL_CASES:
        return [*items]
    chosen: list[pytest.Item] = []
    for _, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = [*group]
        marker = cases[0].get_closest_marker("costly")
        (most,) = (marker.args or [_MOST_COSTLY]) if marker else [_MOST]
        if len(cases) > most > 0:
            rows = [_values(case) for case in cases]
            if marker and _is_list(rows):
                cases = spread(cases, most)
            else:
                cases = [cases[index] for index in chosen_rows(rows, most)]
        chosen += cases if most else []
    return chosen


def _is_list(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether there is a value that no two rows share, so that each row would be chosen for it."""
    return any(len({*column}) == len(rows) for column in zip(*rows, strict=False))


def spread(values: Sequence[T], most: int) -> list[T]:
    """At most so many, in their order, in steps as equal as can be: the first and the last, too."""
    if len(values) <= most:
        return [*values]
    return [values[k * (len(values) - 1) // max(1, most - 1)] for k in range(most)]


def _values(item: Any) -> list[Any]:
    """What can be compared of its arguments, of each in as many columns as it has fields."""
    params: dict[str, Any] = item.callspec.params
    return [column for _, value in sorted(params.items()) for column in _columns(value)]


def _columns(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value), *map(_identity, vars(value).values())]
    return [_identity(value)]


def _identity(value: Any) -> Any:
    """What is the same for the same values; of most types, these are the same objects."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_identity, value))
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
