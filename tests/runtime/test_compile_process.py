"""The process that compiles kernels: how it begins and ends, and what becomes of errors."""

from __future__ import annotations

import gc
import io
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fusion
from fusion.ops import node_kernels
from fusion.ops.registered import SPECS
from fusion.runtime.cache import processor
from fusion.runtime.native.compiler import Compilation, undefined_symbols
from fusion.runtime.native.compiling import process as compile_process
from fusion.runtime.native.compiling import worker as compile_worker
from fusion.runtime.native.compiling.process import CompileProcess, RemoteError
from fusion.runtime.registration import kernel_objects

PACKAGE = Path(fusion.__file__).parent

#: A small kernel, and a function of this package that cannot be compiled.
SMALL = Compilation("fusion.runtime.threads.native_start", "forget_threads", 1, "forget_threads")
BROKEN = Compilation("fusion.runtime.native.compiler", "undefined_symbols", 1, "broken")


class Foreign:
    """Of another package than fusion."""


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileProcess]:
    """One of its own, ended behind the test, and on a busy machine not before."""
    monkeypatch.setattr(compile_process, "IDLE_SECONDS", 600.0)
    made = CompileProcess()
    yield made
    with made._lock:
        made._end()


def process_of(compiling: CompileProcess) -> int:
    assert compiling._process is not None
    return compiling._process.pid


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until it is so, for a minute at most."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def is_gone(process: int) -> bool:
    """Whether a process has ended; what is left of it may wait for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_one_process_compiles_one_kernel_after_the_other(compiling: CompileProcess) -> None:
    done = compiling.compiled(SMALL)
    assert done is not None
    code, seconds = done
    assert undefined_symbols(code) <= {"", "memset", "sem_init"}
    assert seconds > 0
    first = process_of(compiling)
    assert compiling.compiled(SMALL) is not None
    assert process_of(compiling) == first


def test_what_is_compiled_for_counts(compiling: CompileProcess) -> None:
    kernel = Compilation("fusion.cpu_ops.gather", "any_kernel", 1, "k", ("float16", False, False))
    codes = set()
    for level in ("x86-64-v2", "x86-64-v3"):
        with processor.compiling_for(processor.named(level)):
            done = compiling.compiled(kernel)
            assert done is not None
            codes.add(done[0])
    assert len(codes) == 2


def test_what_runs_beside_a_gpu_is_compiled(compiling: CompileProcess) -> None:
    (unique,) = (spec for spec in SPECS if spec.name == "UniqueWithCountsV3")
    _, recipe = kernel_objects.kernel_recipe(unique, "GPU", {"Tid": "int32"})
    assert isinstance(recipe.compile_it, Compilation)
    done = compiling.compiled(recipe.compile_it)
    assert done is not None
    assert "TF_AllocateTemp" in undefined_symbols(done[0])


def test_an_error_is_raised_with_its_traceback(compiling: CompileProcess) -> None:
    with pytest.raises(RuntimeError, match="TypingError") as raised:
        compiling.compiled(BROKEN)
    assert isinstance(raised.value.__cause__, RemoteError)
    assert "compiler.py" in str(raised.value.__cause__)
    with pytest.raises(AttributeError, match="no_such_function"):
        compiling.compiled(Compilation(SMALL.module, "no_such_function", 1, "none"))
    assert compiling.compiled(SMALL) is not None


def test_what_is_not_of_the_package_is_compiled_here(compiling: CompileProcess) -> None:
    assert compiling.compiled(Compilation(__name__, "test", 1, "foreign")) is None
    for argument in (Foreign(), Foreign, lambda: None):
        foreign = Compilation("fusion.cpu_ops.gather", "tile_kernel", 1, "foreign", (argument,))
        assert compiling.compiled(foreign) is None
    assert compiling.compiled(SMALL) is not None


def test_where_it_dies_this_process_compiles(compiling: CompileProcess) -> None:
    assert compiling.compiled(SMALL) is not None
    os.kill(process_of(compiling), signal.SIGKILL)
    assert compiling.compiled(SMALL) is None
    assert compiling._process is None
    assert compiling.compiled(SMALL) is None  # and it is not started again


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi", "/bin/python-is-not-here"])
def test_where_it_cannot_start_this_process_compiles(
    compiling: CompileProcess, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: executable)
    assert compiling.compiled(SMALL) is None
    assert compiling._process is None


def test_without_permission_to_start_processes_this_one_compiles(
    compiling: CompileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert compiling.compiled(SMALL) is None


def test_it_is_ended_when_it_is_idle(
    compiling: CompileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "IDLE_SECONDS", 0.1)
    assert compiling.compiled(SMALL) is not None
    wait_for(lambda: compiling._process is None)
    assert compiling.compiled(SMALL) is not None  # by another


def test_an_interrupt_ends_it_and_the_next_kernel_has_another(compiling: CompileProcess) -> None:
    assert compiling.compiled(SMALL) is not None
    first = process_of(compiling)
    os.kill(first, signal.SIGSTOP)
    main = threading.get_ident()
    timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compiling.compiled(SMALL)
    timer.join()
    assert is_gone(first)
    assert compiling.compiled(SMALL) is not None


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError, ValueError])
def test_the_error_of_a_handler_of_signals_is_its_owner_s(
    compiling: CompileProcess, error: type[Exception]
) -> None:
    def handle(*_: object) -> None:
        raise error("mine")

    assert compiling.compiled(SMALL) is not None
    os.kill(process_of(compiling), signal.SIGSTOP)
    before = signal.signal(signal.SIGUSR1, handle)
    timer = threading.Timer(0.2, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1])
    timer.start()
    try:
        with pytest.raises(error, match="mine"):
            compiling.compiled(SMALL)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert compiling.compiled(SMALL) is not None


def test_no_signal_ends_a_program_whose_other_process_is_gone(compiling: CompileProcess) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert compiling.compiled(SMALL) is not None
        os.kill(process_of(compiling), signal.SIGKILL)
        assert compiling._process is not None
        compiling._process.wait()
        assert compiling.compiled(SMALL) is None
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_compilation_is_told_by_names_and_not_by_addresses() -> None:
    of_a_function = Compilation("fusion.a", "b", 1, "c", (process_of, 3))
    assert f"{__name__}.process_of" in str(of_a_function)
    assert " at 0x" not in str(of_a_function)


def test_a_terminal_s_interrupt_is_for_the_other_process(compiling: CompileProcess) -> None:
    assert compiling.compiled(SMALL) is not None
    os.kill(process_of(compiling), signal.SIGINT)
    assert compiling.compiled(SMALL) is not None


def test_a_forked_process_has_one_of_its_own(compiling: CompileProcess) -> None:
    assert compiling.compiled(SMALL) is not None
    first = process_of(compiling)
    child = os.fork()
    if child == 0:
        gc.collect()  # what is left of the other process in this one does nothing
        done = compiling.compiled(SMALL)
        is_other = compiling._process is not None and compiling._process.pid != first
        with compiling._lock:
            compiling._end()
        os._exit(0 if done is not None and is_other else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert compiling.compiled(SMALL) is not None
    assert process_of(compiling) == first


_BARE = """
import sys, types
sys.modules["fusion"] = types.ModuleType("fusion")
sys.modules["fusion"].__path__ = [{package!r}]
"""


def run_bare(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A program with the modules of this package, which are imported without TensorFlow."""
    text = _BARE.format(package=str(PACKAGE)) + code
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.Popen(command, stdin=-1, stdout=subprocess.PIPE, text=True)


