"""Native objects on disk and in memory: where compiled kernels are kept, and how they are loaded.

An object is looked up by everything that its code depends on: the package's sources, the versions
of Numba and LLVM, and the processor. Loading one needs LLVM's linker only, not Numba.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm

from fusion.runtime import library

CACHE_VARIABLE = "FUSION_CACHE_DIR"

#: With these Numba compiles for another processor than this one.
_PROCESSOR_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")

_PACKAGE = Path(__file__).resolve().parent.parent
_SOURCES = ("runtime", "ops", "cpu_ops", "gpu_ops")
_MAGIC = b"fusion object 1\n"

# Whatever is loaded stays loaded: TensorFlow keeps the addresses for the life of the process.
_engines: list[llvm.ExecutionEngine] = []


@cache
def fingerprint() -> str:
    """A digest of all that compiled code depends on besides its own name."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for source in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(source.relative_to(_PACKAGE).as_posix().encode())
            digest.update(source.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {version(package)}".encode())
    digest.update(llvm.get_host_cpu_name().encode())
    digest.update(llvm.get_host_cpu_features().flatten().encode())
    for variable in _PROCESSOR_VARIABLES:
        digest.update(f"{variable}={os.environ.get(variable)}".encode())
    return digest.hexdigest()


@cache
def directories() -> tuple[Path, ...]:
    """Where objects are looked for, in order; they are written to the first that can be written.

    That is `FUSION_CACHE_DIR` alone if it is set, else the package's own folder, then the user's
    cache folder, then a folder of this process.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return (Path(chosen),)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return (_PACKAGE / "__pycache__" / "kernels", Path(home) / "fusion" / "kernels")


@cache
def writable_directory() -> Path:
    """The directory that new objects are written to, created if need be."""
    for directory in directories():
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="fusion-kernels-"))


def get(name: str, compile_it: Callable[[], bytes]) -> bytes:
    """The object `name`, from disk or else compiled and kept."""
    key = hashlib.sha256(f"{fingerprint()} {name}".encode()).hexdigest()[:24]
    file_name = f"{name}-{key}.o"
    for directory in directories():
        code = _read(directory / file_name)
        if code is not None:
            return code
    code = compile_it()
    _write(writable_directory() / file_name, code)
    return code


def _read(path: Path) -> bytes | None:
    """The object in `path`; None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest_at = len(_MAGIC)
    digest, code = content[digest_at : digest_at + 32], content[digest_at + 32 :]
    if not content.startswith(_MAGIC) or hashlib.sha256(code).digest() != digest:
        return None
    return code


def _write(path: Path, code: bytes) -> None:
    """Keeps an object; a disk that is full or read-only only costs the next process time."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)


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
