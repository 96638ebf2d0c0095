"""`python -m fusion.ops_library.packaged`: the kernels that come with the package.

They are put into a folder of it with what parsing its sources finds. From there the wheel and the
source distribution take them (`make release`).
"""

from __future__ import annotations

import sys
import time

from fusion.ops import node_kernels
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.native import objects, sources
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling import packaged
from fusion.runtime.native.objects import Recipe


def recipes() -> dict[str, Recipe]:
    """How each is made: those that most models need, for rows in vectors of any processor."""
    found: dict[str, Recipe] = {}
    for name in ("x86-64-v3", "x86-64-v4"):
        with processor.compiling_for(processor.named(name)):
            found |= node_kernels.of_common_types()
    return found


def write() -> int:
    """Writes those that are missing, by way of the kernel cache; returns the number of all."""
    files, wanted = kernel_cache.packaged(), recipes()

    def make(name: str, recipe: Recipe) -> None:
        assert isinstance(recipe.compile_it, Compilation)
        kept = objects.file_name(name, recipe), lambda: objects.compiled(name, recipe.compile_it)
        files.get(
            packaged.file_name(name, recipe.compile_it),
            lambda: kernel_cache.default().get(*kept),
        )

    with processor.compiling_for(packaged.PROCESSOR):
        objects.together(make, wanted.items())
    sources.keep_for_any_python(files)
    return len(wanted)


if __name__ == "__main__":
    begun = time.monotonic()
    print(f"{write()} kernels in {time.monotonic() - begun:.0f} s", file=sys.stderr)
