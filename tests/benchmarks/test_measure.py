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


def test_a_summary_has_the_quartiles_in_milliseconds():
    assert measure.summary([0.004, 0.001, 0.002, 0.003, 0.1]) == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "runs": 5,
    }
    assert measure.summary([0.001])["low"] == 1.0
