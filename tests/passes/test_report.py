"""Reports for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

from fusion.passes.graph.tensor import Tensor
from fusion.passes.report.report import ColumnReport, FusionReport
from tests.specs import SPEC

FUSED = ColumnReport("table", "", "lookup", fused=True, spec=SPEC, explained=("mean", "table"))
STOCK = ColumnReport(
    "other", "f", "sums", fused=False, reason="weighted", node="mul", tables=(Tensor("t", 1),)
)


def test_counts_and_text() -> None:
    report = FusionReport((FUSED, STOCK), 100, 60)
    assert report.fused_count == 1
    assert str(report).splitlines() == [
        "1 of 2 columns fused, 100 -> 60 nodes",
        "  fused  table",
        "  stock  f: other",
        "         weighted",
        "         at mul",
    ]
    assert str(FusionReport((), 7, 7)) == "0 of 0 columns fused, 7 nodes"


def test_a_column_whose_forward_alone_is_fused_says_why() -> None:
    column = replace(FUSED, reason="others read sums", node="sums", form="forward", op="out")
    assert str(FusionReport((column,), 9, 7)).splitlines() == [
        "1 of 1 columns fused, 9 -> 7 nodes",
        "  fused  table",
        "         forward alone: others read sums",
        "         at sums",
    ]
    assert str(column).splitlines()[4:7] == [
        "  forward alone  others read sums",
        "  at node  sums",
        "  form     forward in out",
    ]


def test_long_names_do_not_move_what_is_said_about_other_columns() -> None:
    far = replace(STOCK, name="scope/" * 40 + "weights", node="scope/" * 40 + "mul")
    lines = str(FusionReport((STOCK, far, FUSED), 1, 1)).splitlines()
    assert [len(line) < 40 for line in lines] == [True, True, True, True, False, True, False, True]


def test_a_fused_column_in_full() -> None:
    lines = str(FUSED).splitlines()
    assert lines[:4] == ["fused table", "  explained", "    1. mean", "    2. table"]
    assert lines[4:] == [f"  {line}" for line in str(SPEC).splitlines()]


def test_a_column_that_stays_in_full() -> None:
    partial = replace(
        STOCK,
        anchor="a/b/sums",
        explained=("mean (a/b/sums)", "ids are xa/b/c"),
        node="a/b/mul",
        reason="weighted by a/b/w:1",
    )
    assert str(partial).splitlines() == [
        "stock other",
        "  ~ is a/b",
        "  in function f",
        "  explained",
        "    1. mean (~/sums)",
        "    2. ids are xa/b/c",
        "  why not  weighted by ~/w:1",
        "  at node  ~/mul",
    ]


def test_the_dict_is_ready_for_json() -> None:
    found = json.loads(json.dumps(FusionReport((FUSED, STOCK), 100, 60).to_dict()))
    assert (found["fused"], found["total"], found["nodes_after"]) == (1, 2, 60)
    fused, stock = found["columns"]
    assert stock == {
        "name": "other",
        "function": "f",
        "anchor": "sums",
        "fused": False,
        "reason": "weighted",
        "node": "mul",
        "table": None,
        "combiner": None,
        "ids": None,
        "weighted": None,
        "spec": None,
        "explained": [],
        "tables": ["t:1"],
        "form": None,
        "op": None,
        "fused_before": False,
        "served": True,
    }
    assert found["others"] == []
    assert fused["reason"] is None
    assert fused["spec"].startswith("lookup anchor\n")
    assert fused["explained"] == ["mean", "table"]
    described = [fused[key] for key in ("table", "combiner", "ids", "weighted")]
    assert described == ["float[40, 8]", "mean", "sparse int64 v", False]


def test_merging_adds_up() -> None:
    merged = FusionReport.merge([FusionReport((FUSED,), 10, 5), FusionReport((STOCK,), 7, 7)])
    assert merged == FusionReport((FUSED, STOCK), 17, 12)
    assert FusionReport.merge([]) == FusionReport()
