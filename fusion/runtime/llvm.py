"""LLVM, from the package llvmlite: imported only when something is compiled or loaded.

A process whose kernels are those of a library of ops needs neither llvmlite nor Numba.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

_LIBC_FAILED = ctypes.c_void_p(-1).value


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


def require_executable_memory() -> None:
    """Checks that a written page of memory can become executable, as LLVM needs it.

    LLVM itself ignores a failure, and the first kernel would crash the process.

    Raises:
      ImportError: the system forbids it; the message says what may do so.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    page = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if page == _LIBC_FAILED:
        return  # out of memory, which a later allocation reports
    try:
        ctypes.memset(page, 0xC3, 1)
        if libc.mprotect(page, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0:
            return
        reason = os.strerror(ctypes.get_errno())
    finally:
        libc.munmap(page, size)
    raise ImportError(
        "fusion cannot work here: the system does not let memory that was written become "
        f"executable ({reason}), which compiled kernels need. Such a rule is systemd's "
        "MemoryDenyWriteExecute=yes (set it to no for this service), prctl's PR_SET_MDWE, SELinux "
        "without execmem (allow it for this domain), or PaX's MPROTECT"
    )
