"""Object files of compiled kernels: looked up, compiled and loaded.

An object is looked up by everything that its code depends on: the sources that it is compiled from
(`sources`), the versions of the package, Python, Numba and LLVM, and the processor it is for.
Loading one needs LLVM's linker only, not Numba.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.llvm import binding, require_executable_memory
from fusion.runtime.native import sources
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling import packaged
from fusion.runtime.native.compiling.background import background_compiler
from fusion.runtime.native.compiling.notice import notice
from fusion.runtime.native.compiling.process import PROCESS_COUNT, compile_processes
from fusion.runtime.tensorflow import library
from fusion.version import __version__

_logger = logging.getLogger("fusion")

#: Makes an object.
Compile = Callable[[], bytes]


class Recipe(NamedTuple):
    """How an object is made.

    Attributes:
      compile_it: makes it. The module of that function counts as a source, with all it imports,
        and so does that of the function that a `Compilation` names.
      modules: other modules whose functions it uses without importing them.
    """

    compile_it: Compile
    modules: tuple[str, ...] = ()

    @property
    def source_modules(self) -> frozenset[str]:
        """The modules that the object is compiled from; their imports count, too."""
        own = {self.compile_it.__module__}
        if isinstance(self.compile_it, Compilation):
            own.add(self.compile_it.module)
        return frozenset(own.union(self.modules))

    @property
    def text(self) -> str:
        """All that the object depends on except its name: sources, and a factory's arguments."""
        compilation = self.compile_it if isinstance(self.compile_it, Compilation) else ""
        return f"{sources.digest(*self.source_modules)} {compilation}"


# Whatever is loaded stays loaded: TensorFlow keeps the addresses for the life of the process.
_engines: list[Any] = []

#: The seconds that each object took that this process compiled.
_seconds: list[float] = []

#: Held while an object is compiled or loaded, so that no process is forked meanwhile: in the child
#: the locks of Numba and LLVM would never be released.
_lock = threading.RLock()
_addresses: dict[str, int] = {}
#: A lock for each object, held while this process makes it or waits for another one that does.
_making: dict[str, threading.Lock] = {}
_requested: ContextVar[dict[str, Recipe] | None] = ContextVar("requested", default=None)


def _after_fork() -> None:
    _making.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


@cache
def _versions() -> str:
    """The versions that all compiled code depends on; of Python the major and the minor one."""
    python = ".".join(platform.python_version_tuple()[:2])
    tools = (f"{package} {version(package)}" for package in ("numba", "llvmlite"))
    return " ".join((f"fusion {__version__} python {python}", *tools))


def file_name(name: str, recipe: Recipe) -> str:
    """The name of the file of an object, which `processor_of` understands."""
    target = processor.target()
    text = f"{_versions()} {target.name} {target.features} {target.suffix} {name} {recipe.text}"
    return f"{name}@{target.name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.o"


def processor_of(file: str) -> str:
    """The processor that the object of a file is for, by LLVM's name; "" if the name has none."""
    return file.rpartition("-")[0].partition("@")[2]


def fingerprint() -> str:
    """A digest of all that any object depends on except its name."""
    target = processor.target()
    text = f"{_versions()} {target.name} {target.features} {sources.digest_of_all()}"
    return hashlib.sha256(text.encode()).hexdigest()


def get(name: str, compile_it: Compile, *modules: str) -> bytes:
    """The object `name`, from the cache or the package, or else compiled; see `Recipe`."""
    files = kernel_cache.default()
    key = file_name(name, Recipe(compile_it, modules))
    if (file := files.read(key)) is not None:
        return file.content
    if (code := packaged.read(name, compile_it)) is not None:
        if processor.target() != packaged.PROCESSOR:
            assert isinstance(compile_it, Compilation)
            background_compiler().add(key, compile_it)
        return code
    with notice().compiling(name):
        return files.get(key, lambda: compiled(name, compile_it))


def expect(recipes: Iterable[tuple[str, Recipe]]) -> dict[str, Recipe]:
    """Announces objects that will be needed, so that the notice of compiling counts them.

    Args:
      recipes: their names, and how they are made.

    Returns:
      Those that have to be compiled.
    """
    missing = {name: recipe for name, recipe in recipes if _is_missing(name, recipe)}
    notice().expect(missing)
    return missing


