"""Checks of this installation, for `fusion doctor`."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

import tensorflow as tf

from fusion.printable import counted
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.kernel_cache import FolderState
from fusion.runtime.native import objects
from fusion.runtime.native.compiling import packaged
from fusion.runtime.optimizer import plugin
from fusion.runtime.registration.library.chosen import chosen_library
from fusion.runtime.tensorflow import library, variable_access
from fusion.runtime.tensorflow.private import kernels
from fusion.runtime.tensorflow.spec import OpSpec

#: (name, value, whether the value is as it should be)
Fact = tuple[str, str, bool]


def facts(specs: tuple[OpSpec, ...]) -> list[Fact]:
    """Versions, symbols, ops, devices and the kernel cache, in the order to print them."""
    missing = library.missing_symbols()
    symbol_count = f"{len(library.SYMBOLS) - len(missing)} of {len(library.SYMBOLS)}"
    return [
        (
            "platform",
            f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            True,
        ),
        ("tensorflow", tf.__version__, True),  # of whatever distribution
        ("numpy", *_version("numpy")),
        *_compiler(),
        (
            "C API symbols",
            f"{symbol_count} {'missing: ' + ', '.join(missing) if missing else ''}".strip(),
            not missing,
        ),
        *(_op(spec) for spec in specs),
        ("devices", ", ".join(device.name for device in tf.config.list_physical_devices()), True),
        ("Grappler plugin symbol", *_grappler_symbol()),
        *_device_plugins(),
        ("variables of lookups", *_shared_variables()),
    ]


def _compiler() -> list[Fact]:
    """The compiler of kernels, or the library of ops that is used instead."""
    library_of_ops = chosen_library()
    if library_of_ops is not None:  # it was loaded, or fusion could not be imported
        return [("ops library", str(library_of_ops), True)]
    packages = ((name, *_version(name)) for name in ("numba", "llvmlite"))
    return [*packages, _processor(), _packaged(), *_cache()]


def _version(package: str) -> tuple[str, bool]:
    try:
        return version(package), True
    except PackageNotFoundError:
        return "not installed", False


def _op(spec: OpSpec) -> Fact:
    registered = kernels.get_registered_kernels_for_op(spec.name).kernel
    by_device: dict[str, int] = {}
    for kernel in registered:
        by_device[kernel.device_type] = by_device.get(kernel.device_type, 0) + 1
    text = ", ".join(
        counted(count, f"{device} kernel") for device, count in sorted(by_device.items())
    )
    return f"op {spec.name}", text or "no kernels", bool(registered)


def _grappler_symbol() -> tuple[str, bool]:
    # Without it models can still be rewritten in files, or as they are loaded.
    if plugin.symbol() is None:
        return "absent: graphs cannot be rewritten while they run", True
    if plugins := plugin.other_plugins():
        text = f"taken by {', '.join(plugins)}: graphs cannot be rewritten while they run"
        return f"present, {text}", True
    return "present", True


def _shared_variables() -> tuple[str, bool]:
    # Without the functions that this needs, lookups in variables keep their gathers.
    shared = variable_access.is_shared("float32", "CPU")
    return ("read in place" if shared else "gathered from: TensorFlow cannot share them"), True


def _packaged() -> Fact:
    """The kernels that came with the package."""
    count = len(kernel_cache.packaged().kernels())
    none = "none; `fusion warm` compiles those that most models need"
    text = f"{count} for {packaged.PROCESSOR.name}" if count else none
    return "kernels of the package", text, True


def _cache() -> list[Fact]:
    cache = kernel_cache.default()
    states = cache.states()
    first = next((state for state in states if not state.problem), None)
    folder_facts = [("kernel cache", _folder_text(state, state is first), True) for state in states]
    if first is not None:
        return folder_facts
    # The temporary folder is removed with the process.
    files = (file for state in states if state.path in cache.folders for file in state.kernels)
    target = processor.target().name
    if count := sum(objects.processor_of(file) == target for file in files):
        text = f"the {count} kernels for {target} are used; others cannot be kept"
        return [*folder_facts, ("kernel cache", text, True)]
    return [*folder_facts, ("kernel cache", "none can be written: see docs/cache.md", False)]


def _folder_text(state: FolderState, is_first: bool) -> str:
    if not state.is_used:
        fix = f"; fix it with `{state.fix_command}`" if state.fix_command else ""
        return f"{state.path} is not used: {state.problem}{fix}"
    count = len(state.kernels)
    notes = [f"{count} kernel{'' if count == 1 else 's'}"]
    by_processor = Counter(map(objects.processor_of, state.kernels))
    del by_processor[processor.target().name]
    notes += [f"{n} of them for {name or 'older versions'}" for name, n in by_processor.items()]
    notes += ["new ones go here"] if is_first else []
    notes += [f"only read: {state.problem}"] if state.problem else []
    return f"{state.path} ({', '.join(notes)})"


def _device_plugins() -> list[Fact]:
    text = "fused ops have no kernels for its devices"
    return [("device plugin", f"{path}: {text}", True) for path in plugin.device_plugins()]


def _processor() -> Fact:
    chosen, why_not = processor.choice(os.environ.get(processor.CPU_VARIABLE, ""))
    host = processor.host()
    compiled = "" if chosen == host else f", kernels for {chosen.name}"
    return "processor", f"{host.name}{compiled}{why_not and ': ' + why_not}", not why_not
