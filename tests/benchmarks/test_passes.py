"""What the pass costs, on few columns."""

from __future__ import annotations

from benchmarks import passes


def test_what_the_pass_costs_is_measured() -> None:
    dense, columns = passes.measure(columns=3, layers=50, repeats=1)
    assert columns.key["columns"] == 3
    assert columns.number("nodes after") < float(columns.key["nodes"])
    assert dense.number("ms") > 0
    assert [*dense.verdicts(), *columns.verdicts()]