def load_all(recipes: Iterable[tuple[str, Recipe]]) -> None:
    """Loads those objects that have to be compiled, in parallel.

    It waits for threads that import modules of this package, which must not wait for this thread:
    it is not for code that runs while the package is imported.
    """
    together(recipe_address, expect(recipes).items())


def together(do: Callable[[str, Recipe], object], recipes: Iterable[tuple[str, Recipe]]) -> None:
    """Calls a function that compiles with each name and recipe, as many at a time as is useful.

    Raises:
      BaseException: what a call raises; calls that have not begun are skipped then.
    """
    waiting, errors = deque(recipes), list[BaseException]()

    def work() -> None:
        while not errors:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                do(*item)
            except BaseException as error:
                errors.append(error)

    helpers = [
        threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        for _ in range(min(PROCESS_COUNT, len(waiting)) - 1)
    ]
    try:
        for helper in helpers:
            with suppress(RuntimeError):  # this process has too many threads, or ends
                helper.start()
        work()
        for helper in helpers:
            if not errors and helper.ident is not None:
                helper.join()
    except BaseException as error:  # an interrupt of this thread
        errors.append(error)
    if errors:
        raise errors[0]


def _is_missing(name: str, recipe: Recipe) -> bool:
    """Whether an object is to be compiled."""
    if name in _addresses or kernel_cache.default().read(file_name(name, recipe)) is not None:
        return False
    return packaged.read(name, recipe.compile_it) is None


def compiled(name: str, compile_it: Compile) -> bytes:
    """Compiles the object `name` and logs that.

    A worker process compiles it, if there can be one.
    """
    if not _seconds:
        _logger.info("compiling kernels for %s", processor.target().name)
    with _lock:
        _initialized()
    result = None
    if isinstance(compile_it, Compilation):
        result = compile_processes().compiled(compile_it)
    code, seconds = result or _compiled_in_process(compile_it)
    _seconds.append(seconds)
    figures = name, _seconds[-1], len(_seconds), sum(_seconds)
    _logger.info("compiled %s in %.1f s (%d kernels in %.1f s)", *figures)
    return code


def _compiled_in_process(compile_it: Compile) -> tuple[bytes, float]:
    """An object that this process compiles, and the seconds that it took."""
    with _lock:
        begun = time.monotonic()
        return compile_it(), time.monotonic() - begun


def address(name: str, compile_it: Compile, *modules: str) -> int:
    """The address of the function `name` of an object of that name, loaded or compiled.

    It is 0 in a block of `requested_recipes`. For the arguments see `Recipe`.
    """
    requests = _requested.get()
    if requests is not None:
        requests[name] = Recipe(compile_it, modules)
        return 0
    if name not in _addresses:
        with _making.setdefault(name, threading.Lock()):
            if name not in _addresses:
                code = get(name, compile_it, *modules)
                with _lock:
                    _addresses[name] = load(code, name)
    return _addresses[name]


def recipe_address(name: str, recipe: Recipe) -> int:
    """As `address`."""
    return address(name, recipe.compile_it, *recipe.modules)


@contextmanager
def loading() -> Iterator[None]:
    """A block in which objects of this machine are loaded, whatever blocks are around it."""
    before = _requested.set(None)
    try:
        with processor.compiling_for(processor.default_target()):
            yield
    finally:
        _requested.reset(before)


@contextmanager
def requested_recipes() -> Iterator[dict[str, Recipe]]:
    """A block in which this thread loads no objects; yields the recipes of those it requests."""
    requests: dict[str, Recipe] = {}
    before = _requested.set(requests)
    try:
        yield requests
    finally:
        _requested.reset(before)


@cache
def _initialized() -> Any:
    """LLVM, ready to compile and to load what calls TensorFlow."""
    library.load()
    require_executable_memory()
    llvm = binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Compiled code finds the symbols here, when it is compiled and when it is loaded.
    llvm.load_library_permanently(library.path())
    return llvm


def _engine() -> Any:
    llvm = _initialized()
    machine = llvm.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    _engines.append(engine)
    return engine


def load(code: bytes, symbol: str) -> int:
    """The address of the C function `symbol` of an object."""
    engine = _engine()
    engine.add_object_file(binding().ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


def load_ir(text: str, symbols: list[str]) -> list[int]:
    """The addresses of C functions of a module of LLVM's textual IR."""
    engine = _engine()
    engine.add_module(binding().parse_assembly(text))
    engine.finalize_object()
    return [int(engine.get_function_address(symbol)) for symbol in symbols]
