"""Python programs that tests start, in processes forked from one that has imported TensorFlow.

To import TensorFlow takes more than three seconds of a processor, and programs of the tests that
do less than that are many. Where the fixture `forks` is in use, `subprocess` starts programs of
this Python in another way: a server, `python -m tests.forks`, has imported TensorFlow but never
used it, nor imported fusion, and forks for each program; so do the programs for theirs. Everything
else about them is their own: arguments, environment, folder, open files, session, exit status.

Programs that ask for what an import of TensorFlow may have settled already start as ever: with
options of Python, or with other variables that Python or TensorFlow read when they start.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

#: Variables that are read when Python or TensorFlow starts, and those of them that are not.
_EARLY = ("PYTHON", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "TF_", "KERAS_", "XLA_", "HOME")
_LATE = frozenset({"PYTHONPATH", "TF_CONFIG"})

_LONGEST_ORDER = 1 << 17

#: Tests replace `sys.executable`.
_PYTHON = sys.executable

_popen = subprocess.Popen


class _Server:
    """The server, seen from the processes that use it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._environment = dict(os.environ)

    @classmethod
    def start(cls) -> _Server:
        """Starts a server, which ends with this process."""
        address = f"\0fusion-tests-{os.getpid()}-{random.SystemRandom().getrandbits(64)}"
        process = _popen(
            [sys.executable, "-m", "tests.forks", address[1:]],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        atexit.register(process.communicate)
        return cls(address)

    def forks(self, environment: Mapping[str, str]) -> bool:
        """Whether a program can be forked that wants these variables."""
        names = {*environment} | {*self._environment}
        early = {name for name in names - _LATE if name.startswith(_EARLY)}
        return all(environment.get(name) == self._environment.get(name) for name in early)

    def order(self, order: dict[str, Any], files: list[int]) -> tuple[int, socket.socket]:
        """Has a program forked; its process id, and where its exit status will be told."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._address)
        socket.send_fds(connection, [json.dumps(order).encode()], files)
        return int(connection.recv(64)), connection


_server: _Server | None = None


class _Popen(subprocess.Popen):
    """Forks programs of this Python, if it can be; all others it starts as ever.

    What it replaces are private methods, which are the same ones from Python 3.10 to 3.13.
    """

    _ended: socket.socket | None = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        environment = os.environ if env is None else env
        program = None
        if executable is None and preexec_fn is None and not isinstance(args, str | bytes):
            program = _program([os.fspath(one) for one in args], environment)
        if program is None or _server is None or not _server.forks(environment):
            started: Any = super()
            started._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            return
        _, _, _, *pipes = rest[:9]
        stdin, stdout, stderr = pipes[0], pipes[3], pipes[5]
        files = {0: stdin, 1: stdout, 2: stderr} | {file: file for file in pass_fds}
        files = {number: file if file != -1 else number for number, file in files.items()}
        order = {
            "program": program,
            "folder": os.path.join(os.getcwd(), cwd or ""),
            "environment": dict(environment),
            "files": [*files],
            "session": rest[14],
        }
        try:
            self.pid, self._ended = _server.order(order, [*files.values()])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags):
        if self._ended is None:
            started: Any = super()
            return started._try_wait(wait_flags)
        self._ended.setblocking(not wait_flags)
        try:
            told = self._ended.recv(64)
        except BlockingIOError:
            return 0, 0
        return self.pid, int(told or signal.SIGKILL)

    def _internal_poll(self, *state, **named):
        started: Any = self
        if self._ended is None:
            started = super()
            return started._internal_poll(*state, **named)
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                started._handle_exitstatus(status)
        return self.returncode


def _program(command: list[str], environment: Mapping[str, str]) -> list[str] | None:
    """What follows `python` in a command; None if it is another program, or Python has options."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    binaries = Path(_PYTHON).parent
    if found is None or Path(found).parent != binaries:
        return None
    if not Path(found).name.startswith("python"):
        with open(found, "rb") as file:
            is_script = file.readline().rstrip() == f"#!{_PYTHON}".encode()
        return [found, *command[1:]] if is_script else None
    program = command[1:]
    is_plain = program and (program[0] in ("-c", "-m") or not program[0].startswith("-"))
    return program if is_plain else None


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """Has the Python programs forked that the tests of a module, or what they test, start."""
    global _server  # noqa: PLW0603
    if _server is None:
        _server = _Server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", _Popen)
        yield


def _serve(address: str) -> dict[str, Any] | None:
    """Forks a program for each order; returns the order in its process, None in the end."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(f"\0{address}")
        listener.listen()
        selector = opened.enter_context(selectors.DefaultSelector())
        selector.register(0, selectors.EVENT_READ)  # its end tells that nobody is left
        selector.register(listener, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    return None
                if key.fileobj is not listener:
                    selector.unregister(key.fd)
                    pid, connection = running.pop(key.fd)
                    with connection, contextlib.suppress(OSError):
                        connection.send(str(os.waitpid(pid, 0)[1]).encode())
                    os.close(key.fd)
                    continue
                connection, _ = listener.accept()
                content, files, _, _ = socket.recv_fds(connection, _LONGEST_ORDER, 250)
                if not content:  # who was to order has ended
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    for other, (_, open_one) in running.items():
                        os.close(other)
                        open_one.close()
                    connection.close()
                    return {**json.loads(content), "given": files}
                for file in files:
                    os.close(file)
                handle = os.pidfd_open(pid)
                selector.register(handle, selectors.EVENT_READ)
                running[handle] = pid, connection
                try:
                    connection.send(str(pid).encode())
                except OSError:  # nobody knows of the program
                    os.kill(pid, signal.SIGKILL)


def _become(order: dict[str, Any], path: list[str]) -> list[str]:
    """Makes this process the one that was ordered; returns its program."""
    if order["session"]:
        os.setsid()
    # The numbers that are wanted may be those under which others were received.
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 500) for file in order["given"]]
    for file in order["given"]:
        os.close(file)
    for file, number in zip(high, order["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    random.seed()
    sys.modules["numpy"].random.seed()
    program: list[str] = order["program"]
    first = {"-c": "", "-m": os.getcwd()}.get(program[0], os.path.dirname(program[0]))
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, wanted), *path]
    return program


def _run(program: list[str]) -> None:
    """Runs `-c CODE`, `-m MODULE` or a file, with what follows it as arguments."""
    kind, *rest = program
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(kind, run_name="__main__")


def _main() -> None:
    global _server  # noqa: PLW0603
    import tensorflow  # noqa: F401

    own = {str(ROOT), os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    path = [entry for entry in sys.path if entry not in own]
    gc.freeze()  # programs do not look through what they share
    order = _serve(sys.argv[1])
    if order is not None:
        _server = _Server(f"\0{sys.argv[1]}")
        subprocess.Popen = _Popen  # type: ignore[misc]
        _run(_become(order, path))


if __name__ == "__main__":
    from tests import forks as module

    module._main()
