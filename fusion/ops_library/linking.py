"""Objects into a shared library or a static archive, by the linker that there is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fusion.runtime.llvm import binding
from fusion.runtime.registration.library.record import EXPORTED

#: The library of TensorFlow that every program with TensorFlow has loaded.
_TENSORFLOW = "libtensorflow_framework.so.2"


class LinkError(RuntimeError):
    """There is neither a linker of the system nor the `ziglang` package, or the linker fails."""


class Tools(NamedTuple):
    """Commands.

    Attributes:
      linker: takes the arguments of GNU ld.
      archiver: takes those of ar.
    """

    linker: list[str]
    archiver: list[str]


def find_tools() -> Tools:
    """The system's tools, else those of the `ziglang` package.

    Raises:
      LinkError: there are none.
    """
    found = [shutil.which(name) for name in ("ld", "ar")]
    if None not in found:
        linker, archiver = ([str(path)] for path in found)
        return Tools(linker, archiver)
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang"]
        return Tools([*zig, "ld.lld"], [*zig, "ar"])
    raise LinkError(
        "there is no linker: install the system's (ld and ar, of the binutils), or the package "
        "ziglang (pip install 'tf-embedding-fusion[native]')"
    )


def link(objects: Mapping[str, bytes], output: Path, tools: Tools) -> None:
    """Writes a shared library; the same objects make the same bytes.

    Args:
      objects: relocatable ELF files by name, in the order in which they are linked.
      output: the file.

    Raises:
      LinkError: the linker fails.
      OSError: the file cannot be written.
    """
    with _folder_of(objects) as folder:
        # The library's name alone counts: TensorFlow's own is loaded, or found as others are.
        (folder / "empty.o").write_bytes(emit(""))
        stub = ["-shared", "-soname", _TENSORFLOW, "-o", _TENSORFLOW, "empty.o"]
        _run([*tools.linker, *stub], folder)
        (folder / "exported").write_text(f"{{ global: {EXPORTED}; local: *; }};\n")
        flags = ["-shared", "--no-as-needed", "--build-id=none", "--hash-style=gnu", "-s"]
        flags += ["-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "nodelete"]
        flags += ["-Bsymbolic", "--version-script=exported", "-soname", output.name]
        _run([*tools.linker, *flags, "-o", "result", _TENSORFLOW, "@objects"], folder)
        _put(folder / "result", output)


def archive(objects: Mapping[str, bytes], output: Path, tools: Tools) -> None:
    """Writes a static archive with one object; for the arguments see `link`.

    Nothing refers to what is in it, so that who links it has to ask for all of it.

    Raises:
      LinkError: a tool fails.
      OSError: the file cannot be written.
    """
    with _folder_of(objects) as folder:
        _run([*tools.linker, "-r", "--discard-all", "-o", "fusion_ops.o", "@objects"], folder)
        _run([*tools.archiver, "rcsD", "result", "fusion_ops.o"], folder)
        _put(folder / "result", output)


@contextmanager
def _folder_of(objects: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder with objects, and a file with their names."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in objects.items():
            (folder / f"{file}.o").write_bytes(content)
        (folder / "objects").write_text("".join(f"{file}.o\n" for file in objects))
        yield folder


def _put(made: Path, output: Path) -> None:
    """Puts a file in its place, whole or not at all."""
    part = output.with_name(f".{output.name}.{os.urandom(8).hex()}.part")
    try:
        with open(part, "xb") as file:  # a new one, which is no link to another
            file.write(made.read_bytes())
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LinkError(f"{' '.join(command[:4])} failed: {done.stderr.strip()}")


def emit(module: str) -> bytes:
    """The position-independent object of a module of LLVM's textual IR, for any x86-64.

    Nothing that it defines is seen outside.
    """
    llvm = binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmparser()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu="x86-64", opt=2, reloc="pic", codemodel="small")
    parsed = llvm.parse_assembly(module)
    for function in parsed.functions:
        if not function.is_declaration:
            function.linkage = "internal"
    return bytes(machine.emit_object(parsed))
