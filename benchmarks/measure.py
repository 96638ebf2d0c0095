"""Timing a call, and what the times say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

_BLOCK_SECONDS = 0.002
_MAX_CALLS = 50
_REST_SECONDS = 0.001
#: Rounds of calls in turns: how many are not counted, and how many there are at least.
_FIRST_ROUNDS, _LEAST_ROUNDS = 2, 7

Timer = Callable[[], float]
"""Runs something and says how many seconds that took."""


def block(call: Callable[[], object]) -> Timer:
    """What times a call: the mean over a block of calls that takes some milliseconds.

    A call that takes that long is a block. Before each block comes a short rest, for threads that
    another side left spinning, and one call that is not timed, for what it put into the caches.
    """
    call()
    call()
    start = time.perf_counter()
    call()
    size = max(1, min(_MAX_CALLS, int(_BLOCK_SECONDS / (time.perf_counter() - start))))

    def timer() -> float:
        time.sleep(_REST_SECONDS)
        call()
        start = time.perf_counter()
        for _ in range(size):
            call()
        return (time.perf_counter() - start) / size

    return timer


def in_turns(calls: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds that each call took in each round: they take turns until a time is over.

    The first rounds are left out. However long calls take, some are not.
    """
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < _LEAST_ROUNDS:
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return [found[_FIRST_ROUNDS:] for found in times]


def summary(times: Sequence[float]) -> dict[str, float]:
    """Milliseconds: the median and the quartiles, of at least one time in seconds."""
    ordered = sorted(times)
    low, middle, high = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    )
    return {"median": middle * 1e3, "low": low * 1e3, "high": high * 1e3, "runs": len(ordered)}
