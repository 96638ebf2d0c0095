"""The index of an embedding variable: which row each key has, for any number of keys.

Linear hashing (W. Litwin, Linear hashing: a new tool for file and table addressing, VLDB 1980):
buckets are added one at a time, and each takes its keys from one other, so that no operation waits
for a table to be copied. An index lies in memory that its caller has reserved for the capacity and
that begins as zeros; the system provides the pages that are used.

A bucket is a line of the cache: 5 keys, an int32 for each, and the next bucket of its chain. The
int32 is the number of the key's row, counted from 1; or -n if the key has no row, but was seen n
times; or 0 if there is no key.

Behind them are, of each row, how often its key was seen in training, and when for the last time.

Threads find keys without a lock. Those that change a bucket lock one of `STRIPES` parts of all: the
lowest bits of a hash, by which its bucket is in the same stripe however many buckets there are. The
stripe's version is odd in the meantime, and who reads while it is, or changes, reads again.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.tables.cpu_kernels.buckets import (
    NEXT,
    begin_change,
    bucket_of,
    close_gaps,
    end_change,
    hash_of,
    more_bucket,
    new_bucket,
    next_of,
    place_of,
    row_at,
    set_row,
    whole_of,
)
from fusion.ops.tables.cpu_kernels.growth import grow
from fusion.ops.tables.cpu_kernels.layout import (
    BUCKET_BYTES,
    KEYS,
    STRIPES,
    Addition,
    KeyIndex,
    max_buckets,
)
from fusion.ops.tables.cpu_kernels.rows import begin_row, new_row
from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_add, atomic_load, keep_order
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as
from fusion.runtime.native.pointers import as_words

#: Keys are counted up to here.
MAX_SEEN = 2**31 - 2**20

#: Keys that are looked up side by side, while their buckets come from memory.
_BLOCK = 16

_max_buckets = jit(max_buckets)


@jit
def begin_index(index: KeyIndex, capacity: int, admission: int, seed: int, waits: int) -> None:
    """Makes an empty index of zeros at the start of a line."""
    max_buckets = _max_buckets(capacity)
    index.capacity = capacity
    index.bucket_count = STRIPES
    index.max_buckets = max_buckets
    index.max_more = max_buckets
    index.buckets = 8 * KeyIndex.SIZE
    index.more = 8 * KeyIndex.SIZE + BUCKET_BYTES * max_buckets
    records = 8 * KeyIndex.SIZE + 2 * BUCKET_BYTES * max_buckets
    index.records = records
    index.free = records + 8 * capacity
    index.pending = records + 12 * capacity
    index.admission = admission
    index.seed = seed
    index.waits = waits


@jit
def find(index: KeyIndex, key: int, hashed: int, count: int, whole: int) -> int:
    """Looks a key up: the number of its row, or -n, or 0.

    Args:
      index, key, hashed: the index, the key, and its hash.
      count: how many buckets there were a moment ago.
      whole: their `whole_of`.
    """
    stripe = KeyIndex.versions + (hashed & (STRIPES - 1))
    while True:
        version, row = atomic_load(index, stripe), int64(0)
        bucket = bucket_of(index, hashed, count, whole)
        while bucket != 0:
            place = place_of(bucket, key)
            if place >= 0:
                row = row_at(bucket, place)
                break
            bucket = next_of(index, bucket)
        keep_order()
        is_whole = version & 1 == 0 and atomic_load(index, stripe) == version
        if is_whole and row != 0:
            return row
        now = atomic_load(index, KeyIndex.bucket_count)
        if is_whole and now == count:
            return row
        count, whole = now, whole_of(now)


@jit
def find_rows(index: KeyIndex, keys: Words, count: int, rows: Words) -> None:
    """Writes the row of each key, -1 where it has none.

    Args:
      index: its address.
      keys: the address of int64 [count].
      rows: that of int64 [count].
    """
    buckets = atomic_load(index, KeyIndex.bucket_count)
    whole = whole_of(buckets)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        for k in range(start, end):
            hashed = hash_of(keys[k])
            rows[k] = hashed
            prefetch_line(bucket_of(index, hashed, buckets, whole))
        for k in range(start, end):
            row = find(index, keys[k], rows[k], buckets, whole)
            rows[k] = max(row, int64(0)) - 1


@jit
def add_rows(index: KeyIndex, keys: Words, count: int, rows: Words, addition: Addition) -> None:
    """As `find_rows`, but keys are noted as seen, and those seen often enough get a row.

    A key that is there several times has its row everywhere as soon as it is seen often enough by
    all of them. Keys that find no room, of which there are more than the capacity, have none.

    Args:
      addition: the address of an `Addition`.
    """
    find_rows(index, keys, count, rows)
    note_keys(index, count, rows, addition)
    add_missing(index, keys, count, rows, addition)


@jit
def note_keys(index: KeyIndex, count: int, rows: Words, addition: Addition) -> None:
    """Notes that keys with rows were seen; rows are int64 [count], -1 for none."""
    records = index + index.records
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        for k in range(start, end):
            prefetch_line(records + 8 * max(rows[k], int64(0)))
        for k in range(start, end):
            if rows[k] >= 0:
                _note(records + 8 * rows[k], _seen(addition, k), addition)


@jit
def _note(record: int, times: int, addition: Addition) -> None:
    """Notes in the record of a row that its key was seen so many times."""
    if int64(load_as(record, int64(0), np.int32)) < MAX_SEEN:
        atomic_add(record, int64(0), times)
    step = addition.step
    if int64(load_as(record, int64(1), np.int32)) < step:
        store_as(record, int64(1), np.int32(step), np.int32)


@jit
def add_missing(index: KeyIndex, keys: Words, count: int, rows: Words, addition: Addition) -> None:
    """Adds the keys that have no row; rows are in and out, int64 [count]."""
    before = addition.added_count
    for k in range(count):
        if rows[k] < 0:
            key = keys[k]
            row = add(index, key, hash_of(key), _seen(addition, k), addition)
            rows[k] = max(row, int64(0)) - 1
    if addition.added_count == before:
        return
    for k in range(count):
        if rows[k] < 0:
            find_rows(index, as_words(keys + 8 * k), int64(1), as_words(rows + 8 * k))


@jit
def _seen(addition: Addition, k: int) -> int:
    """How many times a key was seen."""
    counts = addition.counts
    return int64(1) if counts == 0 else max(int64(load_as(counts, k, np.int32)), int64(1))


@jit
def add(index: KeyIndex, key: int, hashed: int, times: int, addition: Addition) -> int:
    """Notes that a key was seen; the number of its row, 0 or less if it has none."""
    stripe = hashed & (STRIPES - 1)
    begin_change(index, stripe)
    count = atomic_load(index, KeyIndex.bucket_count)
    bucket = bucket_of(index, hashed, count, whole_of(count))
    row = _add_in(index, bucket, key, times, addition)
    end_change(index, stripe)
    grow(index)
    return row


@jit
def _add_in(index: KeyIndex, bucket: int, key: int, times: int, addition: Addition) -> int:
    """As `add`, in a chain of buckets that is locked."""
    free, free_place, last = as_words(int64(0)), int64(0), bucket
    while bucket != 0:
        place = place_of(as_words(bucket), key)
        if place >= 0:
            row = row_at(bucket, place)
            if row < 0:
                row = _seen_again(index, key, row, times, addition)
                set_row(bucket, place, row)
            else:
                _note(index + index.records + 8 * (row - 1), times, addition)
            return row
        for other in range(KEYS):
            if free == 0 and row_at(bucket, other) == 0:
                free, free_place = as_words(bucket), int64(other)
        last, bucket = bucket, next_of(index, bucket)
    number = int64(0)
    if free == 0:
        number = new_bucket(index)
        if number == 0:
            _count_refused(addition)
            return int64(0)
        free = more_bucket(index, number)
    row = _seen_again(index, key, int64(0), times, addition)
    free[free_place] = key
    set_row(free, free_place, row)
    if number != 0:
        store_as(last, NEXT, np.int32(number), np.int32)
    atomic_add(index, KeyIndex.key_count, int64(1))
    return row


@jit
def _seen_again(index: KeyIndex, key: int, row: int, times: int, addition: Addition) -> int:
    """The new value of a key with 0 or -n that is seen again: its row, begun, or -n."""
    seen = min(times - row, int64(MAX_SEEN))
    if seen < addition.admission:
        return -seen
    number = new_row(index)
    if number == 0:
        _count_refused(addition)
        return -seen
    record = index + index.records + 8 * (number - 1)
    store_as(record, int64(0), np.int32(seen), np.int32)
    store_as(record, int64(1), np.int32(addition.step), np.int32)
    begin_row(index, key, number - 1, addition)
    addition.added_count = addition.added_count + 1
    keep_order()  # a thread that finds the key finds its row begun
    return number


@jit
def _count_refused(addition: Addition) -> None:
    addition.refused_count = addition.refused_count + 1


@jit
def remove(index: KeyIndex, key: int) -> int:
    """Takes a key out; returns the number of its row, to be retired, or 0."""
    hashed = hash_of(key)
    stripe = hashed & (STRIPES - 1)
    begin_change(index, stripe)
    count = index.bucket_count
    first = bucket_of(index, hashed, count, whole_of(count))
    bucket, row = as_words(first), int64(0)
    while bucket != 0:
        place = place_of(bucket, key)
        if place >= 0:
            row = max(row_at(bucket, place), int64(0))
            set_row(bucket, place, int64(0))
            atomic_add(index, KeyIndex.key_count, int64(-1))
            close_gaps(index, first)
            break
        bucket = next_of(index, bucket)
    end_change(index, stripe)
    return row
