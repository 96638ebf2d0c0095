"""LLVM, by the package llvmlite: imported when something is compiled or loaded, and not before.

A process whose kernels are those of a library of ops needs neither llvmlite nor Numba.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def binding() -> Any:
    """The module `llvmlite.binding`.

    Raises:
      ImportError: the package is not installed.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise ImportError(
            "this needs a compiler, the packages numba and llvmlite, which cannot be imported "
            f"({error}); a library of ops (FUSION_OPS_LIBRARY) has the kernels of ops alone"
        ) from error
    return llvm
