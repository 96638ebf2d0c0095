"""The `fusion` command, run again and again in processes forked from one that knows TensorFlow.

Such a process runs `python -m tests.saved_model.forked FILE BYTES ...`; see tests/zygote.py.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests import zygote

LONGEST = 60.0
_DATA = 8 << 30  # bytes of memory, so that a defect cannot take the machine down


@dataclass(frozen=True)
class Run:
    """How a command ended.

    Attributes:
        status: the exit status; negative for a signal, None if it took too long and was ended.
        lines: what it said on standard error.
        seconds: how long it took.
        grown: by how many bytes the memory of its process grew.
    """

    status: int | None
    lines: list[str]
    seconds: float
    grown: int


class Tool:
    """Runs the command."""

    def __init__(self, *before: str) -> None:
        """Starts a server; `before` are the first words of its command, e.g. those of unshare."""
        self._server = zygote.Server(*before)

    def __call__(
        self, *arguments: object, killed_after: float | None = None, largest_file: int | None = None
    ) -> Run:
        """Runs `fusion` with `arguments`.

        Args:
            arguments: of the command.
            killed_after: seconds after which its process is killed, if it still runs.
            largest_file: a limit for the bytes of each file that it writes.
        """
        with tempfile.TemporaryDirectory() as folder:
            stderr, grown = Path(folder, "stderr"), Path(folder, "grown")
            program = [sys.executable, "-m", "tests.saved_model.forked"]
            limits = [str(grown), str(largest_file or 0)]
            start = time.monotonic()
            with open(stderr, "wb") as file:
                process = zygote.Popen(
                    [*program, *limits, *map(str, arguments)],
                    cwd=zygote.ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                    server=self._server,
                )
            status = _wait(process, LONGEST if killed_after is None else killed_after)
            seconds = time.monotonic() - start
            lines = stderr.read_text(errors="replace").splitlines()
            # Empty, if it was killed between opening and writing it.
            bytes_ = int(grown.read_text() or 0) if grown.exists() else 0
        return Run(status, lines, seconds, bytes_)

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


def _wait(process: zygote.Popen, seconds: float) -> int | None:
    """Returns the exit code, or None after ending what still runs at the deadline."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        # The process alone: what it has started must notice by itself.
        process.kill()
        process.wait()
        return None


def _run(grown: Path, largest_file: int, arguments: list[str]) -> int:
    from fusion.cli import main

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    before = _status_bytes("VmRSS")
    status = main(arguments)
    peak = _status_bytes("VmHWM")
    if not largest_file:
        grown.write_text(str(peak - before))
    return status


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
