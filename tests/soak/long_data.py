"""Many random layouts of Parquet files."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.data.layouts import LAYOUTS, Layout, check


@given(layout=LAYOUTS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_rows_are_those_of_the_files(layout: Layout) -> None:
    check(layout)
