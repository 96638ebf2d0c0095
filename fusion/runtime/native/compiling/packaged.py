"""Objects that come with the package, for a level of processors that most machines have.

They stand in for those of a machine's own processor. Which Python, Numba and LLVM have compiled
them does not matter, so that one set is for all that the package is installed with: they are named
after the bytes of all sources.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native import sources
from fusion.runtime.native.compiler import Compilation
from fusion.version import __version__

#: What they are compiled for: AVX2, FMA and F16C.
PROCESSOR = Processor("x86-64-v3")


def file_name(name: str, compilation: Compilation) -> str:
    """The name of the file of an object."""
    text = f"fusion {__version__} {sources.digest_of_bytes()} {name} {compilation}"
    return f"{name}@{PROCESSOR.name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.o"


def read(name: str, compile_it: Any) -> bytes | None:
    """The object `name`, if the package has it and it runs on what this thread compiles for.

    Args:
      compile_it: makes it; only those that a `Compilation` makes are in the package.
    """
    target = processor.target()
    if not isinstance(compile_it, Compilation) or target.suffix:
        return None
    file = kernel_cache.packaged().read(file_name(name, compile_it))
    if file is None or not processor.runs(PROCESSOR, on=target):
        return None
    return file.content
