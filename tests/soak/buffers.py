"""Memory for the tensors of one kernel call, of which every misuse is seen.

Nothing but the standard library is imported here: the process that runs kernels is kept small.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Protocol

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_size_t
_libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_size_t
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_size_t]

_NOTHING, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_WRITE
_MAP_NORESERVE = 0x4000
_FAILED = 2**64 - 1

#: Bytes on each side of a block that may not be touched: more than a row of any table.
_GUARD = 1 << 20


class Buffers(Protocol):
    """Where tensors live."""

    def allocate(self, size: int) -> int:
        """The address of `size` bytes that are not initialised."""

    def freeze(self, address: int) -> None:
        """Forbids to write to a block."""

    def release(self, address: int) -> None:
        """Gives a block back: nothing may touch it any more."""

    def read(self, address: int, size: int) -> bytes:
        """The content of a block, all of which must have been written."""


class GuardedBuffers:
    """Blocks between pages that end the process when they are touched.

    A block ends (or, with `at_end` false, begins) exactly where such a page begins (ends). New
    blocks are filled with the byte `poison`: what depends on it depends on uninitialised memory.
    """

    def __init__(self, at_end: bool, poison: int) -> None:
        self.at_end, self.poison = at_end, poison
        self._regions: dict[int, tuple[int, int]] = {}

    def allocate(self, size: int) -> int:
        """See `Buffers`; of an empty block the address is null, or that of a guard page."""
        if size == 0 and not self.at_end:
            return 0
        inner_size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        total = inner_size + 2 * _GUARD
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        region = _libc.mmap(0, total, _NOTHING, flags, -1, 0)
        if region == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        inner = region + _GUARD
        address = inner + inner_size - size if self.at_end else inner
        self._regions[address] = (region, inner_size)
        if inner_size:
            _protect(inner, inner_size, _READ | _WRITE)
            ctypes.memset(inner, self.poison, inner_size)
        return address

    def freeze(self, address: int) -> None:
        """See `Buffers`."""
        if address:
            region, inner_size = self._regions[address]
            _protect(region + _GUARD, inner_size, _READ)

    def release(self, address: int) -> None:
        """See `Buffers`."""
        if address:
            region, inner_size = self._regions.pop(address)
            _libc.munmap(region, inner_size + 2 * _GUARD)

    def read(self, address: int, size: int) -> bytes:
        """See `Buffers`."""
        return ctypes.string_at(address, size) if size else b""


def _protect(address: int, size: int, protection: int) -> None:
    if size and _libc.mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


class HeapBuffers:
    """Blocks of the C library's heap, for a checker that watches it."""

    def __init__(self) -> None:
        self._nowhere = os.open(os.devnull, os.O_WRONLY)

    def allocate(self, size: int) -> int:
        """See `Buffers`."""
        return int(_libc.malloc(size))

    def freeze(self, address: int) -> None:
        """Heap memory can always be written."""

    def release(self, address: int) -> None:
        """See `Buffers`."""
        _libc.free(address)

    def read(self, address: int, size: int) -> bytes:
        """See `Buffers`; the checker reports bytes that are written out uninitialised."""
        if size == 0:
            return b""
        os.write(self._nowhere, (ctypes.c_char * size).from_address(address))
        return ctypes.string_at(address, size)
