"""The page has what the benchmark prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.scale import ROWS, report

PAGE = Path(__file__).parents[2] / "docs" / "distribute.md"


def test_the_page_is_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "scale"])
    assert main() == 0
    sent, messages = capsys.readouterr().out.strip().split("\n\n")
    page = PAGE.read_text()
    assert sent in page
    assert messages in page


def test_one_replica_sends_nothing() -> None:
    assert len(ROWS) == 26
    line = report([1], 100, 8, 1.05).splitlines()[2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[4:] == ["0 B"] * 6