_WAITS = """
from fusion.runtime.native.compiling.process import CompileProcess
from fusion.runtime.native.compiler import Compilation
made = CompileProcess()
kernel = Compilation("fusion.runtime.threads.native_start", "forget_threads", 1, "forget_threads")
assert made.compiled(kernel)
assert not {"numba", "tensorflow"} & sys.modules.keys()
print(made._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_it_ends_with_the_process_that_started_it(how: signal.Signals | None) -> None:
    with run_bare(_WAITS) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        process = int(program.stdout.readline())
        assert not is_gone(process)
        if how is None:
            program.stdin.close()
        else:
            program.send_signal(how)
        program.wait()
    wait_for(lambda: is_gone(process))


_IMPORTS = """
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{"tensorflow", "keras"} & sys.modules.keys())
"""


def test_kernels_need_no_tensorflow_to_be_compiled() -> None:
    recipes = node_kernels.of_all_ops()
    for spec in SPECS:
        types = {name: dtypes[0] for name, dtypes in spec.kernel_types.items()}
        for device in spec.kernels:
            recipes.update([kernel_objects.kernel_recipe(spec, device, types)])
    modules = {module for recipe in recipes.values() for module in recipe.source_modules}
    with run_bare(_IMPORTS, *sorted(modules)) as program:
        assert program.communicate()[0].split() == []
        assert program.returncode == 0


def test_every_kernel_of_the_package_can_be_asked_for() -> None:
    recipes = node_kernels.of_all_ops()
    assert len(recipes) > 100
    for recipe in recipes.values():
        assert isinstance(recipe.compile_it, Compilation)
        request = pickle.dumps((processor.target(), recipe.compile_it))
        target, again = compile_worker._Unpickler(io.BytesIO(request)).load()
        assert (target, repr(again)) == (processor.target(), repr(recipe.compile_it))


def test_it_ends_quietly(tmp_path: Path) -> None:
    """Whichever of its threads finds first that the other process wants no more."""
    setting = pickle.dumps((sys.path, str(PACKAGE), None, True))
    for _ in range(10):
        ours, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-I", compile_worker.__file__, str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
            )
        ours.send_bytes(setting)
        assert ours.recv_bytes() == b"ready"
        ours.close()
        assert process.communicate()[1] == ""
        assert process.returncode == 0
