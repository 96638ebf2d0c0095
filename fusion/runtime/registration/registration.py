"""Ops and kernels into TensorFlow's registries, once per process.

TensorFlow aborts the process when a name is registered twice, and never forgets a registration.
So each name is looked up first, and whatever TensorFlow keeps an address of is never freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tensorflow.core.framework import op_def_pb2

from fusion.runtime.native import objects
from fusion.runtime.process import keep_forever
from fusion.runtime.records import LiveMemory
from fusion.runtime.registration import op_functions, op_kernels, registry
from fusion.runtime.registration.library.chosen import chosen_library, load_library, unusable
from fusion.runtime.registration.op_functions import native_functions, registrar
from fusion.runtime.registration.op_kernels import FindGpus, Kernels
from fusion.runtime.registration.registry import Registry
from fusion.runtime.registration.thunks import COMPUTE, thunks
from fusion.runtime.tensorflow import layout, library
from fusion.runtime.tensorflow.private import kernels, op_def_registry, ops
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import pool


def register(specs: tuple[OpSpec, ...], gpus: FindGpus | None = None) -> None:
    """Registers ops, kernels and gradients, unless they are registered already.

    Args:
      gpus: finds the GPUs when the first kernel for one is made; None: there are no such kernels.

    Raises:
      ImportError: this is not a supported platform, TensorFlow lacks something that is needed, or
        it has a different op of one of these names.
    """
    library.load()
    chosen = chosen_library()
    if chosen is not None:
        _load(chosen, specs)
        gpus = None
    else:
        pool.warn_of_setting()
    new = [spec for spec in specs if not _is_registered(spec)]
    registered = {spec.name for spec in specs} - {spec.name for spec in new}
    # TensorFlow searches all of its kernels for those of an op; a new op has none.
    unkerneled = [spec for spec in specs if spec.name not in registered or not _has_kernels(spec)]
    if unkerneled:
        op_functions.expect()
        memory = _permanent_memory()
        tables = {spec.name: memory.words(layout.words(spec, memory)) for spec in unkerneled}
        new_kernels = [Kernels(spec, "CPU", tables[spec.name]) for spec in unkerneled]
        if gpus is not None:
            on_gpus = [one for one in new_kernels if "GPU" in one.spec.kernels]
            new_kernels += [replace(one, device="GPU", gpus=gpus) for one in on_gpus]
        _register(new, tables, new_kernels, memory)
    for spec in specs:
        _register_gradient(spec)


def _load(path: Path, specs: tuple[OpSpec, ...]) -> None:
    """Has a library register the ops, unless they are registered already."""
    if not all(map(_is_registered, specs)):
        load_library(path)
    missing = [spec.name for spec in specs if not _is_registered(spec)]
    if missing:
        raise unusable(path, f"the standard error says why it has not registered {missing[0]}")


def register_labelled(specs: tuple[OpSpec, ...], gpus: FindGpus, label: str) -> None:
    """Registers kernels for GPUs for nodes on a CPU that ask for them by a label.

    Tests use it where there is no GPU.
    """
    memory = _permanent_memory()
    new_kernels = [
        Kernels(spec, "GPU", memory.words(layout.words(spec, memory)), gpus, label)
        for spec in specs
        if "GPU" in spec.kernels
    ]
    _register([], {}, new_kernels, memory)


def _permanent_memory() -> LiveMemory:
    memory = LiveMemory()
    keep_forever(memory)
    return memory


def _is_registered(spec: OpSpec) -> bool:
    registered = op_def_registry.get(spec.name)
    if registered is None:
        return False
    plain = op_def_pb2.OpDef()
    plain.CopyFrom(registered)
    if plain != spec.op_def:
        raise ImportError(
            f"fusion cannot register its op {spec.name}: TensorFlow already has a different op "
            "of that name, from another library or another version of fusion"
        )
    return True


def _has_kernels(spec: OpSpec) -> bool:
    return bool(kernels.get_registered_kernels_for_op(spec.name).kernel)


def _register(
    new: list[OpSpec], tables: Mapping[str, int], new_kernels: list[Kernels], memory: LiveMemory
) -> None:
    """Registers ops and kernels.

    Args:
      tables: the addresses of their tables, by name.
    """
    shapes = {f"shape_{spec.name}": tables[spec.name] for spec in new}
    records = {f"create_{index}": one.address for index, one in enumerate(new_kernels)}
    symbols = [COMPUTE, *shapes, *records]
    module = thunks(shapes, records, *native_functions())
    functions = dict(zip(symbols, objects.load_ir(module, symbols), strict=True))
    free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value
    address = registry.registry(
        [
            registry.op_record(spec, functions[f"shape_{spec.name}"], tables[spec.name], memory)
            for spec in new
        ],
        [
            registry.kernel_entries(one.spec, one.device, one.label, functions[create], memory)
            for create, one in zip(records, new_kernels, strict=True)
        ],
        functions[COMPUTE],
        free,
        memory,
    )
    for one in new_kernels:
        op_kernels.add(one)
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(registrar())(address)
    words = (ctypes.c_int64 * Registry.SIZE).from_address(address)
    if words[Registry.code]:
        message = ctypes.string_at(address + 8 * Registry.message).decode(errors="replace")
        raise RuntimeError(f"registering ops: {message}")


def _register_gradient(spec: OpSpec) -> None:
    try:
        ops.gradient_registry.lookup(spec.name)
    except LookupError:
        if callable(spec.gradient):
            ops.RegisterGradient(spec.name)(spec.gradient)
        elif spec.gradient is not None:
            ops.NotDifferentiable(spec.name)
