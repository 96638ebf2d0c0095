import contextlib
import json
import sys

import pytest

import fusion
from benchmarks import latency, runner
from benchmarks.__main__ import main
from benchmarks.latency import Call, Load, Options
from benchmarks.report import load, render
from tests import zygote


def served(answers="same", times=(2.0, 3.0)):
    """What a process would have measured in two seconds, the second one without a call."""
    return {
        "seconds": [
            {"version": 0, "second": 0, "calls": 200, "p50_ms": times[0], "p99_ms": times[1]},
            {"version": 0, "second": 1, "calls": 0, "p50_ms": None, "p99_ms": None},
        ],
        "answers": answers,
        "busy_elsewhere": 0.5,
    }


def test_calls_count_for_the_second_in_which_they_begin():
    calls = [Call(0.0, 0.001), Call(0.9, 1.5), Call(0.5, 0.003), Call(2.4, 0.002), Call(3.0, 9.0)]
    assert latency.by_second(calls, 3) == [
        {"second": 0, "calls": 3, "p50_ms": 3.0, "p99_ms": pytest.approx(1470.06)},
        {"second": 1, "calls": 0, "p50_ms": None, "p99_ms": None},
        {"second": 2, "calls": 1, "p50_ms": 2.0, "p99_ms": 2.0},
    ]


def test_both_versions_are_served_with_stock_s_answers(monkeypatch):
    """Of 4 columns; the command below and tests/soak/long_models.py have all of them."""
    monkeypatch.setattr(latency, "_COLUMNS", 4)
    check_answers(clients=3)


def check_answers(clients):
    answers = set()
    for side in latency.SIDES:
        done: list[str] = []
        found = latency.measure(Load(side, clients, 1, scale=0.0001), done.append)
        assert done == ["version 1 of 2", "version 2 of 2"]
        assert [one["version"] for one in found["seconds"]] == [0, 1]
        assert all(one["calls"] > 0 for one in found["seconds"])
        answers.add(found["answers"])
    assert len(answers) == 1


def test_a_fused_side_that_is_not_fused_ends_the_run(monkeypatch):
    monkeypatch.setattr(fusion, "fused", lambda **_: contextlib.nullcontext())
    with pytest.raises(RuntimeError, match="0 columns of fusion are fused"):
        latency.measure(Load("fusion", seconds=1, scale=0.0001), lambda line: None)


def test_sides_take_turns_and_their_processes_are_spread():
    asked = []

    def serve(load):
        asked.append((load.clients, load.side))
        return served(times=(float(len(asked)), 9.0))

    found = latency.run(Options((1, 8), processes=2, seconds=2, scale=0.5), serve)
    assert asked == [(clients, side) for clients in (1, 8) for side in ("stock", "fusion") * 2]
    assert [case["clients"] for case in found["latency"]] == [1, 8]
    first, second = found["latency"][0]["sides"]["stock"]
    assert first["p50_ms"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert second["p50_ms"] is None
    assert (found["scale"], found["busy_elsewhere"]["median"]) == (0.5, 0.5)


def test_other_answers_than_stock_s_end_the_run():
    with pytest.raises(RuntimeError, match="not those of stock"):
        latency.run(Options((1,)), lambda load: served(load.side))


def test_the_report_counts_the_seconds_in_which_fusion_is_slower():
    times = {"stock": (2.0, 30.0), "fusion": (1.0, 40.0)}
    facts = latency.run(Options((1,)), lambda load: served(times=times[load.side]))
    result = {"about": latency.ABOUT, "date": "2026-01-02", "machine": {}, "processes": 1, **facts}
    text = render({"latency": result}, [])
    assert "1 client, 200 calls per second:" in text
    assert "| 1 | 0 | 200 | 2 | 30 | 200 | 1 | 40 |" in text
    assert "| 1 | 1 | 0 | - | - | 0 | - | - |" in text
    assert "Of 2 seconds, fusion's p50 is above stock's in 0, p99 in 1." in text


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in this process: (arguments) -> exit code and what it printed."""

    def run(*arguments):
        words = ["benchmarks", "latency", "--out", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        return main(), capsys.readouterr()

    return run


def test_the_command_prints_a_table_and_keeps_the_numbers(tmp_path, monkeypatch, command):
    # That of threads is read when a module is imported, before processes are forked.
    forked = {k: v for k, v in runner._ENVIRONMENT.items() if not k.startswith("OMP_")}
    monkeypatch.setattr(runner, "_ENVIRONMENT", forked)
    with zygote.forking("benchmarks.runner"):
        code, told = command("--clients", "2", "--seconds", "1", "--scale", "0.0001")
    assert code == 0, told.err
    assert "2 clients, as fast as they can:" in told.out
    result = load(tmp_path)["latency"]
    assert result["machine"]["cores"] >= 1
    (case,) = result["latency"]
    assert [len(seconds) for seconds in case["sides"].values()] == [2, 2]
    assert json.loads((tmp_path / "latency.json").read_text()) == result


def test_a_load_without_clients_is_refused(tmp_path, command):
    code, told = command("--clients", "0")
    assert code == 1
    assert told.err.endswith("latency: clients must be positive, got 0\n")
    assert not list(tmp_path.iterdir())


def test_a_process_that_fails_says_why(tmp_path, monkeypatch, command):
    def broken(name, options, say):
        raise runner.WorkerFailed("exit code 1")

    monkeypatch.setattr(runner, "run_worker", broken)
    code, told = command()
    assert code == 1
    assert told.err == "latency: exit code 1\n"
    assert not list(tmp_path.iterdir())
