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
from numba import int32

from fusion.cpu_ops.keys.layout import (
    BUCKET_BYTES,
    KEYS,
    LOAD_TENTHS,
    STRIPES,
    Addition,
    KeyIndex,
    most_buckets,
)
from fusion.cpu_ops.vectors import prefetch_line
from fusion.runtime.native.atomic import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    keep_order,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, load, load_as, store, store_as
from fusion.runtime.threads.jobs import sched_yield

#: Where the int32s of a bucket and the number of the next one are, in int32s.
_ROWS, _NEXT = 10, 15

#: Keys are counted up to here.
_MOST_SEEN = 2**31 - 2**20

#: So often a thread looks whether a lock is free before it lets others run.
_SPINS = 200

#: Keys that are looked up side by side, while their buckets come from memory.
_BLOCK = 16


_most_buckets = jit(most_buckets)


@jit
def begin_index(index: int, capacity: int, admission: int, seed: int, waits: int) -> None:
    """Makes an empty index of zeros at the start of a line."""
    most = _most_buckets(capacity)
    store(index, KeyIndex.capacity, capacity)
    store(index, KeyIndex.bucket_count, STRIPES)
    store(index, KeyIndex.most_buckets, most)
    store(index, KeyIndex.most_more, most)
    store(index, KeyIndex.buckets, 8 * KeyIndex.SIZE)
    store(index, KeyIndex.more, 8 * KeyIndex.SIZE + BUCKET_BYTES * most)
    records = 8 * KeyIndex.SIZE + 2 * BUCKET_BYTES * most
    store(index, KeyIndex.records, records)
    store(index, KeyIndex.free, records + 8 * capacity)
    store(index, KeyIndex.pending, records + 12 * capacity)
    store(index, KeyIndex.admission, admission)
    store(index, KeyIndex.seed, seed)
    store(index, KeyIndex.waits, waits)


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
def _whole(count: int) -> int:
    """The largest power of two of at most so many buckets."""
    whole = int64(STRIPES)
    while whole * 2 <= count:
        whole *= 2
    return whole


@jit
def _bucket(index: int, hashed: int, count: int, whole: int) -> int:
    """The address of the bucket of a hash where there are so many."""
    number = hashed & (2 * whole - 1)
    if number >= count:
        number -= whole
    return index + load(index, KeyIndex.buckets) + BUCKET_BYTES * number


@jit
def _row(bucket: int, place: int) -> int:
    return int64(load_as(bucket, _ROWS + place, np.int32))


@jit
def _set_row(bucket: int, place: int, row: int) -> None:
    store_as(bucket, _ROWS + place, np.int32(row), np.int32)


@jit
def _next(index: int, bucket: int) -> int:
    """The address of the next bucket of a chain, 0 if there is none."""
    number = int64(load_as(bucket, _NEXT, np.int32))
    return _more(index, number) if number != 0 else int64(0)


@jit
def _more(index: int, number: int) -> int:
    """The address of a bucket that continues a chain."""
    return index + load(index, KeyIndex.more) + BUCKET_BYTES * (number - 1)


@jit
def _place(bucket: int, key: int) -> int:
    """The place of a key in a bucket, -1 if it is not there."""
    found = int64(-1)
    for place in range(KEYS):
        if load(bucket, place) == key and _row(bucket, place) != 0:
            found = int64(place)
    return found


@jit
def _find(index: int, key: int, hashed: int, count: int, whole: int) -> int:
    """What the index has of a key: the number of its row, or -n, or 0.

    Args:
      index, key, hashed: the index, the key, and its hash.
      count: how many buckets there were a moment ago.
      whole: their `_whole`.
    """
    stripe = KeyIndex.versions + (hashed & (STRIPES - 1))
    while True:
        version, row = atomic_load(index, stripe), int64(0)
        bucket = _bucket(index, hashed, count, whole)
        while bucket != 0:
            place = _place(bucket, key)
            if place >= 0:
                row = _row(bucket, place)
                break
            bucket = _next(index, bucket)
        keep_order()
        is_whole = version & 1 == 0 and atomic_load(index, stripe) == version
        if is_whole and row != 0:
            return row
        now = atomic_load(index, KeyIndex.bucket_count)
        if is_whole and now == count:
            return row
        count, whole = now, _whole(now)


