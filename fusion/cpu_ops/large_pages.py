"""Large pages for tables and results.

A random row of a large table costs a walk through the page tables besides the row itself. With
pages of 2 MiB nearly all of these walks end in the processor's caches: of a table of 1 GiB, rows of
128 bytes came 1.6 times as fast, rows of 512 bytes 1.4 times; of tables of 6 MiB no faster.
TensorFlow's memory has pages of 4 KiB unless somebody asks for others.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.cpu_ops.column_words import LARGE, LARGE_COUNT, LARGE_UNTIL
from fusion.runtime.atomic import atomic_load, atomic_store, atomic_swap_if
from fusion.runtime.jit import jit
from fusion.runtime.memory import load, store

_PAGE = 2 << 20
#: The page tables of less memory than this stay in the caches.
_LEAST = 32 << 20
#: Turning memory into large pages copies it: a call does at most so much of it for a column.
_SLICE = 64 << 20

# Of madvise(2).
_HUGEPAGE, _COLLAPSE = 14, 25

_madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))


@jit
def _inner(address: int, size: int) -> tuple[int, int]:
    """The first and the end of the large pages that lie in memory entirely."""
    return (address + _PAGE - 1) & ~(_PAGE - 1), (address + size) & ~(_PAGE - 1)


@jit
def ask_for_large_pages(address: int, size: int) -> None:
    """Lets memory that is not written yet have large pages; a refusal does no harm."""
    if size < _LEAST:
        return
    first, end = _inner(address, size)
    if first < end:
        _madvise(first, end - first, np.int32(_HUGEPAGE))


@jit
def enlarge_pages(column: int, address: int, size: int) -> None:
    """Turns some more of a table's memory into large pages, until all of it is; see `column_words`.

    Tables that move, as trained ones do, are given up on.
    """
    if size < _LEAST:
        return
    first, end = _inner(address, size)
    if atomic_load(column, LARGE) != address:
        if load(column, LARGE_COUNT) <= 0 or first >= end:
            return
        store(column, LARGE_COUNT, load(column, LARGE_COUNT) - 1)
        atomic_store(column, LARGE_UNTIL, first)
        atomic_store(column, LARGE, address)
    done = atomic_load(column, LARGE_UNTIL)
    if done < first or done >= end:
        return
    until = min(done + _SLICE, end)
    if atomic_swap_if(column, LARGE_UNTIL, done, until):
        _madvise(done, until - done, np.int32(_HUGEPAGE))
        _madvise(done, until - done, np.int32(_COLLAPSE))
