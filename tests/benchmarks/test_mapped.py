"""The report on tables in files."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.mapped import report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "epyc" / "mapped.json"


def test_report() -> None:
    lines = report(json.loads(RESULTS.read_text())).splitlines()
    (chosen,) = (line for line in lines if line.startswith("| half, as chosen"))
    assert [cell.strip() for cell in chosen.split("|")[2:4]] == ["page by page", "417"]
