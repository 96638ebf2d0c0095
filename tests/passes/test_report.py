"""Reports for people and for programs."""

from __future__ import annotations

import json

from fusion.passes.report import ColumnReport, FusionReport, FusionResult
from tests.specs import SPEC

FUSED = ColumnReport("table", "", "lookup", fused=True, spec=SPEC)
STOCK = ColumnReport("other", "f", "sums", fused=False, reason="weighted", node="mul")


def test_counts_and_text() -> None:
    report = FusionReport((FUSED, STOCK), 100, 60)
    assert report.fused_count == 1
    lines = str(report).splitlines()
    assert lines[0] == "1 of 2 columns fused, 100 -> 60 nodes"
    assert lines[1].split() == ["table", "fused"]
    assert lines[2].split() == ["f:", "other", "stock", "weighted", "(at", "mul)"]


def test_an_empty_report_is_one_line() -> None:
    assert str(FusionReport()) == "0 of 0 columns fused, 0 -> 0 nodes"


def test_the_dict_is_ready_for_json() -> None:
    found = json.loads(json.dumps(FusionReport((FUSED, STOCK), 100, 60).to_dict()))
    assert (found["fused"], found["total"], found["nodes_after"]) == (1, 2, 60)
    assert found["columns"][1]["reason"] == "weighted"
    assert found["columns"][0]["reason"] is None
    assert found["columns"][0]["spec"].startswith("lookup anchor\n")


def test_merging_adds_up() -> None:
    merged = FusionReport.merge([FusionReport((FUSED,), 10, 5), FusionReport((STOCK,), 7, 7)])
    assert merged == FusionReport((FUSED, STOCK), 17, 12)
    assert FusionReport.merge([]) == FusionReport()


def test_a_result_knows_whether_it_changed_anything() -> None:
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    assert FusionResult(graph_def, FusionReport((FUSED,))).modified
    assert not FusionResult(graph_def, FusionReport((STOCK,))).modified
