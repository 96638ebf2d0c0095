"""Processes forked from one that has imported TensorFlow, in place of new Python processes.

To import TensorFlow takes seconds, and a process that has used it cannot be forked. So a server,
`python -m tests.zygote`, imports it and uses nothing of it; what `Popen` and `run` start are forks
of the server, which run a program as Python would and end as it would. Besides, they are what
those of `subprocess` are: environment, directory, streams, signals and exit status are their own.

Not their own are the start of Python and the hash seed, the modules of `_PRELOADED`, and what those
read from the environment when they are imported. Tests of these start Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_PRELOADED = (
    *("tensorflow", "fusion.cli", "fusion.running.grappler", "fusion.feature_column"),
    *("fusion.saved_model.bench.worker", "fusion.saved_model.verify.worker"),
)
#: Variables that are read, by their first letters, when Python starts or a module is imported.
_READ_AT_IMPORT = (
    *("GLIBC", "KERAS", "LD_", "MALLOC", "MKL", "NUMBA", "OMP", "OPENBLAS", "PYTHON", "TF_"),
)
#: Those of them that are not, or that change nothing once all is imported.
_READ_LATER = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "TF_CONFIG"}
_READ_LATER |= {"TF_CPP_MIN_LOG_LEVEL"}
#: Tests replace it.
_PYTHON = sys.executable
#: The environment of servers.
_ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
_SIZE = 4  # bytes of the length of a message
_MAX_FILES = 64


#: In a process of a program, `subprocess` has a stand-in.
_REAL_POPEN = subprocess.Popen


@dataclass(frozen=True)
class _Program:
    """What a process runs.

    Attributes:
        arguments: of Python: `-c CODE`, `-m MODULE` or a file, and those of the program.
        directory: where it runs.
        environment: all variables.
        descriptors: the numbers that the files which come along get.
        new_session: whether it leads a session of its own.
    """

    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    descriptors: Sequence[int]
    new_session: bool


class Server:
    """The server, seen from the process that starts it, with which it ends."""

    def __init__(
        self,
        *before: str,
        modules: Sequence[str] = _PRELOADED,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it.

        Args:
            before: the first words of its command, e.g. those of unshare.
            modules: what it imports.
            variables: of its environment, besides those that all servers have.
        """
        self.environment = {**_ENVIRONMENT, **(variables or {})}
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _REAL_POPEN(
                [*before, _PYTHON, "-m", "tests.zygote", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=self.environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def start(self, program: _Program, files: Sequence[int]) -> tuple[int, socket.socket]:
        """Starts a process; returns its id, and where a line of its status comes when it ends."""
        content = json.dumps(asdict(program)).encode()
        status, theirs = socket.socketpair()
        with theirs, self._lock:
            head = len(content).to_bytes(_SIZE, "little")
            socket.send_fds(self._control, [head], [theirs.fileno(), *files])
            self._control.sendall(content)
        line = _receive_line(status)
        if not line:
            raise OSError(f"the server of processes has ended: {self._process.wait()}")
        return int(line), status

    def close(self) -> None:
        """Ends it."""
        self._control.close()
        self._process.wait()


@functools.lru_cache(maxsize=1)
def _default_server() -> Server:
    return Server()


@functools.cache
def without_fusion(**variables: str) -> Server:
    """A server for programs in which it matters who imports fusion, and what that imports.

    Args:
        variables: that TensorFlow reads when it is imported.
    """
    return Server(modules=["tensorflow"], variables=variables)


def serves(
    command: Sequence[Any],
    environment: Mapping[str, str] | None = None,
    server: Server | None = None,
) -> bool:
    """Whether a command is one of Python whose process can be a fork of the server."""
    environment = os.environ if environment is None else environment
    own = _ENVIRONMENT if server is None else server.environment
    differ = {name for name in {*own, *environment} if own.get(name) != environment.get(name)}
    at_import = {name for name in differ if name.startswith(_READ_AT_IMPORT)} - _READ_LATER
    return not at_import and _arguments(command) is not None


def _arguments(command: Sequence[Any]) -> list[str] | None:
    """The arguments of Python in a command, None if it has others or is not of this Python."""
    if isinstance(command, str):
        return None
    program, *arguments = map(os.fspath, command)
    if program == str(Path(_PYTHON).with_name("fusion")):
        return [program, *arguments]
    takes_them = arguments and (arguments[0] in ("-c", "-m") or arguments[0][0] != "-")
    return arguments if program == _PYTHON and takes_them else None


class Popen(subprocess.Popen[Any]):
    """A process as of `subprocess.Popen`, forked from a server.

    Within such a process, the new one is forked from that one, as long as it has not used
    TensorFlow: so it has the parent, and the end, that it would have.
    """

    def __init__(self, args: Any, *, server: Server | None = None, **options: Any) -> None:
        """Starts it; the options are those of `subprocess.Popen`."""
        if not serves(args, options.get("env"), server):
            raise ValueError(f"not a command for a forked process: {args}")
        self._server = server
        self._status: socket.socket | None = None
        self._new_session = bool(options.get("start_new_session"))
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:
        args, _, preexec, _, pass_fds, cwd, env, *_ = given[:11]
        streams = given[10:16]
        assert preexec is None
        numbers = {0: streams[0], 1: streams[3], 2: streams[5], **{fd: fd for fd in pass_fds}}
        files = [fd if number == -1 else number for fd, number in numbers.items()]
        program = _Program(
            arguments=_arguments(args) or [],
            directory=os.path.abspath(cwd or os.getcwd()),
            environment=dict(os.environ if env is None else env),
            descriptors=[*numbers],
            new_session=self._new_session,
        )
        if _can_fork():
            self.pid = _fork(program, files)
        else:
            server = self._server or _default_server()
            self.pid, self._status = server.start(program, files)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._status is None:
            return os.waitpid(self.pid, flags)
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status as status:
            return self.pid, int(_receive_line(status) or signal.SIGKILL)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        # At once, where that of `subprocess` looks every now and then.
        if self.returncode is None and self._status is not None and timeout is not None:
            select.select([self._status], [], [], max(0.0, timeout))
        return super()._wait(timeout)  # type: ignore[misc]


def run(
    command: Sequence[Any],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a command to its end, see `start`; the arguments are those of `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, out, err)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(
    command: Sequence[Any], *, server: Server | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Forks a process where the server can, and starts Python where not."""
    if serves(command, options.get("env"), server):
        return Popen(command, server=server, **options)
    return _REAL_POPEN(command, **options)


class _PopenOfModules(subprocess.Popen[Any]):
    """What modules call that start processes themselves."""

    def __new__(cls, args: Any, **options: Any) -> Any:
        """Returns the process."""
        return start(args, **options)


_POPEN: Any = _PopenOfModules


def forks_of(*modules: str, has_fusion: bool = True) -> Any:
    """Returns a fixture for all tests of a folder: what these modules start is forked.

    Args:
        modules: that start processes.
        has_fusion: whether it does not matter that these have imported fusion.
    """

    @pytest.fixture(scope="module", autouse=True)
    def forks() -> Iterator[None]:
        popen = _POPEN if has_fusion else functools.partial(start, server=without_fusion())
        with forking(*modules, popen=popen):
            yield

    return forks


@contextlib.contextmanager
def forking(*modules: str, popen: Any = _POPEN) -> Iterator[None]:
    """Has what these modules start be forked."""
    stand_in = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen, "run": run})
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(f"{module}.subprocess", stand_in)
        yield


def _receive_line(connection: socket.socket) -> bytes:
    """Returns a line, empty at the end."""
    line = b""
    with contextlib.suppress(ConnectionError):
        while not line.endswith(b"\n"):
            if not (byte := connection.recv(1)):
                return b""
            line += byte
    return line


def _serve(control: socket.socket) -> tuple[_Program, list[int]] | None:
    """Forks whenever it is asked to, until the other end is closed.

    Returns:
        In a fork: what it runs, and the descriptors of its files; None in the server, at its end.
    """
    # Closed in a fork too: it would close its number again when it is found to be garbage.
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    order = _receive_order(control)
                    if order is None:
                        return None
                    program, (answers, *files) = order
                    pid = os.fork()
                    if pid == 0:
                        if program.new_session:
                            os.setsid()
                        _answer(answers, os.getpid())
                        return program, files
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))
                    for file in files:
                        os.close(file)
                else:
                    pid, answers = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    _answer(answers, os.waitpid(pid, 0)[1])
                    os.close(answers)


def _answer(file: int, number: int) -> None:
    # Nobody may be interested any more.
    with contextlib.suppress(OSError):
        os.write(file, b"%d\n" % number)


def _receive_order(control: socket.socket) -> tuple[_Program, list[int]] | None:
    head, files, _, _ = socket.recv_fds(control, _SIZE, _MAX_FILES)
    size, content = int.from_bytes(head, "little"), b""
    while len(content) < size:
        content += control.recv(size - len(content))
    return (_Program(**json.loads(content)), files) if head else None


class _Forks:
    """What forks know of the server: how many threads it has, which are NumPy's."""

    threads = 0


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _can_fork() -> bool:
    """Whether this process is a fork of the server, and used nothing of TensorFlow so far."""
    if not _Forks.threads:
        return False
    from tensorflow.python.eager import context

    return not context.context_safe() and _count_threads() <= _Forks.threads


def _fork(program: _Program, files: Sequence[int]) -> int:
    """Forks this process; returns the id of the new one, which ends in here."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # What this process does at its end is not for the new one.
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        if program.new_session:
            os.setsid()
        _become(program, files)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become(program: _Program, files: Sequence[int]) -> None:
    """Makes this process one of the program, and runs it."""
    _rename_files(dict(zip(program.descriptors, files, strict=True)))
    os.chdir(program.directory)
    os.environ.clear()
    os.environ.update(program.environment)
    for path in reversed(program.environment.get("PYTHONPATH", "").split(os.pathsep)):
        # The first one, the server's directory, is replaced below.
        if path and path not in sys.path[1:]:
            sys.path.insert(1, path)
    import numpy as np

    np.random.seed()  # it is the server's otherwise
    subprocess.Popen = _POPEN  # type: ignore[misc]
    what, *sys.argv = program.arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if what == "-c":
        code, sys.argv[0], sys.path[0] = sys.argv[0], "-c", ""
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif what == "-m":
        sys.path[0] = program.directory
        # It is run anew, as one that nothing has imported.
        sys.modules.pop(sys.argv[0], None)
        runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]
    else:
        sys.argv.insert(0, what)
        main.__file__, sys.path[0] = what, os.path.dirname(os.path.abspath(what))
        exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)


def _rename_files(files: Mapping[int, int]) -> None:
    """Gives open files their descriptors, by which this process knows them, and closes others."""
    above = max(*files, *files.values()) + 1
    moved = {to: fcntl.fcntl(file, fcntl.F_DUPFD, above) for to, file in files.items()}
    for to, file in moved.items():
        os.dup2(file, to)
    for opened in [int(name) for name in os.listdir("/proc/self/fd")]:
        if opened not in files:
            with contextlib.suppress(OSError):
                os.close(opened)


def _main(descriptor: int, modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    _Forks.threads = _count_threads()
    # Forks share these objects, which their garbage collectors leave alone.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as control:
        order = _serve(control)
    if order is not None:
        _become(*order)


if __name__ == "__main__":
    # The functions are those of the module, which the programs of the processes import too.
    from tests import zygote

    zygote._main(int(sys.argv[1]), sys.argv[2:])
