"""How everything that ends up in a kernel is compiled.

No exceptions (the NumPy error model), no GIL: then the object code needs no Python symbol
(fusion.runtime.native.compiler checks that).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numba import njit
from numba.core.types import int64 as int64_type
from numba.core.types import unliteral

from fusion.runtime.native.code_generation import OPTIONS, InlineCompiler, Pipeline

#: A 64-bit integer from any other, in compiled code; typed so that it mixes with int.
int64: Any = np.int64

#: A NumPy array, as compiled code sees it.
Array: TypeAlias = Any

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """A function for use in kernels, compiled on first use; Python cannot call it."""
    return _compiled(function, OPTIONS)


def inlined(function: F) -> F:
    """As `jit`: a part of the functions that call it, which LLVM alone would call for its size."""
    return _compiled(function, OPTIONS | {"forceinline": True})


def _compiled(function: F, options: dict[str, Any]) -> F:
    compiled = njit(**options)(function)
    old = compiled._compiler
    compiled._compiler = InlineCompiler(
        old.py_func, old.targetdescr, old.targetoptions, old.locals, Pipeline
    )
    by_type = compiled.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        # Numba would compile a function again for each literal integer it is called with.
        return by_type(tuple(unliteral(arg) for arg in args), kws)

    compiled.get_call_template = get_call_template
    result: F = compiled
    return result


def callable_from_python(function: Any) -> Any:
    """A jitted function as one that Python can call with arrays and addresses: for tests."""
    from fusion.runtime.native import pointers

    source = function.py_func
    arg_types = pointers.entry_types(source)
    if all(arg_type is int64_type for arg_type in arg_types):
        return njit(**OPTIONS)(source)
    scope = {"function": function, "words": pointers.as_words, "record": pointers.as_record}
    arguments = []
    for k, arg_type in enumerate(arg_types):
        scope[f"layout{k}"] = getattr(arg_type, "layout", None)
        is_record, is_words = hasattr(arg_type, "layout"), arg_type is pointers.POINTERS.words_type
        arguments.append(
            f"record(layout{k}, a{k})" if is_record else f"words(a{k})" if is_words else f"a{k}"
        )
    names = ", ".join(f"a{k}" for k in range(len(arg_types)))
    exec(f"def call({names}): return function({', '.join(arguments)})", scope)
    return njit(**OPTIONS)(scope["call"])
