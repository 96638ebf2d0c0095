"""Cases in processes of their own, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import runner
from benchmarks.case import Case, Row
from benchmarks.catalog import CASES
from benchmarks.lookups.catalog import HEADLINES

MACHINE = {"machine": {"processor": "one"}, "busy_elsewhere": 0.05}

ONE = Case(
    "one",
    "A case.",
    "tests.benchmarks.test_runner:measure",
    {"rows": 10, "side": ("a", "b"), "headlines": False},
    {"rows": 1},
    {"costly": True},
    {"costly": False},
    processes=2,
)


def measure(rows: int, side: str, headlines: bool, costly: bool) -> Iterator[Row]:
    yield Row({"side": side}, {"rows": rows, "ratio": 1.0}, least={"ratio": 2.0})
    if rows == 7:
        raise RuntimeError("seven")


@pytest.fixture
def processes(monkeypatch):
    """Measures in this process, and lists what was asked for."""
    asked = []

    def worker(case, part, say):
        asked.append(dict(part))
        found, failure = [], ""
        try:
            found += case.rows(part)
        except RuntimeError as error:
            failure = f"exit code 1\n{error}"
        say("done")
        return found, MACHINE, failure

    monkeypatch.setattr(runner, "worker", worker)
    monkeypatch.setitem(CASES, "one", ONE)
    return asked


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["benchmarks", *map(str, words)])
    return command.main()


def test_each_part_gets_its_processes_and_a_case_its_file(processes, monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "run", "one", "--rows", 3, "--out", tmp_path / "out") == 1
    assert [(one["side"], one["costly"]) for one in processes] == [
        ("a", True), ("a", False), ("b", True), ("b", False)
    ]  # fmt: skip
    assert {one["rows"] for one in processes} == {3}
    result = runner.load(tmp_path / "out")["one"]
    assert (result["processes"], result["options"]["rows"]) == (2, 3)
    assert (result["machine"], result["busy_elsewhere"]) == ({"processor": "one"}, 0.05)
    assert [row.key["side"] for row in result["rows"]] == ["a", "b"]
    assert result["rows"][0].least == {"ratio": 2.0}
    assert "| a | 3 | 1, **missed** |" in capsys.readouterr().out


def test_a_quick_run_has_no_bounds(processes, monkeypatch, capsys):
    assert run(monkeypatch, "run", "one", "--quick", "--processes", 1, "--side", "b") == 0
    assert processes == [{"costly": True, "rows": 1, "side": "b", "headlines": False}]
    assert "| b | 1 | 1 |" in capsys.readouterr().out


def test_a_process_that_fails_is_named_and_the_rest_go_on(processes, monkeypatch, capsys):
    assert run(monkeypatch, "run", "one", "--rows", 7, "--quick") == 1
    shown = capsys.readouterr()
    assert [one["side"] for one in processes] == ["a", "a", "b", "b"]
    assert "one, a, process 1 of 2: exit code 1\nseven" in shown.err
    assert "| a | 7 | 1 |" in shown.out


def test_headlines_are_measured_without_being_named(processes, monkeypatch):
    for name in HEADLINES:
        monkeypatch.setitem(CASES, name, ONE)
    assert run(monkeypatch, "run", "--headlines", "--quick") == 0
    assert len(processes) == len(HEADLINES) * 4
    assert all(one["headlines"] for one in processes)


def test_what_is_not_there_is_refused(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "run", "no-such-case") == 2
    assert "no case no-such-case" in capsys.readouterr().err
    assert run(monkeypatch, "report", tmp_path) == 2
    with pytest.raises(SystemExit):
        run(monkeypatch, "run", "pass", "--rows", "3")
    capsys.readouterr()
    assert run(monkeypatch, "run", "image", "--seconds", "1") == 2
    assert capsys.readouterr().err == "image needs --model\n"


def test_the_list_has_all_cases_and_their_options(monkeypatch, capsys):
    assert run(monkeypatch, "list") == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: {case.about}" in shown for name, case in CASES.items())
    assert "--keys 10000000 --batch 4096" in shown


def test_a_process_writes_rows_as_they_come(monkeypatch, tmp_path):
    monkeypatch.setitem(CASES, "one", ONE)
    path = tmp_path / "rows"
    part: dict[str, Any] = {"rows": 7, "side": "a", "headlines": False, "costly": True}
    with pytest.raises(RuntimeError, match="seven"):
        run(monkeypatch, "worker", "one", json.dumps(part), path)
    (line,) = path.read_text().splitlines()
    assert Row(**json.loads(line)) == next(measure(**part))


def test_a_new_process_that_fails_says_why():
    """The one that is measured in a real process here; a wrong option ends it early."""
    found, facts, failure = runner.worker(CASES["pass"], {"nothing": 1}, lambda line: None)
    assert (found, facts) == ([], {})
    assert "unexpected keyword argument 'nothing'" in failure
