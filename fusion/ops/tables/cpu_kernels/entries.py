"""All keys of an index, and keys that are put back."""

from __future__ import annotations

import numpy as np

from fusion.ops.tables.cpu_kernels.buckets import hash_of, lock, next_of, row_at, unlock, whole_of
from fusion.ops.tables.cpu_kernels.index import MAX_SEEN, add, find
from fusion.ops.tables.cpu_kernels.layout import BUCKET_BYTES, KEYS, STRIPES, Addition, KeyIndex
from fusion.ops.tables.cpu_kernels.rows import release_rows
from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load_as, store_as
from fusion.runtime.native.pointers import as_words


@jit
def hold(index: int) -> None:
    """Has all threads wait that add or remove keys, until `let_go`; others find keys meanwhile."""
    for stripe in range(STRIPES):
        lock(index, KeyIndex.locks + stripe)


@jit
def let_go(index: int) -> None:
    """Ends `hold`."""
    for stripe in range(STRIPES):
        unlock(index, KeyIndex.locks + stripe)


@jit
def write_entries(index: KeyIndex, keys: Words, rows: Words, counts: int, steps: Words) -> None:
    """Writes all keys, stripe by stripe, while the index is held.

    Args:
      index: its address.
      keys: out, int64 [key_count].
      rows: out, int64 [key_count], of each key, -1 for none.
      counts: out, int32 [key_count], how often it was seen.
      steps: out, int64 [key_count], when it was seen last, -1 for keys without a row.
    """
    number, buckets = int64(0), index.bucket_count
    records = index + index.records
    for stripe in range(STRIPES):
        for first in range(stripe, buckets, STRIPES):
            bucket = as_words(index + index.buckets + BUCKET_BYTES * first)
            while bucket != 0:
                for place in range(KEYS):
                    row = row_at(bucket, place)
                    if row == 0:
                        continue
                    count, step = np.int32(-row), int64(-1)
                    if row > 0:
                        record = records + 8 * (row - 1)
                        count = load_as(record, int64(0), np.int32)
                        step = int64(load_as(record, int64(1), np.int32))
                    keys[number] = bucket[place]
                    rows[number] = max(row, int64(0)) - 1
                    store_as(counts, number, count, np.int32)
                    steps[number] = step
                    number += 1
                bucket = next_of(index, bucket)


@jit
def put_key(index: KeyIndex, key: int, count: int, step: int, addition: Addition) -> int:
    """Puts a key there as `write_entries` has it; returns its row, -1 for none.

    Args:
      index, key: the index and the key.
      count: how often it was seen; 0 leaves that and the step as they are if it has a row.
      step: when it was seen last; -1 for a key that is to have no row.
      addition: the address of an `Addition` without samples; its `first` is written to the row,
        also where the key has one already, unless it is 0.
    """
    row = int64(0)
    if count <= 0 and step >= 0:
        whole = atomic_load(index, KeyIndex.bucket_count)
        row = find(index, key, hash_of(key), whole, whole_of(whole))
    if row <= 0:
        row = _add_again(index, key, count, step, addition)
    if row > 0 and step >= 0 and addition.first != 0:
        size = addition.dim * addition.item_bytes
        into = addition.table + (row - 1) * size
        c_memcpy(into, addition.first, size)
    return max(row, int64(0)) - 1


@jit
def _add_again(index: KeyIndex, key: int, count: int, step: int, addition: Addition) -> int:
    """Adds a key as `put_key` does; the number of its row, 0 or less if it has none."""
    addition.admission = int64(1) if step >= 0 else int64(2**62)
    refused = addition.refused_count
    row = add(index, key, hash_of(key), max(count, int64(1)), addition)
    if addition.refused_count > refused and index.pending_rows > 0:
        # Rather a row that others may still write to than none.
        addition.refused_count = refused
        release_rows(index, index.pending_rows)
        row = add(index, key, hash_of(key), max(count, int64(1)), addition)
    if row > 0 and step >= 0:
        record = index + index.records + 8 * (row - 1)
        store_as(record, int64(0), np.int32(min(count, int64(MAX_SEEN))), np.int32)
        store_as(record, int64(1), np.int32(min(step, int64(2**31 - 1))), np.int32)
    return row