@jit
def find_rows(index: int, keys: int, count: int, rows: int) -> None:
    """Writes the row of each key, -1 where it has none.

    Args:
      index: its address.
      keys: the address of int64 [count].
      rows: that of int64 [count].
    """
    buckets = atomic_load(index, KeyIndex.bucket_count)
    whole = _whole(buckets)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        for k in range(start, end):
            hashed = hash_of(load(keys, k))
            store(rows, k, hashed)
            prefetch_line(_bucket(index, hashed, buckets, whole))
        for k in range(start, end):
            row = _find(index, load(keys, k), load(rows, k), buckets, whole)
            store(rows, k, max(row, int64(0)) - 1)


@jit
def _lock(index: int, field: int) -> None:
    while atomic_swap(index, field, int64(1)) != 0:
        spins = 0
        while atomic_load(index, field) != 0:
            spins += 1
            if spins > _SPINS:
                sched_yield()


@jit
def _unlock(index: int, field: int) -> None:
    atomic_store(index, field, int64(0))


@jit
def _begin_change(index: int, stripe: int) -> None:
    _lock(index, KeyIndex.locks + stripe)
    atomic_add(index, KeyIndex.versions + stripe, int64(1))


@jit
def _end_change(index: int, stripe: int) -> None:
    atomic_add(index, KeyIndex.versions + stripe, int64(1))
    _unlock(index, KeyIndex.locks + stripe)


@jit
def add_rows(index: int, keys: int, count: int, rows: int, addition: int) -> None:
    """As `find_rows`, but keys are noted as seen, and those seen often enough get a row.

    A key that is there several times has its row everywhere as soon as it is seen often enough by
    all of them. Keys that find no room, of which there are more than the capacity, have none.

    Args:
      addition: the address of an `Addition`.
    """
    find_rows(index, keys, count, rows)
    note_found(index, count, rows, addition)
    add_missing(index, keys, count, rows, addition)


@jit
def note_found(index: int, count: int, rows: int, addition: int) -> None:
    """Notes that keys with rows were seen; rows are int64 [count], -1 for none."""
    records = index + load(index, KeyIndex.records)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        for k in range(start, end):
            prefetch_line(records + 8 * max(load(rows, k), int64(0)))
        for k in range(start, end):
            if load(rows, k) >= 0:
                _note(records + 8 * load(rows, k), _seen(addition, k), addition)


@jit
def _note(record: int, times: int, addition: int) -> None:
    """Notes in the record of a row that its key was seen so many times."""
    if int64(load_as(record, int64(0), np.int32)) < _MOST_SEEN:
        atomic_add(record, int64(0), times)
    step = load(addition, Addition.step)
    if int64(load_as(record, int64(1), np.int32)) < step:
        store_as(record, int64(1), np.int32(step), np.int32)


@jit
def add_missing(index: int, keys: int, count: int, rows: int, addition: int) -> None:
    """Adds the keys that have no row; rows are in and out, int64 [count]."""
    before = load(addition, Addition.added_count)
    for k in range(count):
        if load(rows, k) < 0:
            key = load(keys, k)
            row = _add(index, key, hash_of(key), _seen(addition, k), addition)
            store(rows, k, max(row, int64(0)) - 1)
    if load(addition, Addition.added_count) == before:
        return
    for k in range(count):
        if load(rows, k) < 0:
            find_rows(index, keys + 8 * k, int64(1), rows + 8 * k)


@jit
def _seen(addition: int, k: int) -> int:
    """How many times a key was seen."""
    counts = load(addition, Addition.counts)
    return int64(1) if counts == 0 else max(int64(load_as(counts, k, np.int32)), int64(1))


@jit
def _add(index: int, key: int, hashed: int, times: int, addition: int) -> int:
    """Notes that a key was seen; the number of its row, 0 or less if it has none."""
    stripe = hashed & (STRIPES - 1)
    _begin_change(index, stripe)
    count = atomic_load(index, KeyIndex.bucket_count)
    bucket = _bucket(index, hashed, count, _whole(count))
    row = _add_in(index, bucket, key, times, addition)
    _end_change(index, stripe)
    _grow(index)
    return row


