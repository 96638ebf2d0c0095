"""The cases that run are enough, few, and the same each time."""

from __future__ import annotations

import itertools
import types
from dataclasses import dataclass
from typing import Any

import pytest

from tests import covering
from tests.covering import chosen_rows


def pairs(rows: list[tuple[Any, ...]]) -> set[Any]:
    return {pair for row in rows for pair in itertools.combinations(enumerate(row), 2)}


def values(rows: list[tuple[Any, ...]]) -> set[Any]:
    return {value for row in rows for value in enumerate(row)}


def test_all_pairs_are_there_where_few_cases_have_them():
    rows = [*itertools.product("abc", (1, 2), (True, False), "xy")]
    chosen = [rows[index] for index in chosen_rows(rows, 12)]
    assert pairs(chosen) == pairs(rows)
    assert len(chosen) <= 8 < len(rows)


def test_otherwise_all_values_are_there_each_about_as_often():
    rows = [*itertools.product(range(20), "abcd")]
    chosen = [rows[index] for index in chosen_rows(rows, 12)]
    assert values(chosen) == values(rows)
    assert len(chosen) == 20
    assert {sum(letter in row for row in chosen) for letter in "abcd"} == {5}


def test_pairs_are_added_as_long_as_there_are_few_cases():
    rows = [*itertools.product(range(5), "abcd")]
    assert len(chosen_rows(rows, 12)) == 12


def test_what_is_no_product_is_left_as_it_is():
    rows = [(k,) for k in range(30)]
    assert chosen_rows(rows, 12) == [*range(30)]


@dataclass(frozen=True)
class Case:
    size: int
    lengths: tuple[int, ...]


def items(*cases: Any, marker: Any = None) -> list[Any]:
    return [
        types.SimpleNamespace(
            nodeid=f"test_it[{k}]",
            callspec=types.SimpleNamespace(params={"case": case}),
            get_closest_marker=lambda name: marker if name == "costly" else None,
        )
        for k, case in enumerate(cases)
    ]


def test_the_fields_of_a_case_are_values(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(covering, "ALL_CASES", False)
    many = items(*(Case(size, (length,)) for size in range(4) for length in range(5)))
    assert len(covering.covering(many)) == 8
    assert covering.covering(many) == covering.covering(many)
    few = many[:8]
    assert covering.covering(few) == few


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, [0, 1, 2]), (4, [0, 1, 2, 3]), (10, [0, 3, 6, 9]), (6, [0, 1, 3, 5])],
)
def test_of_costly_cases_few_run_from_all_parts(
    monkeypatch: pytest.MonkeyPatch, count: int, expected: list[int]
):
    monkeypatch.setattr(covering, "ALL_CASES", False)
    costly = items(*range(count), marker=pytest.mark.costly.mark)
    assert covering.covering(costly) == [costly[k] for k in expected]
    half = items(*range(count), marker=pytest.mark.costly(2).mark)
    assert covering.covering(half) == [half[0], half[-1]]
    one = items(*range(count), marker=pytest.mark.costly(1).mark)
    assert covering.covering(one) == one[:1]
    assert not covering.covering(items(*range(count), marker=pytest.mark.costly(0).mark))
    monkeypatch.setattr(covering, "ALL_CASES", True)
    assert covering.covering(costly) == costly


def test_costly_products_have_every_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(covering, "ALL_CASES", False)
    cases = [Case(size, (length,)) for size in range(3) for length in range(7)]
    assert not covering.covering(items(*cases, marker=pytest.mark.costly(0).mark))
    costly = items(*cases, marker=pytest.mark.costly.mark)
    few = covering.covering(costly)
    found = [case for case, item in zip(cases, costly, strict=True) if item in few]
    assert len(found) == 7
    assert {case.size for case in found} == {*range(3)}
    assert {case.lengths for case in found} == {(length,) for length in range(7)}


def test_all_cases_run_when_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(covering, "ALL_CASES", True)
    many = items(*range(99))
    assert covering.covering(many) == many
    assert covering.some(range(10), 4) == range(10)
    monkeypatch.setattr(covering, "ALL_CASES", False)
    assert [*covering.some(range(10), 4)] == [0, 4, 8]
