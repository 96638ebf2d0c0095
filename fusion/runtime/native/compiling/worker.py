"""The process that compiles for another one, which starts it with this file as a script.

Requests and answers are pickles on a socket. It ends when the other process does, and after some
time without a request. It has neither TensorFlow nor the public functions of this package: kernels
need neither, and to import TensorFlow takes longer than to compile most of them.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
import types
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

#: The seconds without a request after which it ends.
_MAX_IDLE_SECONDS = 60.0


class WorkerConfig(NamedTuple):
    """Initial configuration that is sent to the worker.

    Attributes:
      path: the `sys.path` of the worker.
      package: the folder of this package.
      pycache_prefix, dont_write_bytecode: as in `sys`.
    """

    path: list[str]
    package: str
    pycache_prefix: str | None
    dont_write_bytecode: bool


class ForeignError(Exception):
    """A request has a class or function of another package."""


class _Unpickler(pickle.Unpickler):
    """Reads pickles with classes of this package only: to import others may have any effect."""

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith("fusion."):
            raise ForeignError(f"{module}.{name}")
        return super().find_class(module, name)


def answer(request: bytes) -> tuple[str, Any, Any]:
    """The answer to a request.

    Args:
      request: a pickled (processor to compile for, `Compilation`).

    Returns:
      ("object", code, seconds), ("error", an exception of Python's own, its traceback as text), or
      ("foreign", the name that is not of this package, None).
    """
    try:
        target, compile_it = _Unpickler(io.BytesIO(request)).load()
        from fusion.runtime.cache import processor

        _name_symbols()
        begun = time.monotonic()
        with processor.compiling_for(target):
            return "object", compile_it(), time.monotonic() - begun
    except ForeignError as error:
        return "foreign", str(error), None
    except BaseException as error:
        text = traceback.format_exc()
        if type(error).__module__ != "builtins":  # as Numba's, which the asker does not import
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return "error", error.with_traceback(None), text


@cache
def _name_symbols() -> None:
    """Gives LLVM addresses of TensorFlow's functions; the code is never run here."""
    from fusion.runtime.llvm import binding
    from fusion.runtime.tensorflow.library import SYMBOLS

    for name in SYMBOLS:
        binding().add_symbol(name, 1)  # any address


def bare_package(folder: str) -> None:
    """Lets modules of the package be imported without running its `__init__`."""
    package = types.ModuleType("fusion")
    package.__path__ = [folder]
    sys.modules["fusion"] = package


def _end_with_parent(connection: Connection) -> None:
    """Ends this process when its parent ends, whatever it is doing."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def main(descriptor: int) -> None:
    """Answers requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    connection = Connection(descriptor)
    config = WorkerConfig(*pickle.loads(connection.recv_bytes()))
    sys.path[:] = config.path
    sys.pycache_prefix, sys.dont_write_bytecode = config[2:]
    bare_package(config.package)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    connection.send_bytes(b"ready")
    with suppress(EOFError, OSError):  # the parent has ended, or closed the connection
        while connection.poll(_MAX_IDLE_SECONDS):
            request = connection.recv_bytes()
            connection.send_bytes(pickle.dumps(answer(request)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