@jit
def _add_in(index: int, bucket: int, key: int, times: int, addition: int) -> int:
    """As `_add`, in a chain of buckets that is locked."""
    free, free_place, last = int64(0), int64(0), bucket
    while bucket != 0:
        place = _place(bucket, key)
        if place >= 0:
            row = _row(bucket, place)
            if row < 0:
                row = _seen_again(index, key, row, times, addition)
                _set_row(bucket, place, row)
            else:
                _note(index + load(index, KeyIndex.records) + 8 * (row - 1), times, addition)
            return row
        for other in range(KEYS):
            if free == 0 and _row(bucket, other) == 0:
                free, free_place = bucket, int64(other)
        last, bucket = bucket, _next(index, bucket)
    number = int64(0)
    if free == 0:
        number = _new_bucket(index)
        if number == 0:
            _count_refused(addition)
            return int64(0)
        free = _more(index, number)
    row = _seen_again(index, key, int64(0), times, addition)
    store(free, free_place, key)
    _set_row(free, free_place, row)
    if number != 0:
        store_as(last, _NEXT, np.int32(number), np.int32)
    atomic_add(index, KeyIndex.key_count, int64(1))
    return row


@jit
def _seen_again(index: int, key: int, row: int, times: int, addition: int) -> int:
    """What follows on 0 or -n for a key that is seen more times: its row, begun, or -n."""
    seen = min(times - row, int64(_MOST_SEEN))
    if seen < load(addition, Addition.admission):
        return -seen
    found = _new_row(index)
    if found == 0:
        _count_refused(addition)
        return -seen
    record = index + load(index, KeyIndex.records) + 8 * (found - 1)
    store_as(record, int64(0), np.int32(seen), np.int32)
    store_as(record, int64(1), np.int32(load(addition, Addition.step)), np.int32)
    _begin_row(index, key, found - 1, addition)
    store(addition, Addition.added_count, load(addition, Addition.added_count) + 1)
    keep_order()  # whoever finds the key finds its row begun
    return found


@jit
def _count_refused(addition: int) -> None:
    store(addition, Addition.refused_count, load(addition, Addition.refused_count) + 1)


@jit
def _write_row(into: int, row: int, size: int) -> None:
    """Writes a row from an address, zeros from 0."""
    if row != 0:
        c_memcpy(into, row, size)
    else:
        c_memset(into, int32(0), size)


@jit
def _begin_row(index: int, key: int, row: int, addition: int) -> None:
    """Writes the initial values of a key: of samples, each element is that of some row of these.

    Which one depends on the key, the seed and the column alone.
    """
    if load(addition, Addition.table) == 0:
        return
    size, dim = load(addition, Addition.item_bytes), load(addition, Addition.dim)
    into = load(addition, Addition.table) + row * dim * size
    samples, count = load(addition, Addition.samples), load(addition, Addition.sample_count)
    if samples == 0:
        _write_row(into, load(addition, Addition.first), dim * size)
        return
    state = hash_of(key ^ hash_of(load(index, KeyIndex.seed)))
    for column in range(dim):
        sample = int64(0)
        if count > 1:
            # Of 32 bits of a hash (Lemire, Fast random integer generation in an interval, 2019).
            bits = np.uint64(hash_of(state + column)) >> np.uint64(32)
            sample = int64((bits * np.uint64(count)) >> np.uint64(32))
        if size == 4:
            value = load_as(samples, sample * dim + column, np.int32)
            store_as(into, column, value, np.int32)
        else:
            store(into, column, load(samples, sample * dim + column))


@jit
def _new_row(index: int) -> int:
    """The number of a row that no key has, 0 if there is none."""
    if atomic_load(index, KeyIndex.free_rows) != 0:
        _lock(index, KeyIndex.lock)
        left, row = load(index, KeyIndex.free_rows), int64(0)
        if left != 0:
            row = int64(load_as(index + load(index, KeyIndex.free), left - 1, np.int32))
            store(index, KeyIndex.free_rows, left - 1)
        _unlock(index, KeyIndex.lock)
        if row != 0:
            return row
    row = atomic_add(index, KeyIndex.row_count, int64(1)) + 1
    if row > load(index, KeyIndex.capacity):
        atomic_add(index, KeyIndex.row_count, int64(-1))
        return int64(0)
    return row


