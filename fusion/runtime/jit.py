"""How everything that ends up in a kernel is compiled.

No exceptions (the NumPy error model), no reference counting, no GIL: then the object code needs
no Python symbol (fusion.runtime.compiler checks that).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """A function for use in kernels, compiled on first use."""
    compiled: F = njit(**OPTIONS)(function)
    return compiled
