import itertools
import time

import pytest

from benchmarks import measure


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


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 7), (0.49, 10)])
def test_calls_take_turns_until_a_time_is_over(monkeypatch, seconds, rounds):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    order: list[str] = []

    def call(name: str, takes: float) -> None:
        order.append(name)
        now[0] += takes

    calls = (lambda: call("one", 0.02), lambda: call("other", 0.03))
    one, other = measure.in_turns(calls, seconds)
    assert order == ["one", "other"] * rounds
    # The first two rounds are left out.
    assert one == pytest.approx([0.02] * (rounds - 2))
    assert other == pytest.approx([0.03] * (rounds - 2))


def test_a_summary_has_the_quartiles_in_milliseconds():
    assert measure.summary([0.004, 0.001, 0.002, 0.003, 0.1]) == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "runs": 5,
    }
    assert measure.summary([0.001])["low"] == 1.0
