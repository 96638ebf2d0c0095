"""A lookup in hot rows of several tables, and what becomes of keys that are not there."""

from __future__ import annotations

import numpy as np
from numba import int32

from fusion.ops.stores.cpu_kernels import queue
from fusion.ops.stores.cpu_kernels.layout import (
    HISTOGRAM_BUCKETS,
    OCTAVE_BUCKETS,
    HotTable,
    StoreCall,
    StoreRecord,
    TableCall,
)
from fusion.ops.stores.cpu_kernels.table import read_rows
from fusion.ops.tables.cpu_kernels.buckets import hash_of
from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_add, atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcpy, c_memset, store
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.system import now
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Fewer keys are looked up before another thread has woken up.
_PARALLEL_KEYS = 2048

#: A task has so many keys, or more where tasks enough are left for each thread.
_TASK_KEYS, _TASKS_PER_THREAD = 256, 4


@jit
def enter(record: int) -> bool:
    """Whether a store is open, which it is from then on until `leave`."""
    if atomic_load(record, StoreRecord.is_open) != 0:
        atomic_add(record, StoreRecord.user_count, int64(1))
        if atomic_load(record, StoreRecord.is_open) != 0:
            return True
        leave(record)
    return False


@jit
def leave(record: int) -> None:
    """Ends `enter`."""
    atomic_add(record, StoreRecord.user_count, int64(-1))


@jit
def _work(job: StoreCall, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    size, count = job.task_keys, job.call_count
    task, index = jobs.next_task(job, helps), int64(0)
    while task >= 0:  # tasks come in order
        while index + 1 < count:
            if job.calls[index + 1].first_task > task:
                break
            index += 1
        call = job.calls[index]
        start = (task - call.first_task) * size
        read_rows(
            call.table,
            call.keys,
            start,
            min(start + size, call.key_count),
            call.out,
            as_words(call + 8 * TableCall.missing),
        )
        task = jobs.next_task(job, helps)


def help_lookup(job: StoreCall, _: int) -> None:
    """What a thread of the pool does that helps with a lookup."""
    _work(job, int64(1))


@jit
def look_up(job: StoreCall) -> None:
    """Copies rows that are there, and finds out what becomes of the others.

    Args:
      job: a `StoreCall`, and its `TableCall`s, whose counts are 0.
    """
    store_record, count = job.store, job.call_count
    total, tasks = int64(0), int64(0)
    for index in range(count):
        total += job.calls[index].key_count
    pool = as_record(Pool, store_record.pool if total >= _PARALLEL_KEYS else int64(0))
    threads = pool.thread_count + 1 if pool != 0 else int64(1)
    size = max(total // (_TASKS_PER_THREAD * threads), int64(_TASK_KEYS))
    for index in range(count):
        call = job.calls[index]
        call.first_task = tasks
        tasks += (call.key_count + size - 1) // size
    job.task_keys = size
    job.kernel = store_record.work
    job.next_task = 0
    job.task_count = tasks
    slot = jobs.open_job(pool, job)
    _work(job, int64(0))
    jobs.close_job(pool, slot)
    job.waiting_count = 0
    for index in range(count):
        _settle(job, job.calls[index])


@jit
def _settle(job: StoreCall, call: TableCall) -> None:
    """Decides whether the keys of a table that are not there are waited for, and counts."""
    table, missing = call.table, call.missing_count
    atomic_add(table, HotTable.hit_count, call.key_count - missing)
    if missing == 0:
        return
    atomic_add(table, HotTable.miss_count, missing)
    threshold = table.threshold
    if threshold >= 1.0 or _hit_share(call) < threshold:
        call.is_waiting = 1
        job.waiting_count = job.waiting_count + missing
        atomic_add(table, HotTable.wait_count, int64(1))
        return
    atomic_add(table, HotTable.default_count, missing)
    size = table.row_bytes
    for k in range(missing):
        out = call.out + call.missing[k] * size
        c_memcpy(out, table.default, size)
    record = job.store
    number = (table - record.tables) // (8 * HotTable.SIZE)
    keys, numbers = call.keys, call.missing
    queue.push(record.queue, number, keys, numbers, missing)


@jit
def _hit_share(call: TableCall) -> float:
    """The share of distinct keys that are there; 0 where there is no memory to find out."""
    keys, count = call.keys, call.key_count
    size = int64(2)
    while size < 2 * count:
        size *= 2
    seen = as_words(c_malloc(8 * size))
    if seen == 0:
        return 0.0
    c_memset(seen, int32(0), 8 * size)
    missing, distinct = int64(0), int64(0)
    for k in range(call.missing_count):
        number = call.missing[k]
        missing += _is_first(seen, size, keys, number)
    for k in range(count):
        distinct += _is_first(seen, size, keys, int64(k))
    c_free(seen)
    # Those that are not there were seen before: they are not among the distinct ones.
    return distinct / (distinct + missing)


@jit
def _is_first(seen: Words, size: int, keys: Words, number: int) -> int:
    """1 if a key is not in a set of keys, in which it is then.

    Args:
      seen: the address of the set: numbers of keys from 1 on, 0 for none.
      size: a power of two.
    """
    key = keys[number]
    slot = hash_of(key) & (size - 1)
    while seen[slot] != 0:
        if keys[seen[slot] - 1] == key:
            return int64(0)
        slot = (slot + 1) & (size - 1)
    seen[slot] = number + 1
    return int64(1)


@jit
def count_latency(record: int, nanoseconds: int) -> None:
    """Adds to the histogram of a store what a lookup took."""
    atomic_add(record, StoreRecord.latency_ns, nanoseconds)
    bucket = min(bucket_of_latency(nanoseconds), int64(HISTOGRAM_BUCKETS - 1))
    atomic_add(record, StoreRecord.latencies + bucket, int64(1))


@jit
def bucket_of_latency(nanoseconds: int) -> int:
    """The bucket of a time: an octave, and the three bits behind the highest one."""
    octave, rest = int64(0), np.int64(nanoseconds)
    while rest >= 2 * OCTAVE_BUCKETS:
        rest >>= 1
        octave += 1
    return octave * OCTAVE_BUCKETS + rest


def look_up_open(job: StoreCall) -> None:
    """As `look_up`, where the store may be closed: then as many keys are waited for as -1.

    If keys are waited for, `end_lookup` is to follow.
    """
    record, begun = job.store, now()
    if not enter(record):
        job.waiting_count = int64(-1)
        return
    look_up(job)
    if job.waiting_count == 0:
        count_latency(record, now() - begun)
        leave(record)


def enter_open(record: int, result: int) -> None:
    """Sets a word to whether the store is open; if it is, `end_lookup` is to follow."""
    store(result, int64(0), int64(enter(record)))


def end_lookup(record: int, begun: int) -> None:
    """Ends a lookup that waited for rows, and began at some `now`; with 0 none is counted."""
    if begun > 0:
        count_latency(record, now() - begun)
    leave(record)
