"""A library of ops, built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from fusion.ops.node_kernels import Place
from fusion.ops.registered import SPECS
from fusion.ops_library.contents import Contents
from fusion.ops_library.linking import archive, emit, find_tools, link
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.native import objects
from fusion.runtime.registration.library.manifest import Manifest
from fusion.runtime.registration.library.record import LEVELS
from fusion.version import __version__

#: (the number of the object, how many there are, its name) -> nothing, before each is made.
Progress = Callable[[int, int, str], None]


def build(
    output: Path,
    levels: Sequence[int],
    places: Callable[[], Iterable[Place]],
    progress: Progress | None = None,
    *,
    is_static: bool = False,
) -> Manifest:
    """Writes a library of the ops and their kernels; the same sources make the same bytes.

    Args:
      output: the file.
      levels: of the processors that it has kernels for, keys of `LEVELS`.
      places: gives the kernels; called in a block of `compiling_for` for each level.
      is_static: write an archive for a linker, and no shared library.

    Raises:
      LinkError: there is no linker, or it fails.
      OSError: the file cannot be written.
    """
    tools = find_tools()
    contents = Contents(SPECS)
    for level in levels:
        contents.add_level(level, places)
    kernels = {LEVELS[level]: contents.kernels[level] for level in sorted(levels)}
    manifest = Manifest(__version__, [spec.name for spec in SPECS], kernels)
    module = contents.module(manifest.encoded())
    made: dict[str, bytes] = {}
    for number, (name, (recipe, target)) in enumerate(contents.objects.items(), 1):
        if progress is not None:
            progress(number, len(contents.objects), name)
        with processor.compiling_for(target):
            file_name = objects.file_name(name, recipe)
            make = partial(objects.compiled, name, recipe.compile_it)
            made[name] = kernel_cache.default().get(file_name, make)
    made["library"] = emit(module)
    (archive if is_static else link)(made, output, tools)
    return manifest
