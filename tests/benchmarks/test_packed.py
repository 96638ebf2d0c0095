from __future__ import annotations

from benchmarks import packed
from fusion.schema.row_formats import ROW_FORMATS


def test_all_formats_are_measured() -> None:
    rows = [*packed.measure(9, megabytes=0.02, seconds=0.01)]
    assert [row.key["row format"] for row in rows] == [*ROW_FORMATS] * 2
    for row in rows[:: len(ROW_FORMATS)]:
        assert row.values["of float32's bytes"] == 1
        assert row.values["times as fast as float32"] == {"median": 1, "low": 1, "high": 1}
    assert {row.number("of float32's bytes") < 1 for row in rows[1 : len(ROW_FORMATS)]} == {True}
