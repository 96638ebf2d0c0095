"""Signals that end a command: what is half done is cleaned up, and the exit status says which."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds for which a command that cleans up is not disturbed by more signals: one who types Ctrl-C
#: twice, a supervisor that signals each process of a group, and the group.
PATIENCE = 10.0

#: Seconds after which an interrupt is repeated that a destructor or a callback of C has swallowed.
_AGAIN = 0.01


class _Interrupts:
    """What signals do while a command runs."""

    def __init__(self) -> None:
        """No signal came so far."""
        self._number, self._time = 0, -PATIENCE

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if now - self._time >= PATIENCE:
            self._number, self._time = number, now
            raise KeyboardInterrupt(number)

    def interrupt_again(self, number: int, frame: FrameType | None) -> None:
        """Handles the alarm."""
        raise KeyboardInterrupt(self._number)

    def unraisable(self, failure: Any) -> None:
        """Receives exceptions that Python could not raise; ignores them once interrupted."""
        if isinstance(failure.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        elif not self._number:
            sys.__unraisablehook__(failure)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A block in which a signal raises KeyboardInterrupt, with its number as argument.

    That is no class of its own: after any other exception `subprocess` waits for children.
    Signals that the starter of the program has ignored, as nohup does, stay so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts()
    handlers: dict[int, Any] = {
        number: interrupts.interrupt
        for number in ENDING
        if signal.getsignal(number) != signal.SIG_IGN
    }
    handlers[signal.SIGALRM] = interrupts.interrupt_again
    before = {number: signal.getsignal(number) for number in handlers}
    hook, sys.unraisablehook = sys.unraisablehook, interrupts.unraisable
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    except KeyboardInterrupt as error:
        traceback.clear_frames(error.__traceback__)  # destructors fail while the hook is there
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


@contextmanager
def ended_at_once() -> Iterator[None]:
    """A block of `ended_by_signals` in which a signal ends the program, as nothing is half done."""
    ours = {number: signal.getsignal(number) for number in ENDING}
    own = threading.current_thread() is threading.main_thread()
    replaced = {n: handler for n, handler in ours.items() if own and callable(handler)}
    try:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def exit_status(error: BaseException) -> int:
    """The exit status of a program that a signal has ended, as a shell has it: 130 for Ctrl-C."""
    number = error.args[0] if error.args else signal.SIGINT
    return 128 + int(number)


def message(error: BaseException) -> str:
    """What an interrupted command says."""
    return "interrupted" if exit_status(error) == 128 + signal.SIGINT else "terminated"
