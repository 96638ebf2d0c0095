"""`build_ops`: a library of the fused ops, for TensorFlow without Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fusion.ops import node_kernels
from fusion.ops.node_kernels import Place
from fusion.ops_library.build import Progress, build
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.registration.library.manifest import Manifest
from fusion.runtime.registration.library.record import LEVELS
from fusion.saved_model.errors import ModelError
from fusion.saved_model.loading.warming import nodes_of

#: What kernels can be compiled for: a level of processors, or the highest that this machine has.
NATIVE = "native"
CPUS = (*(LEVELS[level] for level in (2, 3, 4)), NATIVE)

#: What most servers have.
DEFAULT_CPU = LEVELS[3]


def build_ops(
    output: str | os.PathLike[str],
    models: Iterable[str | os.PathLike[str]] = (),
    cpus: Iterable[str] = (DEFAULT_CPU,),
    *,
    static: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Writes a library with all ops and their CPU kernels, for TensorFlow without Python.

    It registers its ops and kernels when it is loaded: by `tf.load_op_library`, by
    `TF_LoadLibrary` of TensorFlow's C API, or with a program that is linked with TensorFlow. It has
    the kernels that any fused model can run with, and those that are made for the models given.

    Args:
        output: the file.
        models: SavedModels and frozen graphs, fused or not.
        cpus: levels of processors, see `CPUS`; the highest that a machine has is used there.
        static: write an archive to link into a program, and no shared library.
        progress: is called with each kernel before it is compiled.

    Returns:
        What the library says of itself.

    Raises:
        ModelError: a model cannot be read, or has a node that could not run.
        ValueError: there are no processors, one of them is unknown, or the file is a folder, or in
            one that cannot be written.
        LinkError: there is no linker, or it fails.
        OSError: the file cannot be written.
    """
    for name, several in (("models", models), ("cpus", cpus)):
        if isinstance(several, str | os.PathLike):
            raise ValueError(f"build_ops: {name} must be a list, got {several!r}")
    levels, paths = _levels(cpus), [*models]
    # Before what takes minutes:
    if os.path.isdir(output):
        raise ValueError(f"build_ops: output {os.fspath(output)} is a folder, give a file")
    folder = Path(output).absolute().parent
    if not os.access(folder, os.W_OK):
        raise ValueError(f"build_ops: output {os.fspath(output)}: {folder} cannot be written")

    def places() -> Iterator[Place]:
        yield from node_kernels.places_of_all_ops()
        yield from node_kernels.places_of_any_dimension()
        for path in paths:
            try:
                yield from node_kernels.places_of_nodes(nodes_of(path))
            except ModelError:
                raise
            except ValueError as error:
                raise ModelError(f"{path}: {error}") from error

    return build(Path(output), levels, places, progress, is_static=static)


def _levels(cpus: Iterable[str]) -> list[int]:
    """The levels of processors, each once."""
    numbers = {name: level for level, name in LEVELS.items()}
    levels = set()
    for cpu in cpus:
        if cpu not in CPUS:
            raise ValueError(f"build_ops: cpus must be of {', '.join(CPUS)}, got {cpu!r}")
        levels.add(_native_level() if cpu == NATIVE else numbers[cpu])
    if not levels:
        raise ValueError("build_ops: cpus must not be empty")
    return sorted(levels)


def _native_level() -> int:
    host = processor.host()
    has = [k for k in LEVELS if k > 1 and processor.runs(Processor(LEVELS[k]), on=host)]
    if not has:
        raise ValueError(f"build_ops: cpus: this machine has less than {LEVELS[2]}")
    return max(has)
