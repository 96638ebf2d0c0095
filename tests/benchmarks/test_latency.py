import contextlib

import pytest

import fusion
from benchmarks import latency
from benchmarks.case import combined
from benchmarks.latency import Call


def test_calls_count_for_the_second_in_which_they_begin():
    calls = [Call(0.0, 0.001), Call(0.9, 1.5), Call(0.5, 0.003), Call(2.4, 0.002), Call(3.0, 9.0)]
    assert [*latency.by_second(calls, 3)] == [
        {"calls": 3, "p50, ms": 3.0, "p99, ms": pytest.approx(1470.06)},
        {"calls": 0},
        {"calls": 1, "p50, ms": 2.0, "p99, ms": 2.0},
    ]


def test_both_versions_are_served_with_stock_s_answers(monkeypatch):
    """Of 4 columns; tests/soak/long_models.py has all of them."""
    monkeypatch.setattr(latency, "_COLUMNS", 4)
    check_answers(clients=3)


def check_answers(clients):
    rows = [
        row
        for side in ("stock", "fusion")
        for row in latency.measure(side, clients, 1, rate=200.0, scale=0.0001)
    ]
    found = combined(rows)
    assert [row.key["version"] for row in found] == [1, 2]
    for row in found:
        assert row.answers
        assert row.number("stock calls") > 0
        assert row.number("fusion calls") > 0
    assert found[0].answers != found[1].answers


def test_a_fused_side_that_is_not_fused_ends_the_run(monkeypatch):
    monkeypatch.setattr(fusion, "fused", lambda **_: contextlib.nullcontext())
    with pytest.raises(RuntimeError, match="0 of 26 columns are fused"):
        next(latency.measure("fusion", 1, 1, rate=200.0, scale=0.0001))


def test_a_load_without_clients_is_refused():
    with pytest.raises(ValueError, match="clients must be positive, got 0"):
        next(latency.measure("stock", 0, 1, rate=200.0, scale=1.0))
