"""Shared setup of the child processes that load models; a crash there must not end the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from fusion.printable import printable
from fusion.saved_model.errors import reason_of
from fusion.schema.names import KEY_INDEX, READ_TABLE_FILE, ZEROS_ON_DEMAND

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PARENT_VARIABLE = "FUSION_PARENT"
_TAIL_BYTES = 1 << 14
_REASON = "fusion: this process ends because of: "


def child_environment(scratch: Path) -> dict[str, str]:
    """Returns the child's environment: this very package, no GPU, few log lines.

    Bit equality is promised on the CPU, and a GPU would silently accept ids outside a table.

    Args:
        scratch: a folder that this process removes in the end, for the temporary files of a child,
            which may be killed before it does so itself.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    parent = {_PARENT_VARIABLE: str(os.getpid()), "TMPDIR": str(scratch)}
    return {**os.environ, "PYTHONPATH": path, **quiet, **parent}


def be_a_safe_child() -> None:
    """Dies with the parent, leaves no core dump, and harms itself alone when memory runs out.

    Should that have died while this process started, this one ends now.
    It gets no more than the machine has, so that what a model makes TensorFlow ask for fails there,
    and it is the first to go when there is less.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(_PARENT_VARIABLE)
    if parent is not None and not os.path.exists(f"/proc/{parent}"):
        sys.exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (memory(), soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def child_process(start: Callable[[], subprocess.Popen[Any]]) -> Iterator[subprocess.Popen[Any]]:
    """A block with a process, the leader of its session, at whose end all of that is killed.

    Args:
        start: starts it.
    """
    worker = None
    try:
        with _uninterrupted():  # else an untracked process could stay
            worker = start()
        yield worker
    finally:
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A block at whose end the handlers are called of signals that came meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handled:
            signal.signal(number, lambda *signalled: came.append(signalled))
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for signalled, frame in came:
            handled[signal.Signals(signalled)](signalled, frame)


def allow_to_reserve(ops: Collection[str]) -> None:
    """Lets a model of these ops map more memory than the machine has, if it does not use it all.

    Embedding variables do, whose pages are there on demand, and tables that are files.
    """
    if {KEY_INDEX, ZEROS_ON_DEMAND, READ_TABLE_FILE}.intersection(ops):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def memory() -> int:
    """Returns the bytes of memory that the machine has, swap included."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kibibytes = {key: int(rest.split()[0]) for key, _, rest in (x.partition(":") for x in lines)}
    return 1024 * (kibibytes["MemTotal"] + kibibytes["SwapTotal"])


def report_error(error: BaseException) -> None:
    """Writes to a child's log why it ends, for `error_text` to find."""
    traceback.print_exception(error)
    print(f"{_REASON}{reason_of(error)}", file=sys.stderr, flush=True)


def error_text(log: Path) -> str:
    """Returns why a child ended: what `report_error` wrote to its log, else the last line."""
    with open(log, "rb") as file:
        with contextlib.suppress(OSError):
            file.seek(-_TAIL_BYTES, os.SEEK_END)
        lines = [line.strip() for line in file.read().decode(errors="replace").split("\n")]
    reasons = [line for line in lines if line.startswith(_REASON)]
    last = (reasons or [line for line in lines if line] or ["no message"])[-1]
    return printable(last.removeprefix(_REASON))
