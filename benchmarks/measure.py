"""Timing calls in turns, what their times say, and the memory of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

_BLOCK_SECONDS = 0.002
_MAX_CALLS = 50
_REST_SECONDS = 0.001
#: Rounds of calls in turns: how many are not counted, and how many are at least.
_FIRST_ROUNDS, _MIN_ROUNDS = 2, 5
_PAGE = 4096

Call = Callable[[], object]

Timer = Callable[[], float]
"""Runs something and says how many seconds that took."""

Key = TypeVar("Key", bound=Hashable)


def single(call: Call) -> Timer:
    """What times one call."""

    def timer() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return timer


def block(call: Call) -> Timer:
    """What times a call: the mean over a block of calls that takes some milliseconds.

    A call that takes that long is a block. Before each block comes a short rest, for threads that
    another side left spinning, and one call that is not timed, for what it put into the caches.
    """
    call()
    call()
    size = max(1, min(_MAX_CALLS, int(_BLOCK_SECONDS / single(call)())))

    def timer() -> float:
        time.sleep(_REST_SECONDS)
        call()
        start = time.perf_counter()
        for _ in range(size):
            call()
        return (time.perf_counter() - start) / size

    return timer


def in_turns(
    timers: Mapping[Key, Timer], seconds: float, rounds: int = _MIN_ROUNDS
) -> dict[Key, list[float]]:
    """Seconds that each call took in each round: they take turns until a time is over.

    The first rounds are left out; so many are not, however long they take. Which call begins
    changes with the round.
    """
    times: dict[Key, list[float]] = {name: [] for name in timers}
    names, number, end = [*timers], 0, time.perf_counter() + seconds
    while number < rounds + _FIRST_ROUNDS or time.perf_counter() < end:
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timers[name]())
        number += 1
    return {name: found[_FIRST_ROUNDS:] for name, found in times.items()}


def calls_in_turns(calls: Mapping[Key, Call], seconds: float) -> dict[Key, list[float]]:
    """`in_turns` of single calls."""
    return in_turns({name: single(call) for name, call in calls.items()}, seconds)


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median, and the quartiles as "low" and "high"."""
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "low": low, "high": high}


def milliseconds(times: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles of times in seconds."""
    return quartiles([1e3 * one for one in times])


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile of times in seconds."""
    p50, p99 = np.percentile(times, [50, 99]).tolist()
    return {"p50, ms": 1e3 * p50, "p99, ms": 1e3 * p99}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The quartiles of one side's times over another's, round by round."""
    return quartiles([one / other for one, other in zip(above, below, strict=True)])


def on_each(call: Callable[[Any], object], arguments: Iterable[Any]) -> Call:
    """A function that calls another one with one argument after the other, again and again."""
    turns = cycle(arguments)
    return lambda: call(next(turns))


def memory(field: str, process: int | str = "self") -> int:
    """Bytes of a process by the name of a field: "VmRSS", "VmHWM" (the peak), "Rss", "Pss"."""
    file = "status" if field.startswith("Vm") else "smaps_rollup"
    lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith(f"{field}:"))
    return int(line.split()[1]) << 10


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and how many bytes more than before the process had in it."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    result = call()
    return result, max(memory("VmHWM") - before, _PAGE)
