from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fusion import saved_model
from fusion.cli import main
from fusion.passes.targets import PASSES, Target
from tests import zygote
from tests.saved_model.test_rewrite import WrongPass

ROOT = Path(__file__).parents[2]

COMMAND = str(Path(sys.executable).with_name("fusion"))


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return zygote.run(
        [COMMAND, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in (
        "inspect",
        "rewrite",
        "verify",
        "bench",
        "warm",
        "tables",
        "build-ops",
        "plan",
        "doctor",
    ):
        assert name in text
    assert main(["--version"]) == 0
    assert re.search(r"fusion, version \d", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command; see `fusion --help`"),
        (["rewrite"], "Missing argument 'SRC'; see `fusion rewrite --help`"),
        (["rewrite", "a", "b", "--target", "xla"], "'xla' is not one of 'fused', 'stock'"),
        (["verify", "a", "b", "--timeout", "0"], "--timeout"),
        (["verify", "a", "b", "--timeout", "inf"], "'inf' is not a finite number"),
        (["verify", "a", "b", "--tolerance", "nan"], "'nan' is not a finite number"),
        (["bench", "a", "--seconds", "nan"], "'nan' is not a finite number"),
        (["tables", "compare", "a", "b", "--tolerance", "nan"], "'nan' is not a finite number"),
        (["rewrite", "a", "b", "--table-dtype", "t=int9"], "--table-dtype: 'int9' is not one of"),
        (["completion"], "Choose from: bash, zsh; see `fusion completion --help`"),
        (["tables"], "Missing command; see `fusion tables --help`"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["inspect", "--frobnicate", "m"], "No such option"),
    ],
)
def test_usage_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fusion: error: ")
    assert message in line


@pytest.mark.parametrize("damage", ["absent", "empty folder", "file", "truncated", "a folder"])
@pytest.mark.parametrize("name", ["inspect", "rewrite", "verify", "bench"])
def test_bad_models_are_one_line_and_nothing_is_written(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, name: str
):
    folder = tmp_path / "folder"
    folder.mkdir()
    bad = folder / "bad"
    if damage != "absent":
        if damage == "file":
            bad.write_text("text")
        else:
            bad.mkdir()
    if damage == "truncated":
        (bad / "saved_model.pb").write_bytes((models / "tf2" / "saved_model.pb").read_bytes()[:999])
    if damage == "a folder":
        (bad / "saved_model.pb").mkdir()
    before = sorted(os.listdir(folder))
    others = {"inspect": [], "rewrite": [folder / "dst"], "verify": [models / "tf2"], "bench": []}
    assert main([name, str(bad), *map(str, others[name])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fusion: error: {bad}")
    assert sorted(os.listdir(folder)) == before


def test_a_destination_that_exists_is_one_line(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "dst").mkdir()
    assert main(["rewrite", str(models / "tf2"), str(tmp_path / "dst")]) == 2
    assert "already exists; choose a new path" in capsys.readouterr().err
    assert os.listdir(tmp_path / "dst") == []
    for file in (tmp_path / "dst", tmp_path / "no" / "report.json"):
        arguments = [str(models / "tf2"), str(tmp_path / "new"), "--report", str(file)]
        assert main(["rewrite", *arguments]) == 2
        assert "--report" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["dst"]


def test_a_failed_verification_is_one_line_and_leaves_nothing(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(PASSES, Target.FUSED, WrongPass)
    assert main(["rewrite", str(models / "tf2"), str(tmp_path / "dst")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fusion: error: verification failed, nothing written: signature")
    assert "by at most" in line
    assert os.listdir(tmp_path) == []


def test_the_unexpected_is_one_line_and_verbose_shows_the_trace(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(_: str) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(saved_model, "explain_saved_model", fail)
    assert main(["inspect", str(models / "tf2")]) == 70
    assert capsys.readouterr().err == (
        "fusion: error: internal error, RuntimeError: first second; --verbose shows the trace\n"
    )
    assert main(["inspect", str(models / "tf2"), "--verbose"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("fusion: error: internal error")


def test_an_interrupt_is_one_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model, "explain_saved_model", interrupt)
    assert main(["inspect", str(models / "tf2")]) == 130
    assert capsys.readouterr().err.strip() == "fusion: error: interrupted"


def test_a_termination_during_the_verification_leaves_nothing(models: Path, tmp_path: Path):
    child = subprocess.Popen(
        [COMMAND, "rewrite", str(models / "tf2"), str(tmp_path / "dst")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.glob(".fusion-*.partial/fusion-verify-*/a/stderr.txt")):
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.05)
    child.terminate()
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 143
    assert stderr.strip() == "fusion: error: terminated"
    assert os.listdir(tmp_path) == []
