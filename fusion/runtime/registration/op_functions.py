"""The objects of the functions that all ops share; their modules are imported to compile them."""

from __future__ import annotations

from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.objects import Recipe

_PACKAGE = __name__.rpartition(".")[0]


def native_functions() -> list[int]:
    """The addresses of the shape, the create and the compute function of all ops."""
    return [objects.recipe_address(*recipe) for recipe in common_recipes()]


def common_recipes() -> list[tuple[str, Recipe]]:
    """The names of the shape, the create and the compute function, and how they are made."""
    return [
        _recipe("shape_inference", "infer_shapes", 3),
        _recipe("native_creation", "create", 3, "create_kernel"),
        _recipe("calling", "call_kernel", 2),
    ]


def loader() -> tuple[str, Recipe]:
    """What a library of ops does when it is loaded, see `loading`, and how it is made."""
    return _recipe("library.loading", "load_library", 2)


def library_provider() -> tuple[str, Recipe]:
    """What provides what a state lacks in a library of ops, and how it is made."""
    return _recipe("library.loading", "provide", 1)


def registrar() -> int:
    """The address of the function that registers ops and kernels, see `native_registry`."""
    return objects.recipe_address(*_registrar_recipe())


def provider() -> int:
    """The address of what has Python bring what a state lacks, see `creation`."""
    return objects.recipe_address(*_provider_recipe())


def expect() -> None:
    """Takes note that all of these will be needed, see `objects.expect`."""
    objects.expect([*common_recipes(), _registrar_recipe(), _provider_recipe()])


def _registrar_recipe() -> tuple[str, Recipe]:
    return _recipe("native_registry", "register", 1, "register_ops")


def _provider_recipe() -> tuple[str, Recipe]:
    return _recipe("native_creation", "ask_python", 1)


def plain_builder() -> tuple[str, Recipe]:
    """The builder of ops without one of their own, and how it is made."""
    return _recipe("states", "build_plain_state", 1)


def _recipe(module: str, function: str, n_args: int, symbol: str = "") -> tuple[str, Recipe]:
    """That of a function of a module of this package, by the function's name or another one."""
    name = symbol or function
    return name, Recipe(Compilation(f"{_PACKAGE}.{module}", function, n_args, name))
