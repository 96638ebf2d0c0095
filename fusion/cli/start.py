"""The `fusion` command as a process: its standard files, its signals, its exit status.

TensorFlow writes to standard error while it is imported, before anything can be set. So C++ writes
to nowhere, unless `--verbose` shows all of it.

Nothing is half done before the command begins, and after its end: a signal ends the program at once
until then, and does not disturb what Python does at its end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def start() -> NoReturn:
    """Runs the command line of the process, and ends it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_standard_files()
    if "--verbose" not in sys.argv:
        own = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(own, "w", buffering=1)
    from fusion.cli import main

    status = main()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if status > 128:  # destructors of what was interrupted may fail
        sys.unraisablehook = lambda _: None
    sys.exit(status)


def _open_standard_files() -> None:
    """Opens those that are closed at the start: other files would get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
