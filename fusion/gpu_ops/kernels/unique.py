"""Distinct ids in order of first occurrence, by a hash table in device memory.

Threads put ids into the table in any order, but a slot ends up with the first position of its id;
then prefix sums of the first positions number the ids. So the result does not depend on the order.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.unique import SPREAD
from fusion.gpu_ops.kernels.elements import integer_at
from fusion.gpu_ops.language.device import (
    atomic_add,
    atomic_min,
    compare_and_swap,
    cuda,
    jit,
    load,
    load_as,
    store,
    store_as,
)
from fusion.gpu_ops.layout.records import Firsts, Ids
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT64

#: An empty slot.
EMPTY = -1


@jit
def slot_of(key: int, bits: int) -> int:
    """Where the search for an id begins (Knuth, The Art of Computer Programming, vol. 3, 6.4)."""
    return int64((np.uint64(key) * SPREAD) >> np.uint64(64 - bits))


def insert_ids(ids: Ids, slots: int, bits: int, id_slots: int) -> None:
    """Kernel, a thread for each id: finds its slot, which gets the first position of the id.

    Args:
        slots, bits: int64 [2**bits], all `EMPTY`, at least twice as many as ids.
        id_slots: out, as of `Firsts`.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ids.number:
        return
    key = integer_at(ids.address, k, ids.dtype)
    slot, mask = slot_of(key, bits), (int64(1) << bits) - 1
    while True:
        holder = load(slots, slot)
        if holder == EMPTY:
            holder = compare_and_swap(slots, slot, int64(EMPTY), k)
            if holder == EMPTY:
                break
        # Whichever position the slot has by now, it is one of the same id.
        if integer_at(ids.address, holder, ids.dtype) == key:
            atomic_min(slots, slot, k, np.int64)
            break
        slot = (slot + 1) & mask
    store(id_slots, k, slot)


def mark_firsts(slots: int, id_slots: int, count: int, firsts: int) -> None:
    """Kernel, a thread for each id: 1 at the first occurrence of an id, else 0, as int32."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k < count:
        store_as(firsts, k, np.int32(load(slots, load(id_slots, k)) == k), np.int32)


def number_ids(ids: Ids, firsts: Firsts, keys: int, unique_idxs: int, counts: int) -> None:
    """Kernel, a thread for each id: writes the distinct ids, and which of them each is.

    Args:
        keys: out, [u] of the dtype of `ids`.
        unique_idxs: out, int32 [number of ids].
        counts: out, int32 [u], zeros before: occurrences of each key.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ids.number:
        return
    first = load(firsts.slots, load(firsts.id_slots, k))
    rank = load(firsts.ranks, first)
    store_as(unique_idxs, k, np.int32(rank), np.int32)
    atomic_add(counts, rank, np.int32(1), np.int32)
    if first == k:
        if ids.dtype == INT64:
            store(keys, rank, load(ids.address, k))
        else:
            store_as(keys, rank, load_as(ids.address, k, np.int32), np.int32)
