import itertools
import time

import numpy as np
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

    calls = {"one": lambda: call("one", 0.02), "other": lambda: call("other", 0.03)}
    times = measure.calls_in_turns(calls, seconds)
    assert order[:4] == ["one", "other", "other", "one"]
    assert len(order) == 2 * rounds
    # The first two rounds are left out.
    assert times["one"] == pytest.approx([0.02] * (rounds - 2))
    assert times["other"] == pytest.approx([0.03] * (rounds - 2))


def test_times_have_quartiles_and_percentiles_in_milliseconds():
    times = [0.004, 0.001, 0.002, 0.003, 0.1]
    assert measure.milliseconds(times) == {"median": 3.0, "low": 2.0, "high": 4.0}
    found = measure.percentiles(times)
    assert found == {"p50, ms": 3.0, "p99, ms": pytest.approx(96.16)}
    assert measure.ratios([2.0, 3.0], [1.0, 1.0])["median"] == 2.5


def test_arguments_come_again_and_again():
    got: list[int] = []
    call = measure.on_each(got.append, [1, 2])
    for _ in range(3):
        call()
    assert got == [1, 2, 1]


def test_a_peak_counts_what_is_freed():
    size = 64 << 20
    result, grown = measure.peak(lambda: float(np.ones(size, np.uint8)[0]))
    assert result == 1.0
    assert size * 0.9 < grown < size * 2
