"""Worker processes that compile kernels, so that this process never loads the compiler.

Numba and LLVM take memory that a serving process would never release. A worker is started with the
first kernel that has to be compiled, compiles one after the other, and is ended when it has been
idle for a while. If none can be started, or it dies, this process compiles for itself.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fusion.runtime.cache import processor
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling import worker

#: The seconds without a kernel to compile after which a worker is ended.
IDLE_SECONDS = 10.0
#: The seconds within which it has to begin.
_START_SECONDS = 60.0

#: The maximum number of workers, a quarter of a gigabyte each.
PROCESS_COUNT = min(len(os.sched_getaffinity(0)), 4)

_PACKAGE = Path(__file__).resolve().parents[3]
_logger = logging.getLogger("fusion")


class RemoteError(Exception):
    """The traceback of an error in the worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Unusable(Exception):
    """A worker cannot be used; the message says why."""


@contextmanager
def _no_sigpipe() -> Iterator[None]:
    """A block in which writing to a process that has ended is an error and no signal.

    Programs that end on SIGPIPE, as many commands do, must not end by that.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CompileProcess:
    """A worker process, started when it is needed."""

    def __init__(self, is_idle_work: bool = False) -> None:
        """Makes one; the process is started by the first compilation.

        Args:
          is_idle_work: whether it gets idle processor time only.
        """
        self._is_idle_work = is_idle_work
        self._renew()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end_at_exit)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._works = True
        self._last_use = 0.0

    def _forget(self) -> None:
        """Resets the state in a child of a fork, which has no worker yet."""
        if self._process is not None:
            self._process.returncode = 0  # it is no child of this one, which cannot wait for it
        if self._connection is not None:
            self._connection.close()
        self._renew()

    def compiled(self, compilation: Compilation) -> tuple[bytes, float] | None:
        """The object file, and the seconds that it took; None if this process has to compile it.

        Raises:
          Exception: the compiler's; its cause has the worker's traceback.
        """
        if not self._works or not compilation.module.startswith("fusion."):
            return None
        try:
            request = pickle.dumps((processor.target(), compilation))
        except (pickle.PicklingError, AttributeError, TypeError):  # an op of another package
            return None
        with self._lock:
            try:
                answer = self._ask(request)
            except (OSError, EOFError, _Unusable) as error:
                self._end()
                if isinstance(error, TimeoutError):  # of a handler of signals: nothing here has one
                    raise
                self._works = False
                _logger.info("kernels are compiled in this process: %s", error or "the other died")
                return None
            except BaseException:
                # An interrupt: an answer that came later would be taken for another.
                self._end()
                raise
        outcome, result, detail = answer
        if outcome == "error":
            raise result from RemoteError(detail)
        return None if outcome == "foreign" else (result, detail)

    def _ask(self, request: bytes) -> tuple[str, Any, Any]:
        connection = self._connection or self._start()
        with _no_sigpipe():
            connection.send_bytes(request)
        answer: tuple[str, Any, Any] = pickle.loads(connection.recv_bytes())
        self._last_use = time.monotonic()
        return answer

    def _start(self) -> Connection:
        """Starts the process.

        Raises:
          OSError, EOFError, _Unusable: it cannot be started.
        """
        executable = os.fsdecode(multiprocessing.spawn.get_executable() or "")
        if not Path(executable).name.startswith("python"):
            raise _Unusable(f"{executable!r} is no Python")  # this one is part of a program
        ours, theirs = multiprocessing.Pipe()
        self._connection = ours
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [executable, "-I", str(worker.__file__), str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
            )
        if self._is_idle_work:
            with suppress(OSError):
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))
        config = worker.WorkerConfig(
            sys.path, str(_PACKAGE), sys.pycache_prefix, sys.dont_write_bytecode
        )
        with _no_sigpipe():
            ours.send_bytes(pickle.dumps(tuple(config)))
        if not ours.poll(_START_SECONDS):
            raise _Unusable("the other process does not begin")
        ours.recv_bytes()
        try:
            threading.Thread(target=self._end_when_idle, args=(ours,), daemon=True).start()
        except RuntimeError as error:  # this process has too many, or ends
            raise _Unusable(str(error)) from error
        return ours

    def _end_when_idle(self, connection: Connection) -> None:
        """Ends the process of a connection when it is idle, unless it has ended before."""
        while True:
            time.sleep(IDLE_SECONDS / 4)
            with self._lock:
                if self._connection is not connection:
                    return
                if time.monotonic() - self._last_use >= IDLE_SECONDS:
                    self._end()
                    return

    def _end_at_exit(self) -> None:
        if self._lock.acquire(blocking=False):
            self._end()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            with suppress(ChildProcessError):
                self._process.wait()
        self._process = self._connection = None


class CompileProcesses:
    """Several workers, started only if several threads compile at the same time."""

    def __init__(self) -> None:
        """Makes it without workers."""
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._free = threading.Semaphore(PROCESS_COUNT)
        self._idle: list[CompileProcess] = []

    def compiled(self, compilation: Compilation) -> tuple[bytes, float] | None:
        """As `CompileProcess.compiled`."""
        with self._free:
            process = self._idle.pop() if self._idle else CompileProcess()
            try:
                return process.compiled(compilation)
            finally:
                self._idle.append(process)


@cache
def compile_processes() -> CompileProcesses:
    """The workers that compile what this process waits for."""
    return CompileProcesses()
