"""`warm`: the kernels that models need, compiled before any of them runs."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tensorflow.core.framework import node_def_pb2

from fusion.ops import node_kernels
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.kernel_cache import KernelCache
from fusion.runtime.native import objects, sources
from fusion.runtime.native.objects import Recipe
from fusion.saved_model.errors import ModelError, graph_errors
from fusion.saved_model.model.meta_graph import lookup_pass
from fusion.saved_model.model.source import read_saved_model

#: (the number of the kernel, how many there are, its name) -> nothing, for each that is compiled.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Warmed:
    """The result of `warm`.

    Attributes:
        kernels: how many are ready.
        added: how many of them were not there before.
        seconds: what that took.
        cpu: the processor they are for, by LLVM's name.
        folder: the folder with them.
    """

    kernels: int
    added: int
    seconds: float
    cpu: str
    folder: str


def warm(
    models: Iterable[str | os.PathLike[str]] = (),
    cpu: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    all_types: bool = False,
) -> Warmed:
    """Compiles the kernels for CPUs that models need; nothing of them is run.

    Those are the kernels of fused lookups as they are, and of what the pass makes of others.

    Args:
        models: SavedModels and frozen graphs. Without any, the kernels are compiled that most
            models need: of all ops, for int64 ids and float32 tables.
        cpu: the processor to compile for, see `processor.NAMES`; by default the one that this
            process loads kernels of.
        folder: of the kernels; by default that which kernels are loaded from.
        progress: is called with each kernel before it is compiled, in order, by some thread.
        all_types: compile those of all ops for all dtypes, too.

    Raises:
        ModelError: a model cannot be read, or has a node that could not run.
        ValueError: there are no kernels for the processor, or they cannot be written.
    """
    target = processor.target() if cpu is None else processor.named(cpu)
    known = kernel_cache.default()
    files = known if folder is None else KernelCache(os.path.abspath(folder), is_chosen=True)
    path = _writable_folder(files)
    with processor.compiling_for(target):
        recipes, begun = _wanted([*models], all_types), time.monotonic()
        missing = {
            name: recipe
            for name, recipe in recipes.items()
            if files.read(objects.file_name(name, recipe)) is None
        }
        numbers, showing = itertools.count(1), threading.Lock()

        def add(name: str, recipe: Recipe) -> None:
            file_name = objects.file_name(name, recipe)
            if progress is not None:
                with showing:
                    progress(next(numbers), len(missing), name)
            content = known.read(file_name)
            if content is None:
                files.get(file_name, partial(objects.compiled, name, recipe.compile_it))
            else:
                files.get(file_name, partial(bytes, content.content))
            if files.read(file_name) is None:
                raise ValueError(f"{path}: the kernel {name} cannot be kept")

        objects.together(add, missing.items())
    sources.keep_in(files)
    return Warmed(len(recipes), len(missing), time.monotonic() - begun, target.name, path)


def _writable_folder(files: KernelCache) -> str:
    states = files.states()
    for state in states:
        if not state.problem:
            return state.path
    raise ValueError("; ".join(f"{state.path}: {state.problem}" for state in states))


def _wanted(models: list[str | os.PathLike[str]], all_types: bool) -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    if all_types:
        recipes |= node_kernels.of_all_ops()
    if all_types or not models:
        recipes |= node_kernels.of_common_types()
    for model in models:
        try:
            recipes |= node_kernels.of_nodes(nodes_of(model))
        except ModelError:
            raise
        except ValueError as error:
            raise ModelError(f"{model}: {error}") from error
    return recipes


def nodes_of(model: str | os.PathLike[str]) -> Iterator[node_def_pb2.NodeDef]:
    """All nodes of a model, and of the fused one."""
    source = read_saved_model(model)
    for meta in source.meta_graphs:
        with graph_errors(source.path):
            fused = lookup_pass(meta).apply(meta.graph_def).graph_def
        for graph_def in (meta.graph_def, fused):
            yield from graph_def.node
            for function in graph_def.library.function:
                yield from function.node_def
