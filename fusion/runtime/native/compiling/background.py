"""Compiles kernels for this processor in the background, to replace objects of the package.

A process that runs for a while compiles them for later processes, with idle processor time. The
objects that it has loaded itself stay in use.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling.process import CompileProcess

#: The seconds for which a process runs kernels before it compiles for later ones.
DELAY_SECONDS = 30.0

_logger = logging.getLogger("fusion")


class _Work(NamedTuple):
    """An object to compile: the name of its file, its compilation and the processor."""

    file_name: str
    compilation: Compilation
    target: Processor


class _UnableError(Exception):
    """This process cannot compile in the background."""


class BackgroundCompiler:
    """A queue of objects to compile, and a thread that has them compiled one by one."""

    def __init__(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Makes an empty queue.

        Args:
          wait: waits so many seconds.
        """
        self._wait = wait
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, file_name: str, compilation: Compilation) -> None:
        """Queues an object, for the processor that this thread compiles for; see `begin`."""
        self._work.put(_Work(file_name, compilation, processor.target()))

    def begin(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # this process has too many, or ends
                    return

    def _run(self) -> None:
        self._wait(DELAY_SECONDS)
        compiler = CompileProcess(is_idle_work=True)
        files = kernel_cache.default()
        while True:
            work = self._work.get()
            if not files.can_keep():
                return

            def make(work: _Work = work) -> bytes:
                with processor.compiling_for(work.target):
                    result = compiler.compiled(work.compilation)
                if result is None:
                    raise _UnableError
                _logger.info("compiled %s in %.1f s, for later processes", work[0], result[1])
                return result[0]

            try:
                files.get(work.file_name, make)
            except _UnableError:
                return
            except Exception as error:  # the object of the package stays in use
                _logger.info("not compiled in the background: %s: %s", work.file_name, error)


@cache
def background_compiler() -> BackgroundCompiler:
    """The compiler of this process."""
    return BackgroundCompiler()
