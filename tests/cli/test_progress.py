"""What is said while kernels are compiled."""

from __future__ import annotations

import time

import pytest

from fusion.cli.progress import KernelProgress, kernel_progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which tests set."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_at_the_start_and_each_half_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with kernel_progress() as show:
        for number in range(1, 101):
            show(number, 100, f"kernel_{number}")
            clock[0] += 4.0
    assert capsys.readouterr().err.splitlines()[:3] == [
        "compiling 100 kernels, a second or more for each",
        "9 of 100: kernel_9, about 6 minutes left",
        "17 of 100: kernel_17, about 6 minutes left",
    ]


def test_a_terminal_gets_each_kernel(clock: list[float]) -> None:
    lines: list[str] = []
    show = KernelProgress(lines.append)
    for number in (3, 4, 6):  # others are there
        show(number, 6, "kernel")
        clock[0] += 1.0
    assert lines == [
        "3 of 6: kernel",
        "4 of 6: kernel, about 3 seconds left",
        "6 of 6: kernel, about 1 second left",
    ]


def test_nothing_is_said_if_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    with kernel_progress():
        pass
    assert capsys.readouterr().err == ""
