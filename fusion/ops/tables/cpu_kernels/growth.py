"""Growing of an index, one bucket at a time."""

from __future__ import annotations

import numpy as np

from fusion.ops.tables.cpu_kernels.buckets import (
    NEXT,
    begin_change,
    close_gaps,
    end_change,
    hash_of,
    more_bucket,
    new_bucket,
    next_of,
    row_at,
    set_row,
    unlock,
    whole_of,
)
from fusion.ops.tables.cpu_kernels.layout import BUCKET_BYTES, KEYS, LOAD_TENTHS, STRIPES, KeyIndex
from fusion.runtime.native.atomic import atomic_load, atomic_store, atomic_swap
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store_as
from fusion.runtime.native.pointers import as_words


@jit
def _is_too_full(index: KeyIndex, count: int) -> bool:
    """Whether there are too many keys for so many buckets, and there can be more buckets."""
    keys = atomic_load(index, KeyIndex.key_count)
    return 10 * keys > LOAD_TENTHS * KEYS * count and count < index.max_buckets


@jit
def grow(index: KeyIndex) -> None:
    """Adds a bucket where there are too few for the keys, unless another thread does."""
    if not _is_too_full(index, atomic_load(index, KeyIndex.bucket_count)):
        return
    if atomic_swap(index, KeyIndex.is_growing, int64(1)) == 0:
        count = index.bucket_count
        if _is_too_full(index, count):
            _divide(index, count)
        unlock(index, KeyIndex.is_growing)


@jit
def _divide(index: KeyIndex, count: int) -> None:
    """Adds a bucket, and moves the keys there that are its, if there is room for their chain."""
    whole = whole_of(count)
    old = count - whole
    stripe, buckets = old & (STRIPES - 1), index + index.buckets
    first, new = buckets + BUCKET_BYTES * old, buckets + BUCKET_BYTES * count
    begin_change(index, stripe)
    if _begin_chain(index, new, _moving_keys(index, first, 2 * whole - 1, old)):
        bucket, into, place_into = as_words(first), as_words(new), int64(0)
        while bucket != 0:
            for place in range(KEYS):
                row, key = row_at(bucket, place), bucket[place]
                if row != 0 and hash_of(key) & (2 * whole - 1) != old:
                    if place_into == KEYS:
                        into, place_into = next_of(index, into), int64(0)
                    into[place_into] = key
                    set_row(into, place_into, row)
                    set_row(bucket, place, int64(0))
                    place_into += 1
            bucket = next_of(index, bucket)
        close_gaps(index, first)
        atomic_store(index, KeyIndex.bucket_count, count + 1)
    end_change(index, stripe)


@jit
def _moving_keys(index: KeyIndex, bucket: int, mask: int, old: int) -> int:
    """How many keys of a chain are not its own any more."""
    count = int64(0)
    while bucket != 0:
        for place in range(KEYS):
            if row_at(bucket, place) != 0:
                count += int64(hash_of(load(bucket, place)) & mask != old)
        bucket = next_of(index, bucket)
    return count


@jit
def _begin_chain(index: KeyIndex, bucket: int, keys: int) -> bool:
    """Continues an empty bucket to one for so many keys; whether there is room."""
    last = bucket
    for _ in range((keys - 1) // KEYS if keys > 0 else int64(0)):
        number = new_bucket(index)
        if number == 0:
            close_gaps(index, bucket)
            return False
        store_as(last, NEXT, np.int32(number), np.int32)
        last = more_bucket(index, number)
    return True
