"""Calling something from several threads, several such things in turn, and what the times say."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

_REST_SECONDS = 0.001

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Load:
    """What clients saw that called at the same time, each as soon as its last call was done.

    Attributes:
        latencies: seconds of each call, of all clients.
        calls_per_s: calls per second of all clients together.
    """

    latencies: tuple[float, ...]
    calls_per_s: float


def run_clients(call: Callable[[], object], clients: int, seconds: float) -> Load:
    """Calls from several threads at once.

    First comes a short rest, for threads that something else left spinning, and one call that is
    not timed, for what it puts into the caches. Each thread calls at least once.

    Args:
        call: what is called.
        clients: how many threads call, at least 1.
        seconds: a thread whose last call ends after so long makes no other.
    """
    time.sleep(_REST_SECONDS)
    call()
    together = threading.Barrier(clients)

    def client() -> list[float]:
        together.wait()
        latencies: list[float] = []
        begun = last = time.perf_counter()
        while not latencies or last - begun < seconds:
            call()
            now = time.perf_counter()
            latencies.append(now - last)
            last = now
        return latencies

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client) for _ in range(clients)]
        results = [future.result() for future in running]
    # Of each client by itself: the others have ended when the last one makes its last call.
    rate = sum(len(latencies) / sum(latencies) for latencies in results)
    return Load(tuple(latency for latencies in results for latency in latencies), rate)


def interleaved(
    runs: Mapping[Key, Callable[[], Result]], rounds: int, seconds: float = 0.0
) -> dict[Key, list[Result]]:
    """Runs everything in turn, round by round; which one begins changes with the round.

    Args:
        runs: by name.
        rounds: how many times each is run, at least; twice as many at most.
        seconds: there are no more than `rounds` when this much time has gone by.

    Returns:
        What they gave, a list per name.
    """
    results: dict[Key, list[Result]] = {name: [] for name in runs}
    names = list(runs)
    start = time.perf_counter()
    for number in range(2 * rounds):
        if number >= rounds and time.perf_counter() - start > seconds:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(runs[name]())
    return results


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and the least and the largest of at least one value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
