"""Commands that are ended by signals at some moment, and what they leave."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import zygote

SCRIPT = zygote.ROOT / "fusion" / "cli" / "fusion"
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_LONGEST = 120.0
_MAX_BEHIND = 20.0
"""Seconds for which a process that was started in the last moment may still notice its end."""


def command_in(folder: Path) -> list[str]:
    """The command by the sources' script, which may be newer than an installed one.

    It is copied: Python looks for modules in the folder of a script.
    """
    shutil.copy(SCRIPT, folder / "fusion")
    return [sys.executable, str(folder / "fusion")]


def interrupt(
    arguments: Sequence[object],
    after: float,
    number: int,
    folder: Path,
    start: Any = zygote.start,
    whole: frozenset[Path] = frozenset(),
) -> list[str]:
    """Signals a command; returns what is wrong with its end.

    Args:
        arguments: of `fusion`; what they write is in `folder/out`.
        after: seconds until it is signalled, if it still runs; from when TensorFlow's library is
            mapped on, as before that Python itself may tell of an interrupt.
        number: the signal.
        folder: an empty one.
        start: starts it; by default as a fork.
        whole: what it writes into `folder/out` if it comes to its end.
    """
    for name in ("out", "tmp"):
        (folder / name).mkdir()
    process = start(
        [*command_in(folder), *map(str, arguments)],
        cwd=zygote.ROOT,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_script(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after)
    children = [*_descendants(process.pid)]
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    stderr = process.communicate(timeout=_LONGEST)[1]
    return [
        f"{signal.Signals(number).name} after {after:.3f} s: {problem}"
        for problem in _problems(process.returncode, number, stderr, children, folder, whole)
    ]


def _wait_for_script(process: Any) -> None:
    maps = Path(f"/proc/{process.pid}/maps")
    with contextlib.suppress(OSError):
        while process.poll() is None and b"libtensorflow" not in maps.read_bytes():
            time.sleep(0.01)


def _problems(
    status: int,
    number: int,
    stderr: str,
    children: Sequence[int],
    folder: Path,
    whole: frozenset[Path],
) -> Iterator[str]:
    said = {"", f"fusion: error: {'interrupted' if number == signal.SIGINT else 'terminated'}\n"}
    if status not in (0, 128 + number, -number):
        yield f"status {status}"
    if stderr not in said:
        yield f"it said {stderr}"
    if left := os.listdir(folder / "tmp"):
        yield f"left {left} in the folder of temporary files"
    written = files_in(folder / "out")
    if status and written not in (frozenset(), whole):
        yield f"has written {sorted(map(str, written))}"
    deadline = time.monotonic() + _MAX_BEHIND
    while running := [child for child in children if _runs(child)]:
        if time.monotonic() > deadline:
            yield f"left the processes {running}"
            return
        time.sleep(0.05)


def files_in(folder: Path) -> frozenset[Path]:
    """The files and folders below a folder."""
    return frozenset(path.relative_to(folder) for path in folder.rglob("*"))


def _descendants(process: int) -> Iterator[int]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += (task / "children").read_text().split()
    for child in map(int, found):
        yield child
        yield from _descendants(child)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupt_often(
    arguments: Sequence[object], folder: Path, count: int, start: Any = zygote.start
) -> list[str]:
    """Lets a command end once, and then signals it at so many random moments.

    Args:
        arguments: of `fusion`, in which "OUT" stands for the folder of what it writes.
        folder: an empty one.
        count: how often.
        start: see `interrupt`.

    Returns:
        What was wrong.
    """

    def placed(where: Path) -> list[str]:
        return [str(argument).replace("OUT", str(where / "out")) for argument in arguments]

    rng, wrong = random.Random(count), []
    begun = time.monotonic()
    (folder / "whole").mkdir()
    wrong += interrupt(placed(folder / "whole"), _LONGEST, signal.SIGTERM, folder / "whole", start)
    longest, expected = time.monotonic() - begun, files_in(folder / "whole" / "out")
    for index in range(count):
        own = folder / str(index)
        own.mkdir()
        after, number = rng.uniform(0, 1.05 * longest), SIGNALS[index % len(SIGNALS)]
        wrong += interrupt(placed(own), after, number, own, start, expected)
    return wrong
