"""The `fusion` command, run again and again in processes forked from one that knows TensorFlow.

To import TensorFlow takes seconds, and a process that has used it cannot be forked. So a server,
`python -m tests.saved_model.forked`, imports it and forks once for each command that it is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
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
    """The server, seen from another process."""

    def __init__(self, *before: str) -> None:
        """Starts it; `before` are the first words of its command, e.g. those of unshare."""
        self._server = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.saved_model.forked"],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *arguments: object, killed_after: float | None = None, largest_file: int | None = None
    ) -> Run:
        """Runs `fusion` with `arguments`.

        Args:
            arguments: of the command.
            killed_after: seconds after which its process is killed, if it still runs.
            largest_file: a limit for the bytes of each file that it writes.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {
            "arguments": [str(argument) for argument in arguments],
            "killed_after": killed_after,
            "largest_file": largest_file,
        }
        print(json.dumps(order), file=self._server.stdin, flush=True)
        return Run(**json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        """Ends the server."""
        self._server.communicate()


class _Forked:
    """Stands in for a `subprocess.Popen` of `python -m MODULE ...`, without starting Python."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: dict[str, str],
        stdout: Any,
        pass_fds: Sequence[int] = (),
        **_: Any,
    ) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            os.chdir(cwd)
            os.environ.update(env)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            for opened in [int(name) for name in os.listdir("/proc/self/fd")]:
                if opened > 2 and opened not in pass_fds:
                    with contextlib.suppress(OSError):
                        os.close(opened)
            module, *sys.argv[1:] = command[2:]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _serve() -> None:
    import fusion.cli
    import fusion.saved_model.verify.worker  # noqa: F401  (imports TensorFlow)

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        print(json.dumps(asdict(_run(**json.loads(line)))), file=answers, flush=True)


def _run(arguments: list[str], killed_after: float | None, largest_file: int | None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        said, grown = Path(folder, "stderr"), Path(folder, "grown")
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _in_child(arguments, largest_file, said, grown)
        status = _wait(child, start + (LONGEST if killed_after is None else killed_after))
        seconds = time.monotonic() - start
        lines = said.read_text(errors="replace").splitlines() if said.exists() else []
        # Empty, if it was killed between opening and writing it.
        return Run(status, lines, seconds, int(grown.read_text() or 0) if grown.exists() else 0)


def _in_child(arguments: list[str], largest_file: int | None, said: Path, grown: Path) -> NoReturn:
    from fusion.cli import main
    from fusion.saved_model.verify import compare

    status = 1
    try:
        os.setsid()
        with open(said, "wb") as file:
            os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        for module in (compare, sys.modules.get("fusion.saved_model.child")):
            if hasattr(module, "subprocess"):
                module.subprocess.Popen = _Forked  # type: ignore[union-attr]
        before = _status_bytes("VmRSS")
        status = main(arguments)
        peak = _status_bytes("VmHWM")
        if largest_file is None:
            grown.write_text(str(peak - before))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def _wait(child: int, deadline: float) -> int | None:
    """Returns the exit code, or None after ending what still runs at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    # The process alone: what it has started must notice by itself.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    _serve()