@jit
def _new_bucket(index: int) -> int:
    """The number of an empty bucket to continue a chain with, 0 if there is none."""
    _lock(index, KeyIndex.lock)
    number = load(index, KeyIndex.free_more)
    if number != 0:
        bucket = _more(index, number)
        store(index, KeyIndex.free_more, int64(load_as(bucket, _NEXT, np.int32)))
        store_as(bucket, _NEXT, np.int32(0), np.int32)
    elif load(index, KeyIndex.more_count) < load(index, KeyIndex.most_more):
        number = load(index, KeyIndex.more_count) + 1
        store(index, KeyIndex.more_count, number)
    _unlock(index, KeyIndex.lock)
    return number


@jit
def _free_bucket(index: int, number: int) -> None:
    """Gives back a bucket that continued a chain, and that is empty."""
    _lock(index, KeyIndex.lock)
    next_free = load(index, KeyIndex.free_more)
    store_as(_more(index, number), _NEXT, np.int32(next_free), np.int32)
    store(index, KeyIndex.free_more, number)
    _unlock(index, KeyIndex.lock)


@jit
def _is_too_full(index: int, count: int) -> bool:
    """Whether there are too many keys for so many buckets, and there can be more buckets."""
    keys = atomic_load(index, KeyIndex.key_count)
    return 10 * keys > LOAD_TENTHS * KEYS * count and count < load(index, KeyIndex.most_buckets)


@jit
def _grow(index: int) -> None:
    """Adds a bucket where there are too few for the keys, unless another thread does."""
    if not _is_too_full(index, atomic_load(index, KeyIndex.bucket_count)):
        return
    if atomic_swap(index, KeyIndex.is_growing, int64(1)) == 0:
        count = load(index, KeyIndex.bucket_count)
        if _is_too_full(index, count):
            _divide(index, count)
        _unlock(index, KeyIndex.is_growing)


@jit
def _divide(index: int, count: int) -> None:
    """Adds a bucket, and moves the keys there that are its, if there is room for their chain."""
    whole = _whole(count)
    old = count - whole
    stripe, buckets = old & (STRIPES - 1), index + load(index, KeyIndex.buckets)
    first, new = buckets + BUCKET_BYTES * old, buckets + BUCKET_BYTES * count
    _begin_change(index, stripe)
    if _begin_chain(index, new, _moving_keys(index, first, 2 * whole - 1, old)):
        bucket, into, place_into = first, new, int64(0)
        while bucket != 0:
            for place in range(KEYS):
                row, key = _row(bucket, place), load(bucket, place)
                if row != 0 and hash_of(key) & (2 * whole - 1) != old:
                    if place_into == KEYS:
                        into, place_into = _next(index, into), int64(0)
                    store(into, place_into, key)
                    _set_row(into, place_into, row)
                    _set_row(bucket, place, int64(0))
                    place_into += 1
            bucket = _next(index, bucket)
        _close_gaps(index, first)
        atomic_store(index, KeyIndex.bucket_count, count + 1)
    _end_change(index, stripe)


@jit
def _moving_keys(index: int, bucket: int, mask: int, old: int) -> int:
    """How many keys of a chain are not its own any more."""
    count = int64(0)
    while bucket != 0:
        for place in range(KEYS):
            if _row(bucket, place) != 0:
                count += int64(hash_of(load(bucket, place)) & mask != old)
        bucket = _next(index, bucket)
    return count


