"""`--require`: releases that need columns fused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fusion.cli import main
from fusion.cli.require import Requirement, TooFewColumnsError
from fusion.passes.report.report import ColumnReport, FusionReport

Capture = pytest.CaptureFixture[str]


def report(fused: int, stock: int, already: int = 0) -> FusionReport:
    return FusionReport(
        tuple(
            ColumnReport(
                f"{kind}{i}", "", f"{kind}{i}", kind == "fused", fused_before=kind == "old"
            )
            for kind, count in (("fused", fused), ("stock", stock), ("old", already))
            for i in range(count)
        )
    )


@pytest.mark.parametrize(
    ("text", "fused", "stock"),
    [("0", 0, 0), ("2", 2, 5), ("all", 3, 0), ("90%", 9, 1), ("67%", 7, 3), ("0%", 1, 9)],
)
def test_enough(text: str, fused: int, stock: int) -> None:
    Requirement(text).check(report(fused, stock), "fused", {})


@pytest.mark.parametrize(
    ("text", "fused", "stock", "message"),
    [
        ("3", 2, 1, "--require 3: 2 of 3 columns fused; not stock0"),
        ("3", 2, 0, "--require 3: 2 of 2 columns fused"),
        ("all", 1, 2, "--require all: 1 of 3 columns fused; not stock0, stock1"),
        ("all", 0, 0, "--require all: 0 of 0 columns fused"),
        ("67%", 2, 1, "--require 67%: 2 of 3 columns fused; not stock0"),
        ("100%", 0, 0, "--require 100%: 0 of 0 columns fused"),
    ],
)
def test_too_few(text: str, fused: int, stock: int, message: str) -> None:
    with pytest.raises(TooFewColumnsError) as raised:
        Requirement(text).check(report(fused, stock), "fused", {"a": 1})
    assert (str(raised.value), raised.value.fields) == (message, {"a": 1})


def test_lookups_that_no_signature_runs_do_not_count() -> None:
    others = FusionReport(report(2, 0).columns, others=report(0, 4).columns)
    Requirement("all").check(others, "fused", {})
    with pytest.raises(TooFewColumnsError, match=r"2 of 2 columns fused$"):
        Requirement("3").check(others, "fused", {})


def test_many_names_are_cut() -> None:
    with pytest.raises(TooFewColumnsError, match=r"stock19 and 280 more$"):
        Requirement("all").check(report(0, 300), "fused", {})


def test_what_is_fused_already_counts() -> None:
    Requirement("all").check(report(1, 0, already=2), "fused", {})


@pytest.mark.parametrize("text", ["-1", "1.5", "101%", "%", "some", ""])
def test_what_is_no_requirement(text: str, models: Path, capsys: Capture) -> None:
    assert main(["inspect", str(models / "tf2"), f"--require={text}"]) == 2
    assert "is none of a number, a share as 90%, or all" in capsys.readouterr().err


def test_inspect(models: Path, capsys: Capture) -> None:
    model = str(models / "tf2")
    assert main(["inspect", model, "--require", "2"]) == 0
    whole = capsys.readouterr().out
    assert main(["inspect", model, "--require", "3"]) == 1
    captured = capsys.readouterr()
    message = "--require 3: 2 of 2 columns can be fused"
    assert (captured.out, captured.err) == (whole, f"fusion: error: {message}\n")
    assert main(["inspect", model, "--require", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["error"], found["fused"]) == (1, message, 2)


def test_rewrite_writes_nothing(models: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["rewrite", "--no-verify", str(models / "tf2"), str(tmp_path / "dst")]
    for target, verb in (("fused", "fused"), ("stock", "made of fewer stock ops")):
        assert main([*arguments, "--target", target, "--require", "3"]) == 1
        message = f"--require 3: 2 of 2 columns {verb}, nothing written"
        assert capsys.readouterr() == ("", f"fusion: error: {message}\n")
        assert os.listdir(tmp_path) == []
    assert main([*arguments, "--require", "all"]) == 0
    assert os.listdir(tmp_path) == ["dst"]
