"""The objects of the ops' kernels: how a kernel is named, found and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fusion.runtime.native import objects
from fusion.runtime.native.objects import Recipe
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_name(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> str:
    """The name of a kernel on disk, and of its function."""
    if spec.builder is not None:
        return f"{spec.kernels[device].__name__}_{device}{label}"  # several ops may have it
    return "_".join((spec.name, device + label, *types.values()))


def kernel_recipe(
    spec: OpSpec, device: str, types: Mapping[str, str], label: str = ""
) -> tuple[str, Recipe]:
    """The name of the kernel of `spec` for these dtypes, and how it is made."""

    def compile_it() -> bytes:
        return compile_kernel(spec, device, types, label)

    factory = spec.kernels[device].__module__
    name = kernel_name(spec, device, types, label)
    return name, Recipe(compile_it, (factory,), _declaration(spec))


def kernel_object(spec: OpSpec, device: str, types: Mapping[str, str]) -> bytes:
    """The object code of one kernel, from disk or else compiled and kept."""
    name, recipe = kernel_recipe(spec, device, types)
    return objects.get(name, recipe.compile_it, *recipe.modules, given=recipe.given)


def _declaration(spec: OpSpec) -> str:
    """What a factory may read of an op, which may be declared in another module; without docs.

    Factories of ops with a builder make the same kernel for several ops.
    """
    if spec.builder is not None:
        return ""
    args = [replace(arg, doc="") for arg in (*spec.inputs, *spec.outputs)]
    return f"{spec.name} {args} {[replace(attr, doc='') for attr in spec.attrs]}"


def compile_kernel(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> bytes:
    """The object code of one kernel, compiled now."""
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.native.entry import make_entry, make_shared_entry, make_short_entry

    made: Any = spec.kernels[device](spec, types)
    if spec.builder is None:
        entry = make_entry(made)
    elif isinstance(made, tuple):
        entry = make_shared_entry(*made)
    else:
        entry = make_short_entry(made)
    return compile_object(entry, 2, kernel_name(spec, device, types, label))
