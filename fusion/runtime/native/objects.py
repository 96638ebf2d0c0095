"""Native objects in memory: how compiled kernels are found, loaded and called.

An object is looked up by everything that its code depends on: the package, the versions of Numba
and LLVM, and the processor it is for. Loading one needs LLVM's linker only, not Numba.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm

from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.tensorflow import library
from fusion.version import __version__

_PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = ("runtime", "schema", "ops", "cpu_ops", "gpu_ops")
#: The bytes of a `.pyc` before its code: they tell of its source, which is not there.
_PYC_HEAD_BYTES = 16

_logger = logging.getLogger("fusion")

#: Makes an object.
Compile = Callable[[], bytes]

# Whatever is loaded stays loaded: TensorFlow keeps the addresses for the life of the process.
_engines: list[llvm.ExecutionEngine] = []

#: What each object took that this process compiled.
_seconds: list[float] = []

#: Held by who compiles or loads, so that no process is forked meanwhile: in the child Numba's and
#: LLVM's own locks would stay held for ever.
_lock = threading.RLock()
_addresses: dict[str, int] = {}
#: Of each object, held by who makes it or waits for another process that does.
_making: dict[str, threading.Lock] = {}
_asked_for: ContextVar[dict[str, Compile] | None] = ContextVar("asked_for", default=None)


def _after_fork() -> None:
    _making.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


@cache
def _package_digest() -> str:
    """A digest of what all compiled code depends on: this package, Numba and LLVM."""
    digest = hashlib.sha256(f"fusion {__version__}".encode())
    for source in _source_files(_PACKAGE):
        content = source.read_bytes()
        digest.update(source.relative_to(_PACKAGE).as_posix().encode())
        digest.update(content[_PYC_HEAD_BYTES:] if source.suffix == ".pyc" else content)
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {version(package)}".encode())
    return digest.hexdigest()


def _source_files(package: Path) -> list[Path]:
    """The files of a package that its compiled code depends on.

    A build may have `.pyc` files in the place of sources.
    """
    found: Iterable[Path] = (path for folder in _SOURCES for path in (package / folder).rglob("*"))
    return sorted(
        path
        for path in found
        if path.suffix in (".py", ".pyc", ".cc") and path.parent.name != "__pycache__"
    )


def fingerprint() -> str:
    """A digest of all that compiled code depends on besides its own name."""
    target = processor.target()
    text = f"{_package_digest()} {target.name} {target.features}"
    return hashlib.sha256(text.encode()).hexdigest()


def file_name(name: str) -> str:
    """The name of the file of an object."""
    key = hashlib.sha256(f"{fingerprint()} {name}".encode()).hexdigest()[:24]
    return f"{name}-{key}.o"


def get(name: str, compile_it: Compile) -> bytes:
    """The object `name`, from disk or else compiled and kept."""
    files = kernel_cache.default()
    return files.get(file_name(name), lambda: compiled(name, compile_it))


def compiled(name: str, compile_it: Compile) -> bytes:
    """The object `name`, compiled now, of which the log tells."""
    if not _seconds:
        _logger.info("compiling kernels for %s", processor.target().name)
    with _lock:
        begun = time.monotonic()
        code = compile_it()
        _seconds.append(time.monotonic() - begun)
    told = name, _seconds[-1], len(_seconds), sum(_seconds)
    _logger.info("compiled %s in %.1f s (%d kernels in %.1f s)", *told)
    return code


def address(name: str, compile_it: Compile) -> int:
    """The address of the function `name` of an object of that name, loaded or compiled.

    It is 0 in a block of `asked_for`.
    """
    asked = _asked_for.get()
    if asked is not None:
        asked[name] = compile_it
        return 0
    if name not in _addresses:
        with _making.setdefault(name, threading.Lock()):
            if name not in _addresses:
                code = get(name, compile_it)
                with _lock:
                    _addresses[name] = load(code, name)
    return _addresses[name]


@contextmanager
def asked_for() -> Iterator[dict[str, Compile]]:
    """A block in which this thread loads no objects; gives what makes those that it asks for."""
    asked: dict[str, Compile] = {}
    before = _asked_for.set(asked)
    try:
        yield asked
    finally:
        _asked_for.reset(before)


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library.load()


def _engine() -> llvm.ExecutionEngine:
    _initialize()
    machine = llvm.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    _engines.append(engine)
    return engine


def load(code: bytes, symbol: str) -> int:
    """The address of the C function `symbol` of an object."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


def load_ir(text: str, symbols: list[str]) -> list[int]:
    """The addresses of C functions of a module of LLVM's textual IR."""
    engine = _engine()
    engine.add_module(llvm.parse_assembly(text))
    engine.finalize_object()
    return [int(engine.get_function_address(symbol)) for symbol in symbols]
