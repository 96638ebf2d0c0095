"""Programs in several processes, which are the workers of one strategy."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.distributed.cluster import tasks
from tests import zygote

ROOT = Path(__file__).parents[2]


def run(
    module: str,
    arguments: list[str],
    workers: int = 1,
    seconds: int = 150,
    start: Callable[..., Any] = zygote.start,
) -> list[str]:
    """What a program prints last, in each of so many workers; one is no worker.

    Args:
      module: the program.
      arguments: of it.
      workers: how many there are.
      seconds: after which all are killed.
      start: makes a process, as `subprocess.Popen` does.
    """
    with ExitStack() as stack:
        started: list[Any] = []
        printed: list[Any] = []
        told: list[Any] = []
        for _, config in tasks({"worker": workers} if workers > 1 else {}):
            for files in (printed, told):
                files.append(stack.enter_context(tempfile.TemporaryFile("w+")))
            process = start(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **config},
                stdout=printed[-1],
                stderr=told[-1],
            )
            started.append(process)
            stack.callback(process.kill)
        end = time.monotonic() + seconds
        # The others may wait for one that has failed.
        while any(process.poll() is None for process in started):
            if any(process.returncode for process in started) or time.monotonic() > end:
                break
            time.sleep(0.1)
        for process, errors in zip(started, told, strict=True):
            errors.seek(0)
            assert process.returncode in (0, None), errors.read()[-4000:]
        assert all(process.returncode == 0 for process in started), f"no end in {seconds} s"
        for output in printed:
            output.seek(0)
        return [output.read().splitlines()[-1] for output in printed]
