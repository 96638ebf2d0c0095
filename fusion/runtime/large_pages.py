"""Large pages for tables and results.

A random row of a large table costs a walk through the page tables besides the row itself. With
pages of 2 MiB nearly all of these walks end in the processor's caches: of a table of 1 GiB, rows of
128 bytes came 1.6 times as fast, rows of 512 bytes 1.4 times; of tables of 6 MiB no faster.
TensorFlow's memory has pages of 4 KiB unless somebody asks for others.

Turning memory into large pages copies it, some 5 ms for each. So a kernel only notes a table in the
pool, see `threads`, and a thread that has nothing else to do works on it, a page at a time. Memory
that is gone by then does no harm: nothing is written but the pages' own contents.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.atomic import atomic_load, atomic_store, atomic_swap_if
from fusion.runtime.jit import jit
from fusion.runtime.memory import load, store
from fusion.runtime.threads import CHORE, CHORE_AT, CHORE_END

_PAGE = 2 << 20
#: The page tables of less memory than this stay in the caches.
LEAST_BYTES = 32 << 20

#: States of the pool's chore: there is none, it waits for a thread, somebody has it.
_NONE, _READY, _TAKEN = range(3)

#: What a kernel remembers, by word: the table that it noted last, and how many more it may.
NOTED, NOTES_LEFT = range(2)

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
    if size < LEAST_BYTES:
        return
    first, end = _inner(address, size)
    _madvise(first, end - first, np.int32(_HUGEPAGE))


@jit
def note_table(pool: int, notes: int, address: int, size: int) -> bool:
    """Notes a table for large pages, unless another is in work; returns whether it did.

    Args:
      pool: the pool, or 0: no thread has time.
      notes: the address of what the kernel remembers. Tables that move, as trained ones do, are
        given up on after a few times.
    """
    if pool == 0 or size < LEAST_BYTES or atomic_load(notes, NOTED) == address:
        return False
    if load(notes, NOTES_LEFT) <= 0 or not atomic_swap_if(pool, CHORE, _NONE, _TAKEN):
        return False
    store(notes, NOTES_LEFT, load(notes, NOTES_LEFT) - 1)
    atomic_store(notes, NOTED, address)
    first, end = _inner(address, size)
    store(pool, CHORE_AT, first)
    store(pool, CHORE_END, end)
    atomic_store(pool, CHORE, _READY)
    return True


@jit
def enlarge_a_page(pool: int) -> bool:
    """Makes a page of the table that is noted in the pool; returns whether there was one."""
    if atomic_load(pool, CHORE) != _READY or not atomic_swap_if(pool, CHORE, _READY, _TAKEN):
        return False
    at = load(pool, CHORE_AT)
    _madvise(at, _PAGE, np.int32(_HUGEPAGE))
    _madvise(at, _PAGE, np.int32(_COLLAPSE))
    store(pool, CHORE_AT, at + _PAGE)
    atomic_store(pool, CHORE, _READY if at + _PAGE < load(pool, CHORE_END) else _NONE)
    return True
