"""The cases that run are enough, few, and the same each time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from tests.covering import chosen_rows, spread
from tests.covering import values as values_of


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


def test_the_fields_of_a_case_are_values():
    cases = [Case(size, (length,)) for size in range(4) for length in range(5)]
    assert len(chosen_rows([values_of({"case": case}) for case in cases], 8)) == 8


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, [0, 1, 2]), (4, [0, 1, 2, 3]), (10, [0, 3, 6, 9]), (6, [0, 1, 3, 5])],
)
def test_cases_are_spread_from_the_first_to_the_last(count: int, expected: list[int]):
    assert spread(range(count), 4) == expected
