from __future__ import annotations

import threading
import time

import pytest

from fusion.saved_model.bench import timing


def test_who_begins_changes_with_the_round():
    order = []

    def timer(name):
        def run():
            order.append(name)
            return 1.0

        return run

    times = timing.interleaved({name: timer(name) for name in "abc"}, rounds=3, seconds=0)
    assert "".join(order) == "abcbcacab"
    assert times == {name: [1.0] * 3 for name in "abc"}


def test_rounds_go_on_until_the_time_is_up_and_no_longer_than_twice():
    assert len(timing.interleaved({"a": lambda: 0.0}, rounds=4, seconds=60)["a"]) == 8


def test_the_spread_over_processes():
    assert timing.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_each_client_calls_at_least_once_after_a_call_that_is_not_timed() -> None:
    callers: list[int] = []

    def call() -> None:
        callers.append(threading.get_ident())

    load = timing.run_clients(call, clients=3, seconds=0.0)
    first, *others = callers
    assert first == threading.get_ident()
    assert first not in others
    assert len(load.latencies) == len(others) == 3
    assert all(one >= 0 for one in load.latencies)


def test_clients_call_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=30)
    first = threading.get_ident()
    timing.run_clients(
        lambda: None if threading.get_ident() == first else meet.wait(), clients=2, seconds=0.0
    )
    assert not meet.broken


def test_latencies_are_seconds_and_the_rate_is_of_all_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock(threading.local):
        now = 0.0

    clock = Clock()

    def call() -> None:
        clock.now += 0.25

    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    load = timing.run_clients(call, clients=2, seconds=1.0)
    assert load.latencies == (0.25,) * 8
    assert load.calls_per_s == 8.0


def test_what_a_call_raises_is_raised() -> None:
    first = threading.get_ident()

    def call() -> None:
        if threading.get_ident() != first:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        timing.run_clients(call, clients=2, seconds=0.0)