@jit
def _begin_chain(index: int, bucket: int, keys: int) -> bool:
    """Continues an empty bucket to one for so many keys; whether there is room."""
    last = bucket
    for _ in range((keys - 1) // KEYS if keys > 0 else int64(0)):
        number = _new_bucket(index)
        if number == 0:
            _close_gaps(index, bucket)
            return False
        store_as(last, _NEXT, np.int32(number), np.int32)
        last = _more(index, number)
    return True


@jit
def _close_gaps(index: int, bucket: int) -> None:
    """Moves the keys of a chain to its front, and gives back what is empty then."""
    into, place_into, first = bucket, int64(0), bucket
    while bucket != 0:
        for place in range(KEYS):
            row = _row(bucket, place)
            if row != 0:
                if place_into == KEYS:
                    into, place_into = _next(index, into), int64(0)
                if into != bucket or place_into != place:
                    store(into, place_into, load(bucket, place))
                    _set_row(into, place_into, row)
                    _set_row(bucket, place, int64(0))
                place_into += 1
        bucket = _next(index, bucket)
    if place_into == 0 and into != first:
        return  # cannot be: a chain has no empty bucket but its first
    number = int64(load_as(into, _NEXT, np.int32))
    store_as(into, _NEXT, np.int32(0), np.int32)
    while number != 0:
        after = int64(load_as(_more(index, number), _NEXT, np.int32))
        _free_bucket(index, number)
        number = after


@jit
def remove(index: int, key: int) -> int:
    """Takes a key out; returns the number of its row, to be retired, or 0."""
    hashed = hash_of(key)
    stripe = hashed & (STRIPES - 1)
    _begin_change(index, stripe)
    count = load(index, KeyIndex.bucket_count)
    first = _bucket(index, hashed, count, _whole(count))
    bucket, row = first, int64(0)
    while bucket != 0:
        place = _place(bucket, key)
        if place >= 0:
            row = max(_row(bucket, place), int64(0))
            _set_row(bucket, place, int64(0))
            atomic_add(index, KeyIndex.key_count, int64(-1))
            _close_gaps(index, first)
            break
        bucket = _next(index, bucket)
    _end_change(index, stripe)
    return row


@jit
def retire_row(index: int, row: int) -> None:
    """Notes the number of a row that no key has any more.

    It is not given to another key before `release_rows`, since updates may be on their way to it.
    """
    _lock(index, KeyIndex.lock)
    count = load(index, KeyIndex.pending_rows)
    store_as(index + load(index, KeyIndex.pending), count, np.int32(row), np.int32)
    store(index, KeyIndex.pending_rows, count + 1)
    _unlock(index, KeyIndex.lock)


@jit
def pending_rows(index: int, rows: int, most: int) -> int:
    """Writes rows that are pending, counted from 0, the first first; returns how many."""
    _lock(index, KeyIndex.lock)
    count = min(load(index, KeyIndex.pending_rows), most)
    for k in range(count):
        row = int64(load_as(index + load(index, KeyIndex.pending), k, np.int32))
        store(rows, k, row - 1)
    _unlock(index, KeyIndex.lock)
    return count


@jit
def release_rows(index: int, count: int) -> None:
    """Lets the first rows that are pending be given to other keys."""
    _lock(index, KeyIndex.lock)
    pending, count = index + load(index, KeyIndex.pending), max(count, int64(0))
    left = max(load(index, KeyIndex.pending_rows) - count, int64(0))
    count = load(index, KeyIndex.pending_rows) - left
    free_rows = load(index, KeyIndex.free_rows)
    free = index + load(index, KeyIndex.free)
    for k in range(count):
        store_as(free, free_rows + k, load_as(pending, k, np.int32), np.int32)
    for k in range(left):
        store_as(pending, k, load_as(pending, count + k, np.int32), np.int32)
    store(index, KeyIndex.pending_rows, left)
    aged = load(index, KeyIndex.aged_rows) - count
    store(index, KeyIndex.aged_rows, max(aged, int64(0)))
    atomic_store(index, KeyIndex.free_rows, free_rows + count)
    _unlock(index, KeyIndex.lock)


@jit
def age_rows(index: int) -> None:
    """Notes that the rows that are pending were so at this moment."""
    _lock(index, KeyIndex.lock)
    store(index, KeyIndex.aged_rows, load(index, KeyIndex.pending_rows))
    _unlock(index, KeyIndex.lock)


@jit
def hold(index: int) -> None:
    """Has all threads wait that add or remove keys, until `let_go`; others find keys meanwhile."""
    for stripe in range(STRIPES):
        _lock(index, KeyIndex.locks + stripe)


@jit
def let_go(index: int) -> None:
    """Ends `hold`."""
    for stripe in range(STRIPES):
        _unlock(index, KeyIndex.locks + stripe)


@jit
def write_entries(index: int, keys: int, rows: int, counts: int, steps: int) -> None:
    """Writes all keys, stripe by stripe, while the index is held.

    Args:
      index: its address.
      keys: out, int64 [key_count].
      rows: out, int64 [key_count], of each key, -1 for none.
      counts: out, int32 [key_count], how often it was seen.
      steps: out, int64 [key_count], when it was seen last, -1 for keys without a row.
    """
    number, buckets = int64(0), load(index, KeyIndex.bucket_count)
    records = index + load(index, KeyIndex.records)
    for stripe in range(STRIPES):
        for first in range(stripe, buckets, STRIPES):
            bucket = index + load(index, KeyIndex.buckets) + BUCKET_BYTES * first
            while bucket != 0:
                for place in range(KEYS):
                    row = _row(bucket, place)
                    if row == 0:
                        continue
                    count, step = np.int32(-row), int64(-1)
                    if row > 0:
                        record = records + 8 * (row - 1)
                        count = load_as(record, int64(0), np.int32)
                        step = int64(load_as(record, int64(1), np.int32))
                    store(keys, number, load(bucket, place))
                    store(rows, number, max(row, int64(0)) - 1)
                    store_as(counts, number, count, np.int32)
                    store(steps, number, step)
                    number += 1
                bucket = _next(index, bucket)


@jit
def put_key(index: int, key: int, count: int, step: int, addition: int) -> int:
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
        row = _find(index, key, hash_of(key), whole, _whole(whole))
    if row <= 0:
        row = _add_again(index, key, count, step, addition)
    if row > 0 and step >= 0 and load(addition, Addition.first) != 0:
        size = load(addition, Addition.dim) * load(addition, Addition.item_bytes)
        into = load(addition, Addition.table) + (row - 1) * size
        c_memcpy(into, load(addition, Addition.first), size)
    return max(row, int64(0)) - 1


@jit
def _add_again(index: int, key: int, count: int, step: int, addition: int) -> int:
    """Adds a key as `put_key` does; the number of its row, 0 or less if it has none."""
    store(addition, Addition.admission, int64(1) if step >= 0 else int64(2**62))
    refused = load(addition, Addition.refused_count)
    row = _add(index, key, hash_of(key), max(count, int64(1)), addition)
    if load(addition, Addition.refused_count) > refused and load(index, KeyIndex.pending_rows) > 0:
        # Rather a row that others may still write to than none.
        store(addition, Addition.refused_count, refused)
        release_rows(index, load(index, KeyIndex.pending_rows))
        row = _add(index, key, hash_of(key), max(count, int64(1)), addition)
    if row > 0 and step >= 0:
        record = index + load(index, KeyIndex.records) + 8 * (row - 1)
        store_as(record, int64(0), np.int32(min(count, int64(_MOST_SEEN))), np.int32)
        store_as(record, int64(1), np.int32(min(step, int64(2**31 - 1))), np.int32)
    return row


@jit
def fill_rows(index: int, number: int, slot: int, row: int, row_bytes: int) -> int:
    """Writes a row to all of a slot that are in use and were not filled before.

    Args:
      index: its address.
      number: of the slot.
      slot: the address of its rows.
      row: that of what they begin with.

    Returns:
      How many they were.
    """
    end = min(atomic_load(index, KeyIndex.row_count), load(index, KeyIndex.capacity))
    if atomic_load(index, KeyIndex.filled + number) >= end:
        return int64(0)
    _lock(index, KeyIndex.fill_lock)
    first = load(index, KeyIndex.filled + number)
    for k in range(first, end):
        c_memcpy(slot + k * row_bytes, row, row_bytes)
    if first < end:
        atomic_store(index, KeyIndex.filled + number, end)
    _unlock(index, KeyIndex.fill_lock)
    return max(end - first, int64(0))
