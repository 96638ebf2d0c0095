"""Buckets of an index, and the locks of its stripes."""

from __future__ import annotations

import numpy as np

from fusion.ops.tables.cpu_kernels.layout import BUCKET_BYTES, KEYS, STRIPES, KeyIndex
from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_add, atomic_load, atomic_store, atomic_swap
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store_as
from fusion.runtime.native.pointers import as_words
from fusion.runtime.threads.jobs import sched_yield

#: Where the int32s of a bucket and the number of the next one are, in int32s.
_ROWS, NEXT = 10, 15

#: So often a thread looks whether a lock is free before it lets others run.
_SPINS = 200


@jit
def hash_of(key: int) -> int:
    """The hash of a key: the finalizer of MurmurHash3 (A. Appleby, 2011), a bijection."""
    value = np.uint64(key)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return int64(value)


@jit
def whole_of(count: int) -> int:
    """The largest power of two that is at most a number of buckets."""
    whole = int64(STRIPES)
    while whole * 2 <= count:
        whole *= 2
    return whole


@jit
def bucket_of(index: KeyIndex, hashed: int, count: int, whole: int) -> Words:
    """The address of the bucket of a hash where there are so many."""
    number = hashed & (2 * whole - 1)
    if number >= count:
        number -= whole
    return as_words(index + index.buckets + BUCKET_BYTES * number)


@jit
def row_at(bucket: int, place: int) -> int:
    """The value at an index: the number of a row, or -n, or 0."""
    return int64(load_as(bucket, _ROWS + place, np.int32))


@jit
def set_row(bucket: int, place: int, row: int) -> None:
    """Sets what `row_at` gives."""
    store_as(bucket, _ROWS + place, np.int32(row), np.int32)


@jit
def next_of(index: KeyIndex, bucket: int) -> Words:
    """The address of the next bucket of a chain, 0 if there is none."""
    number = int64(load_as(bucket, NEXT, np.int32))
    return as_words(more_bucket(index, number) if number != 0 else int64(0))


@jit
def more_bucket(index: KeyIndex, number: int) -> Words:
    """The address of a bucket that continues a chain."""
    return as_words(index + index.more + BUCKET_BYTES * (number - 1))


@jit
def place_of(bucket: Words, key: int) -> int:
    """The index of a key in a bucket, -1 if it is not there."""
    result = int64(-1)
    for place in range(KEYS):
        if bucket[place] == key and row_at(bucket, place) != 0:
            result = int64(place)
    return result


@jit
def lock(index: int, field: int) -> None:
    """Waits for a lock, a field of the index."""
    while atomic_swap(index, field, int64(1)) != 0:
        spins = 0
        while atomic_load(index, field) != 0:
            spins += 1
            if spins > _SPINS:
                sched_yield()


@jit
def unlock(index: int, field: int) -> None:
    """Lets others have a lock."""
    atomic_store(index, field, int64(0))


@jit
def begin_change(index: int, stripe: int) -> None:
    """Locks a stripe, and makes its version odd, so that readers read again."""
    lock(index, KeyIndex.locks + stripe)
    atomic_add(index, KeyIndex.versions + stripe, int64(1))


@jit
def end_change(index: int, stripe: int) -> None:
    """Ends `begin_change`."""
    atomic_add(index, KeyIndex.versions + stripe, int64(1))
    unlock(index, KeyIndex.locks + stripe)


@jit
def new_bucket(index: KeyIndex) -> int:
    """The number of an empty bucket to continue a chain with, 0 if there is none."""
    lock(index, KeyIndex.lock)
    number = index.free_more
    if number != 0:
        bucket = more_bucket(index, number)
        index.free_more = int64(load_as(bucket, NEXT, np.int32))
        store_as(bucket, NEXT, np.int32(0), np.int32)
    elif index.more_count < index.max_more:
        number = index.more_count + 1
        index.more_count = number
    unlock(index, KeyIndex.lock)
    return number


@jit
def free_bucket(index: KeyIndex, number: int) -> None:
    """Gives back a bucket that continued a chain, and that is empty."""
    lock(index, KeyIndex.lock)
    next_free = index.free_more
    store_as(more_bucket(index, number), NEXT, np.int32(next_free), np.int32)
    index.free_more = number
    unlock(index, KeyIndex.lock)


@jit
def close_gaps(index: KeyIndex, bucket: int) -> None:
    """Moves the keys of a chain to its front, and gives back what is empty then."""
    into, place_into, first = as_words(bucket), int64(0), bucket
    while bucket != 0:
        for place in range(KEYS):
            row = row_at(bucket, place)
            if row != 0:
                if place_into == KEYS:
                    into, place_into = next_of(index, into), int64(0)
                if into != bucket or place_into != place:
                    into[place_into] = load(bucket, place)
                    set_row(into, place_into, row)
                    set_row(bucket, place, int64(0))
                place_into += 1
        bucket = next_of(index, bucket)
    if place_into == 0 and into != first:
        return  # cannot be: a chain has no empty bucket but its first
    number = int64(load_as(into, NEXT, np.int32))
    store_as(into, NEXT, np.int32(0), np.int32)
    while number != 0:
        after = int64(load_as(more_bucket(index, number), NEXT, np.int32))
        free_bucket(index, number)
        number = after
