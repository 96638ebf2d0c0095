"""Running a process under valgrind's memcheck, and reading what it found."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

#: What valgrind emulates: newer processors' instructions end the process.
PROCESSOR = "x86-64-v3"


@dataclass(frozen=True)
class Error:
    """An error that memcheck reports; `ours` if compiled code of ours had a part in it."""

    what: str
    ours: bool


def path() -> str | None:
    """Where valgrind is, if it is installed."""
    return shutil.which("valgrind")


def version() -> str:
    """Name and version."""
    return subprocess.check_output(["valgrind", "--version"], text=True).strip()


def command(errors: Path) -> list[str]:
    """What to put in front of a command line; the errors go to the file `errors`."""
    return [
        "valgrind",
        "--quiet",
        "--xml=yes",
        f"--xml-file={errors}",
        "--leak-check=no",
        # Reading a vector that is partly outside a block is an error too.
        "--partial-loads-ok=no",
        "--redzone-size=4096",
        # Deep enough to see who called the C API with a bad argument.
        "--num-callers=100",
        "--keep-stacktraces=none",
        "--error-limit=no",
    ]


def read_errors(path: Path) -> list[Error]:
    """The errors in the order in which they appeared.

    Python and LLVM cause some themselves. Their code comes from files, compiled code does not: an
    error is ours if any frame of its stack is in no file, or if uninitialised bytes left the
    process, as outputs do (see `tests.soak.buffers.HeapBuffers`).
    """
    return [_error(element) for element in ElementTree.parse(path).getroot().iter("error")]


def _error(element: ElementTree.Element) -> Error:
    frames = [frame for stack in element.iter("stack") for frame in stack.iter("frame")]
    kind = element.findtext("kind", "")
    what = element.findtext("what") or element.findtext("xwhat/text") or kind
    ours = kind == "SyscallParam" or any(frame.find("obj") is None for frame in frames)
    functions = [frame.findtext("fn") or "compiled code" for frame in frames[:3]]
    return Error(f"{what} in {' < '.join(functions)}", ours)
