import itertools
import time

import pytest

from benchmarks import measure


def test_who_begins_changes_with_the_round():
    order = []

    def timer(name):
        def run():
            order.append(name)
            return 1.0

        return run

    times = measure.interleaved({name: timer(name) for name in "abc"}, rounds=3, seconds=0)
    assert "".join(order) == "abcbcacab"
    assert times == {name: [1.0] * 3 for name in "abc"}


def test_rounds_go_on_until_the_time_is_up_and_no_longer_than_twice():
    assert len(measure.interleaved({"a": lambda: 0.0}, rounds=4, seconds=60)["a"]) == 8


def test_a_block_times_each_call_of_many(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * 0.0005)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    calls: list[int] = []
    timer = measure.block(lambda: calls.append(1))
    calls.clear()
    # A call takes half a millisecond by this clock: a block is four calls, after one untimed.
    assert timer() == pytest.approx(0.0005 / 4)
    assert len(calls) == 5


def test_a_summary_has_the_quartiles_in_milliseconds():
    assert measure.summary([0.004, 0.001, 0.002, 0.003, 0.1]) == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "runs": 5,
    }
    assert measure.summary([0.001])["low"] == 1.0


def test_the_spread_over_processes():
    assert measure.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}
