"""Timing several calls side by side, and what the times say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

_BLOCK_SECONDS = 0.002
_MAX_CALLS = 50
_REST_SECONDS = 0.001

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


def interleaved(timers: Mapping[str, Timer], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Runs every timer in turn, round by round; which one begins changes with the round.

    Args:
        timers: by name.
        rounds: how many times each is run, at least; twice as many at most.
        seconds: there are no more than `rounds` when this much time has gone by.

    Returns:
        What they gave, a list per name.
    """
    times: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    start = time.perf_counter()
    for number in range(2 * rounds):
        if number >= rounds and time.perf_counter() - start > seconds:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timers[name]())
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    """Milliseconds: the median and the quartiles, of at least one time in seconds."""
    ordered = sorted(times)
    low, middle, high = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    )
    return {"median": middle * 1e3, "low": low * 1e3, "high": high * 1e3, "runs": len(ordered)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median over processes, and the least and the largest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
