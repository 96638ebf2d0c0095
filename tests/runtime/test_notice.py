"""The line that says that kernels are compiled: when it comes, and what it counts."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from fusion.runtime.native.compiling.notice import LOG_LEVEL_VARIABLE, Notice


class Clock:
    """A clock that is moved by hand, with timers that it runs."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timers: list[Timer] = []

    def move(self, seconds: float) -> None:
        self.time += seconds
        for timer in [*self.timers]:
            if timer.due <= self.time + 1e-9:
                self.timers.remove(timer)
                timer.do()

    def timer(self, seconds: float, do: Callable[[], None]) -> Timer:
        return Timer(self, self.time + seconds, do)


class Timer:
    def __init__(self, clock: Clock, due: float, do: Callable[[], None]) -> None:
        self.clock, self.due, self.do, self.daemon = clock, due, do, False

    def start(self) -> None:
        self.clock.timers.append(self)

    def cancel(self) -> None:
        if self in self.clock.timers:
            self.clock.timers.remove(self)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notice(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Notice:
    monkeypatch.delenv(LOG_LEVEL_VARIABLE, raising=False)
    return Notice(lambda: clock.time, clock.timer)


def compiled(notice: Notice, clock: Clock, name: str, seconds: float) -> None:
    with notice.compiling(name):
        clock.move(seconds)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(" in all")[0] for record in caplog.records]


def test_less_than_two_seconds_are_not_worth_a_line(notice, clock, caplog):
    compiled(notice, clock, "a", 1.0)
    compiled(notice, clock, "b", 0.9)
    assert lines(caplog) == []


def test_two_seconds_of_one_kernel_are(notice, clock, caplog):
    with notice.compiling("lookup_kernel_CPU"):
        clock.move(1.9)
        assert lines(caplog) == []
        clock.move(0.1)
        assert lines(caplog) == ["fusion compiles 1 kernel for this processor, about 12 s"]
        clock.move(60)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING  # which Python shows without any setting


def test_two_seconds_of_several_are_with_those_to_come(notice, clock, caplog):
    notice.expect(["a", "b", "lookup_kernel_CPU", "gather_float32_1x16"])
    compiled(notice, clock, "a", 1.2)
    with notice.compiling("b"):
        clock.move(0.8)
    # 1.2 s each of two, 12 and 0.7 s of those to come.
    assert lines(caplog) == ["fusion compiles 4 kernels for this processor, about 15 s"]
    compiled(notice, clock, "lookup_kernel_CPU", 30.0)
    compiled(notice, clock, "gather_float32_1x16", 3.0)
    assert len(caplog.records) == 1


def test_a_slow_machine_is_told_by_what_it_has_compiled(notice, clock, caplog):
    notice.expect(["a", "lookup_kernel_CPU"])
    compiled(notice, clock, "a", 2.4)
    assert lines(caplog) == ["fusion compiles 2 kernels for this processor, about 14 s"]
    notice.expect(["b", "update_float32"])
    compiled(notice, clock, "b", 1.8)  # 1.5 times what is usual
    with notice.compiling("update_float32"):
        clock.move(0.2)
    assert lines(caplog)[1:] == ["fusion compiles 2 kernels for this processor, about 20 s"]


def test_another_line_is_for_what_takes_longer(notice, clock, caplog):
    compiled(notice, clock, "a", 3.0)
    compiled(notice, clock, "b", 2.5)
    assert len(caplog.records) == 1
    compiled(notice, clock, "c", 6.0)
    assert lines(caplog)[1:] == ["fusion compiles 2 kernels for this processor, about 10 s"]


def test_a_while_later_everything_begins_anew(notice, clock, caplog):
    compiled(notice, clock, "a", 1.9)
    clock.move(3600)
    compiled(notice, clock, "b", 1.9)
    assert lines(caplog) == []
    clock.move(3600)
    compiled(notice, clock, "c", 2.0)
    assert lines(caplog) == ["fusion compiles 1 kernel for this processor, about 3 s"]


def test_what_is_found_after_all_is_not_counted_twice(notice, clock, caplog):
    notice.expect(["a", "a", "b"])
    compiled(notice, clock, "a", 0.1)
    compiled(notice, clock, "b", 2.0)
    assert lines(caplog) == ["fusion compiles 2 kernels for this processor, about 3 s"]


@pytest.mark.parametrize(
    ("level", "shown"), [("0", True), ("2", True), ("3", False), ("nonsense", True)]
)
def test_where_tensorflow_is_silent_it_is(notice, clock, caplog, monkeypatch, level, shown):
    monkeypatch.setenv(LOG_LEVEL_VARIABLE, level)
    compiled(notice, clock, "a", 2.0)
    assert bool(lines(caplog)) == shown


def test_an_error_ends_the_wait(notice, clock, caplog):
    with pytest.raises(ValueError, match="broken"), notice.compiling("a"):
        raise ValueError("broken")
    clock.move(60)
    assert lines(caplog) == []
