"""Logs that kernels are being compiled, how many, and about how long that takes.

The line comes after two seconds of compiling, once for all kernels that are known by then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol

#: The seconds of compiling after which a line is logged.
SECONDS = 2.0

#: Kernels that were compiled more than so many seconds ago do not count. Until then, more kernels
#: are worth another line if they take so many seconds.
_WAVE_SECONDS, _MORE_SECONDS = 10.0, 5.0

#: The seconds that kernels take, by the first matching prefix of their names (AMD EPYC). On other
#: machines they take more or less in the same proportion.
_TYPICAL = {
    "lookup_kernel": 12.0,
    "keyed_": 6.0,
    "unique_kernel": 3.0,
    "update_kernel": 10.0,
    "update_": 12.0,
    "build_update": 8.0,
    "build_": 4.0,
    "Fused": 4.0,
    "gather_": 0.7,
    "scatter_": 0.7,
    "": 1.2,
}

#: With this level of its log TensorFlow says nothing but why it ends the process.
LOG_LEVEL_VARIABLE, _SILENT = "TF_CPP_MIN_LOG_LEVEL", "3"

_logger = logging.getLogger("fusion")


class _Timer(Protocol):
    """A `threading.Timer`."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class Notice:
    """The kernels that a process compiles, and those that have been logged."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        timer: Callable[[float, Callable[[], None]], _Timer] = threading.Timer,
    ) -> None:
        """Makes a notice without kernels.

        Args:
          now: a clock, in seconds.
          timer: calls a function after so many seconds, in another thread.
        """
        self._now, self._timer = now, timer
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._expected: set[str] = set()
        self._starts: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._logged: set[str] = set()
        self._end, self._has_warned = 0.0, False

    def expect(self, names: Iterable[str]) -> None:
        """Adds kernels that will be compiled."""
        with self._lock:
            self._expected |= {*names}

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """A block in which this process compiles a kernel, or waits for another one that does."""
        with self._lock:
            is_logged, now = name in self._logged, self._now()
            if not self._starts and now - self._end > _WAVE_SECONDS:
                self._times.clear()
                self._has_warned = False
            self._starts[name] = now
            passed = self._passed()
        timer = self._timer(max(SECONDS - passed, 0.0), self._warn)
        timer.daemon = True
        if not is_logged:
            with suppress(RuntimeError):  # this process has too many threads, or ends
                timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                self._end = self._now()
                start = self._starts.pop(name, self._end)  # none in a child of a fork
                self._expected.discard(name)
                if name not in self._logged:
                    self._times[name] = self._end - start

    def _passed(self) -> float:
        """The seconds spent on kernels that have not been logged."""
        now = self._now()
        running = (now - start for name, start in self._starts.items() if name not in self._logged)
        return sum(running) + sum(self._times.values())

    def _warn(self) -> None:
        with self._lock:
            if self._passed() < SECONDS:  # logged meanwhile
                return
            running = self._starts.keys() - self._logged
            names = self._times.keys() | running | self._expected - self._logged
            seconds = max(self._estimate(running, names), self._passed() + 1)
            if self._has_warned and seconds < _MORE_SECONDS:
                return
            self._has_warned = True
            self._times.clear()
            self._logged |= names
        if os.environ.get(LOG_LEVEL_VARIABLE) != _SILENT:
            _logger.warning(
                "fusion compiles %d kernel%s for this processor, about %.0f s in all; "
                "docs/cache.md explains how to have them ready",
                *(len(names), "" if len(names) == 1 else "s", seconds),
            )

    def _estimate(self, running: set[str], names: set[str]) -> float:
        """The seconds that kernels take in total, estimated from those that are compiled."""
        times = self._times
        speed = sum(times.values()) / sum(map(_typical, times)) if times else 1.0
        now = self._now()
        spent = {name: now - self._starts[name] for name in running}
        rest = (max(speed * _typical(name), spent.get(name, 0.0)) for name in names - times.keys())
        return sum(times.values()) + sum(rest)


def _typical(name: str) -> float:
    return next(seconds for start, seconds in _TYPICAL.items() if name.startswith(start))


@cache
def notice() -> Notice:
    """The notice of this process."""
    return Notice()
