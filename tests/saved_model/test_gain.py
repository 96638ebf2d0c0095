from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from fusion.passes.report.report import ColumnReport, FusionReport
from fusion.saved_model.gain import SAVED_US, Gain, Saving, expected_gain

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WORKLOADS = {
    1: ("multihot26", "shared", "weighted", "max_norm", "criteo26"),
    256: ("wide1000", "recom-micro"),
}


def _saved_us(machine: str, workload: str, batch: int) -> list[float]:
    """Microseconds per column between stock and fusion, for each program measured."""
    cases = json.loads((RESULTS / machine / f"{workload}.json").read_text())["cases"]
    found = []
    for case in cases:
        if (case["variant"], case["batch"]) == ("base", batch):
            stock, fused = (case["sides"][s]["net_ms"]["median"] for s in ("stock", "fusion"))
            found.append((stock - fused) * 1e3 / case["columns"])
    return found


@pytest.mark.parametrize("batch", SAVED_US)
def test_the_figures_are_those_of_the_results(batch: int) -> None:
    runs = itertools.product(("epyc", "xeon"), WORKLOADS[batch])
    measured = [one for machine, name in runs for one in _saved_us(machine, name, batch)]
    low, high = SAVED_US[batch]
    assert low <= min(measured) < low + 5
    assert high - 5 < max(measured) <= high


def _column(name: str, form: str | None, function: str = "") -> ColumnReport:
    return ColumnReport(name, function, f"{name}/sums", form is not None, form=form)


def test_columns_of_the_measured_form_are_counted_once() -> None:
    columns = (
        _column("a", "grouped", "f"),
        _column("a", "grouped", "g"),
        _column("b", "grouped"),
        _column("s", "single"),
        _column("c", "split"),
        _column("d", "forward"),
        _column("e", None),
        _column("h", "grouped", "f"),
        _column("h", "split", "g"),
    )
    gain = expected_gain(FusionReport(columns, 9, 9))
    assert gain == Gain(2, (Saving(1, 0.03, 0.09), Saving(256, 0.06, 0.17)))
    assert str(gain).startswith(
        "expected gain: about 0.03 to 0.09 ms of a call at batch 1, 0.06 to 0.17 ms of a call at "
        "batch 256 (2 columns in the graph, "
    )
    assert json.loads(json.dumps(gain.to_dict()))["savings"][0]["batch"] == 1


@pytest.mark.parametrize("form", ["single", "split", "trained", "forward", None])
def test_nothing_is_claimed_of_what_was_not_measured(form: str | None) -> None:
    assert expected_gain(FusionReport((_column("a", form),), 9, 9)) is None
    assert expected_gain(FusionReport()) is None
