"""Intrinsics that stand for a few instructions of LLVM, for Numba on CPUs and on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from numba import extending


def instruction(signature: Any, intrinsic: Any = extending.intrinsic) -> Callable[[Any], Any]:
    """A decorator that makes an intrinsic of a function (builder, *values) -> value or None.

    Where the code depends on types, and not on values alone, Numba's own decorator serves.

    Args:
      signature: Numba's, or a function of the types of the arguments that gives it.
      intrinsic: Numba's decorator, that of the target.
    """

    def decorate(build: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = build(builder, *args)
            return context.get_dummy_value() if value is None else value

        @intrinsic
        @wraps(build)  # so that Numba knows the arguments: all but the first
        def typing(typingctx: Any, *args: Any, **kws: Any) -> Any:
            return signature(*args, **kws) if callable(signature) else signature, codegen

        return typing

    return decorate
