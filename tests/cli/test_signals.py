"""Ctrl-C and SIGTERM: nothing half done is left, and no trace is shown."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusion.cli import signals
from fusion.cli.signals import ended_by_signals, exit_status, message
from tests import zygote
from tests.cli.interrupted import command_in, interrupt, interrupt_often


def test_commands_end_at_random_moments_and_leave_nothing(models: Path, tmp_path: Path) -> None:
    """Few of what tests/soak/long_commands.py does for all commands."""
    command = ["rewrite", "--no-verify", models / "tf2", "OUT/dst"]
    assert interrupt_often(command, tmp_path, 3) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_is_quiet(tmp_path: Path, number: int) -> None:
    """A process of its own: a fork has imported all that takes time."""
    assert interrupt(["doctor"], 0, number, tmp_path, subprocess.Popen) == []


@pytest.mark.parametrize(
    ("number", "status", "says"), [(signal.SIGINT, 130, "interrupted"), (15, 143, "terminated")]
)
def test_the_signal_is_told(number: int, status: int, says: str) -> None:
    with pytest.raises(KeyboardInterrupt) as raised, ended_by_signals():
        signal.raise_signal(number)
    assert exit_status(raised.value) == status
    assert message(raised.value) == says


def test_an_interrupt_without_a_number_is_that_of_the_keyboard() -> None:
    assert exit_status(KeyboardInterrupt()) == 130


def test_a_second_signal_does_not_disturb_the_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    cleaned: list[bool] = []
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        twice()
    assert cleaned == [True]

    # Much later it counts again: what cleans up may hang.
    monkeypatch.setattr(signals, "PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        twice()
    assert cleaned == [True]


def test_what_a_destructor_swallows_is_raised_again() -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            for _ in range(100):
                pass

    def destroy_and_wait() -> None:
        thing = Interrupted()
        del thing
        signal.pause()

    with pytest.raises(KeyboardInterrupt) as raised, ended_by_signals():
        destroy_and_wait()
    assert exit_status(raised.value) == 130


def test_ignored_signals_stay_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handlers = [signal.getsignal(number) for number in signals.ENDING]
    hook = sys.unraisablehook
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert [signal.getsignal(number) for number in signals.ENDING] == handlers
        assert sys.unraisablehook is hook
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reader_that_goes_away_ends_a_command_quietly(models: Path, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with zygote.start(
        [*command_in(tmp_path), "inspect", models / "keras"],
        cwd=zygote.ROOT,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141
