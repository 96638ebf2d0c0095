"""The objects of the ops' kernels: their names and recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.objects import Recipe
from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def kernel_name(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> str:
    """The name of a kernel on disk, and of its function."""
    if not spec.is_per_dtype:
        return f"{spec.kernels[device].__name__}_{device}{label}"  # several ops may have it
    return "_".join((spec.name, device + label, *types.values()))


def kernel_recipe(
    spec: OpSpec, device: str, types: Mapping[str, str], label: str = ""
) -> tuple[str, Recipe]:
    """The name of the kernel of `spec` for these dtypes, and how it is made."""
    factory, name = spec.kernels[device], kernel_name(spec, device, types, label)
    arguments = (factory, _declaration(spec), dict(types))
    compile_it = Compilation(__name__, "kernel_entry", 2, name, arguments)
    modules = {each.__module__ for each in type(factory).__mro__} - {"builtins"}
    return name, Recipe(compile_it, (factory.__module__, *sorted(modules)))


def kernel_object(spec: OpSpec, device: str, types: Mapping[str, str]) -> bytes:
    """The object code of one kernel, from the cache or else compiled."""
    name, recipe = kernel_recipe(spec, device, types)
    return objects.get(name, recipe.compile_it, *recipe.modules)


def _declaration(spec: OpSpec) -> OpSpec | None:
    """The declaration of an op that a factory may read; the op may be in another module.

    Factories of kernels for all dtypes make one kernel for several ops, and read nothing.
    """
    if not spec.is_per_dtype:
        return None
    inputs, outputs = (
        tuple(replace(arg, doc="") for arg in args) for args in (spec.inputs, spec.outputs)
    )
    attrs = tuple(replace(attr, doc="") for attr in spec.attrs)
    return OpSpec(spec.name, "", inputs, outputs, attrs)


def kernel_entry(factory: KernelFactory, spec: OpSpec | None, types: Mapping[str, str]) -> Any:
    """The compute function of a kernel, as `_declaration` describes its op."""
    from fusion.runtime.native.entry import make_entry, make_shared_entry, make_short_entry

    result: Any = factory(spec, types)  # type: ignore[arg-type]
    enter = make_short_entry if spec is None else make_entry
    if not isinstance(result, tuple):
        return enter(result)
    body, work, job = result
    return make_shared_entry(enter(body), work, job)
