"""The objects of the functions that all ops share; their modules are imported to compile them."""

from __future__ import annotations

from fusion.runtime.native import objects


def native_functions() -> tuple[int, int]:
    """The addresses of the shape function and the create function of all ops."""
    return (
        objects.address("infer_shapes", _compile_infer_shapes),
        objects.address("create_kernel", _compile_create_kernel),
    )


def _compile_infer_shapes() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.shape_inference import infer_shapes

    return compile_object(infer_shapes, 3, "infer_shapes")


def _compile_create_kernel() -> bytes:
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.registration.native_creation import create

    return compile_object(create, 3, "create_kernel")
