"""What of this installation works, for people who wonder why something does not."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import tensorflow as tf
from tensorflow.python.framework import kernels

from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.optimizer import plugin
from fusion.runtime.registration.library.chosen import chosen_library
from fusion.runtime.tensorflow import library, variable_access
from fusion.runtime.tensorflow.spec import OpSpec

#: (what, its value, whether it is as it should be)
Fact = tuple[str, str, bool]


def facts(specs: tuple[OpSpec, ...]) -> list[Fact]:
    """Versions, symbols, ops, devices and the kernel cache, in the order to print them."""
    missing = library.missing_symbols()
    found = f"{len(library.SYMBOLS) - len(missing)} of {len(library.SYMBOLS)}"
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
            f"{found} {'missing: ' + ', '.join(missing) if missing else ''}".strip(),
            not missing,
        ),
        *(_op(spec) for spec in specs),
        ("devices", ", ".join(device.name for device in tf.config.list_physical_devices()), True),
        ("Grappler plugin symbol", *_grappler_symbol()),
        ("variables of lookups", *_shared_variables()),
    ]


def _compiler() -> list[Fact]:
    """What kernels are compiled with, unless a library has them."""
    library_of_ops = chosen_library()
    if library_of_ops is not None:  # it was loaded, or fusion could not be imported
        return [("ops library", str(library_of_ops), True)]
    packages = ((name, *_version(name)) for name in ("numba", "llvmlite"))
    return [*packages, _processor(), *_cache()]


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
    text = ", ".join(f"{count} {device} kernels" for device, count in sorted(by_device.items()))
    return f"op {spec.name}", text or "no kernels", bool(registered)


def _grappler_symbol() -> tuple[str, bool]:
    # Without it models can still be rewritten in files, or as they are loaded.
    if plugin.symbol() is None:
        return "absent: graphs cannot be rewritten while they run", True
    if others := plugin.other_plugins():
        taken = f"taken by {', '.join(others)}: graphs cannot be rewritten while they run"
        return f"present, {taken}", True
    return "present", True


def _shared_variables() -> tuple[str, bool]:
    # Without the functions that it takes, lookups in variables keep their gathers.
    shared = variable_access.is_shared("float32", "CPU")
    return ("read in place" if shared else "gathered from: TensorFlow cannot share them"), True


def _cache() -> list[Fact]:
    found: list[Fact] = []
    is_kept = False
    for state in kernel_cache.default().states():
        kernels = f"{state.path} ({state.kernels} kernels"
        if not state.problem:
            note = "" if is_kept else ", new ones go here"
            found.append(("kernel cache", f"{kernels}{note})", True))
            is_kept = True
        else:
            found.append(("kernel cache", f"{kernels}): {state.problem}", True))
    if not is_kept:
        found.append(("kernel cache", "none can be written: see docs/cache.md", False))
    return found


def _processor() -> Fact:
    chosen, why_not = processor.choice(os.environ.get(processor.CPU_VARIABLE, ""))
    host = processor.host()
    compiled = "" if chosen == host else f", kernels for {chosen.name}"
    return "processor", f"{host.name}{compiled}{why_not and ': ' + why_not}", not why_not
