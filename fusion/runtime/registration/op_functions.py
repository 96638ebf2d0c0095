"""The objects of the functions that all ops share; their modules are imported to compile them."""

from __future__ import annotations

from fusion.runtime.native import objects
from fusion.runtime.native.objects import Recipe


def native_functions() -> tuple[int, int]:
    """The addresses of the shape function and the create function of all ops."""
    infer, create = common_recipes()
    return objects.recipe_address(*infer), objects.recipe_address(*create)


def common_recipes() -> tuple[tuple[str, Recipe], tuple[str, Recipe]]:
    """The names of the shape function and the create function, and how they are made."""
    infer = "infer_shapes", Recipe(_compile_infer_shapes)
    return infer, ("create_kernel", Recipe(_compile_create_kernel))


def loader() -> tuple[str, Recipe]:
    """What a library of ops does when it is loaded, see `native_loading`, and how it is made."""
    return "load_library", Recipe(_compile_loader)


def library_provider() -> tuple[str, Recipe]:
    """What provides what a state lacks in a library of ops, and how it is made."""
    return "provide", Recipe(_compile_library_provider)


def registrar() -> int:
    """The address of what tells TensorFlow of ops and kernels, see `native_registry`."""
    return objects.address("register_ops", _compile_registrar)


def provider() -> int:
    """The address of what has Python bring what a state lacks, see `creation`."""
    return objects.address("ask_python", _compile_provider)


def plain_builder() -> tuple[str, Recipe]:
    """The builder of ops without one of their own, and how it is made."""
    return "build_plain_state", Recipe(_compile_plain_builder)


def _compile_plain_builder() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.plain_state import build_plain_state

    return compile_object(build_plain_state, 1, "build_plain_state")


def _compile_loader() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.library.loading import load_library

    return compile_object(load_library, 2, "load_library")


def _compile_library_provider() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.library.providing import provide

    return compile_object(provide, 1, "provide")


def _compile_registrar() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.native_registry import register

    return compile_object(register, 1, "register_ops")


def _compile_provider() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.asking import ask_python

    return compile_object(ask_python, 1, "ask_python")


def _compile_infer_shapes() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.shape_inference import infer_shapes

    return compile_object(infer_shapes, 3, "infer_shapes")


def _compile_create_kernel() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.native_creation import create

    return compile_object(create, 3, "create_kernel")
