"""Memory as zeros, of which the system provides the pages when they are used."""

from __future__ import annotations

from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memset

_i32, _i64 = types.int32, types.int64
_madvise = types.ExternalFunction("madvise", _i32(_i64, _i64, _i32))

#: Of a large page, the unit that is advised on; smaller memory is written.
_PAGE = 1 << 21

#: The numbers of MADV_DONTNEED and MADV_HUGEPAGE (Linux, asm-generic/mman-common.h).
_DROP, _LARGE = 4, 14


@jit
def make_zeros(address: int, size: int) -> None:
    """Makes memory zeros, if it can without use of any of it but the ends.

    Pages that were dropped are zeros when they are used again. What cannot be dropped (locked
    memory) is written.
    """
    first = (address + _PAGE - 1) // _PAGE * _PAGE
    end = (address + size) // _PAGE * _PAGE
    if first >= end or _madvise(first, end - first, types.int32(_DROP)) != 0:
        c_memset(address, types.int32(0), size)
        return
    # Only faster: lookups are all over the memory, and there are more pages than the processor
    # remembers.
    _madvise(first, end - first, types.int32(_LARGE))
    c_memset(address, types.int32(0), first - address)
    c_memset(end, types.int32(0), int64(address + size - end))
