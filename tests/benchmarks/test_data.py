"""The measurement of the loader of Parquet files."""

from pathlib import Path

import pytest

from benchmarks import data


def test_both_sides_are_measured() -> None:
    found = {row.key["side"]: row.values for row in data.measure(100, rows=300, seconds=0.01)}
    assert len(found) == 3
    assert found["by hand"]["times by hand"] == {"median": 1, "low": 1, "high": 1}


def test_other_rows_are_an_error(tmp_path: Path) -> None:
    data.write_file(tmp_path / "a.parquet", 100)
    data.write_file(tmp_path / "b.parquet", 101)
    data.assert_equal(*(data.by_hand(tmp_path / "a.parquet", 10) for _ in range(2)))
    one, other = (data.by_hand(tmp_path / f"{name}.parquet", 10) for name in "ab")
    with pytest.raises((AssertionError, ValueError)):
        data.assert_equal(one, other)
