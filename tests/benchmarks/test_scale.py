"""The page has what the benchmark prints."""

from __future__ import annotations

from pathlib import Path

from benchmarks.catalog import CASES
from benchmarks.report import tables
from benchmarks.scale import ROWS, measure

PAGE = Path(__file__).parents[2] / "docs" / "distribute.md"


def test_the_page_is_current() -> None:
    case = CASES["scale"]
    rows = [row for part in case.parts(case.options) for row in case.rows(part)]
    page = PAGE.read_text()
    for table in tables(rows):
        assert table in page


def test_one_replica_sends_nothing() -> None:
    assert len(ROWS) == 26
    first, *_ = measure(1, 100, 8, 1.05)
    assert [*first.values.values()][1:] == ["0 B"] * 6
