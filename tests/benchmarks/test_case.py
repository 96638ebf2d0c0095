"""Rows of several processes become one; options of a case become parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.case import Case, Row, combined
from benchmarks.catalog import CASES


def rows(*ratios: float, **facts):
    return [Row({"batch": 512}, {"ratio": ratio}, "ratios", **facts) for ratio in ratios]


def test_numbers_of_processes_are_spread():
    (found,) = combined(rows(2.0, 6.0, 3.0))
    assert found.values == {"ratio": {"median": 3.0, "low": 2.0, "high": 6.0}}
    (alone,) = combined(rows(2.0))
    assert alone.values == {"ratio": 2.0}
    of_rounds = {"median": 4.0, "low": 1.0, "high": 9.0}
    (kept,) = combined([Row({}, {"ratio": of_rounds})])
    assert kept.values["ratio"] == of_rounds
    (found,) = combined([Row({}, {"ratio": of_rounds}), *combined([Row({}, {"ratio": 6.0})])])
    assert found.values["ratio"] == {"median": 5.0, "low": 4.0, "high": 6.0}


def test_values_of_other_processes_and_texts_are_joined():
    one = Row({"batch": 1}, {"fused, ms": 1.0, "equal": "yes"}, notes=("a", "b"))
    other = Row({"batch": 1}, {"stock, ms": 2.0, "equal": "to 1e-07"}, notes=("b",))
    (found,) = combined([one, other])
    assert found.values == {"fused, ms": 1.0, "equal": "yes; to 1e-07", "stock, ms": 2.0}
    assert found.notes == ("a", "b")
    assert len(combined([one, Row({"batch": 2}), Row({"batch": 1}, table="other")])) == 3


def test_answers_that_differ_are_an_error():
    assert len(combined([*rows(1.0, answers="a"), *rows(2.0, answers="a")])) == 1
    with pytest.raises(ValueError, match="answers differ: 512"):
        combined([*rows(1.0, answers="a"), *rows(2.0, answers="b")])


def test_bounds_are_of_medians():
    row = Row({}, {"ratio": {"median": 3.0, "low": 1.0, "high": 9.0}, "s": 2.0})
    found = replace(row, least={"ratio": 3.0, "absent": 1.0}, most={"s": 1.5})
    assert [*found.verdicts()] == [("ratio", "at least 3", True), ("s", "at most 1.5", False)]


def test_each_element_of_a_tuple_has_processes_of_its_own():
    case = Case("one", "", "m:f", {"rows": 9, "side": ("a", "b")}, {"rows": 1}, {"fixed": True})
    chosen = case.chosen({"side": ("b",), "other": 3}, quick=True)
    assert chosen == {"rows": 1, "side": ("b",)}
    assert [*case.parts(case.options)] == [
        {"fixed": True, "rows": 9, "side": side} for side in ("a", "b")
    ]
    assert [*case.parts({"rows": (1, 2), "side": ("a", "b")})][1] == {
        "fixed": True,
        "rows": 1,
        "side": "b",
    }


@pytest.mark.parametrize("name", CASES)
def test_small_runs_have_known_options(name):
    case = CASES[name]
    assert {*case.quick} <= {*case.options, *case.fixed}
    assert {*case.later} <= {*case.fixed}
