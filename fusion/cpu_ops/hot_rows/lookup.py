"""A lookup in hot rows of several tables, and what becomes of keys that are not there."""

from __future__ import annotations

import numpy as np
from numba import int32

from fusion.cpu_ops.hot_rows import queue
from fusion.cpu_ops.hot_rows.layout import (
    HISTOGRAM_BUCKETS,
    OCTAVE_BUCKETS,
    HotTable,
    StoreCall,
    StoreRecord,
    TableCall,
)
from fusion.cpu_ops.hot_rows.table import read_rows
from fusion.cpu_ops.keys.buckets import hash_of
from fusion.runtime.native.atomic import atomic_add, atomic_load
from fusion.runtime.native.clock import now
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import (
    as_float,
    c_free,
    c_malloc,
    c_memcpy,
    c_memset,
    load,
    store,
)
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool

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
def call_at_index(job: int, index: int) -> int:
    """The address of a `TableCall`."""
    return load(job, StoreCall.calls) + 8 * TableCall.SIZE * index


@jit
def _work(job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    size, count = load(job, StoreCall.task_keys), load(job, StoreCall.call_count)
    task, index = jobs.next_task(job, helps), int64(0)
    while task >= 0:  # tasks come in order
        while index + 1 < count:
            if load(call_at_index(job, index + 1), TableCall.first_task) > task:
                break
            index += 1
        call = call_at_index(job, index)
        start = (task - load(call, TableCall.first_task)) * size
        read_rows(
            load(call, TableCall.table),
            load(call, TableCall.keys),
            start,
            min(start + size, load(call, TableCall.key_count)),
            load(call, TableCall.out),
            call + 8 * TableCall.missing,
        )
        task = jobs.next_task(job, helps)


def help_lookup(job: int, _: int) -> None:
    """What a thread of the pool does that helps with a lookup."""
    _work(job, int64(1))


@jit
def look_up(job: int) -> None:
    """Copies rows that are there, and finds out what becomes of the others.

    Args:
      job: a `StoreCall`, and its `TableCall`s, whose counts are 0.
    """
    store_record, count = load(job, StoreCall.store), load(job, StoreCall.call_count)
    total, tasks = int64(0), int64(0)
    for index in range(count):
        total += load(call_at_index(job, int64(index)), TableCall.key_count)
    pool = load(store_record, StoreRecord.pool) if total >= _PARALLEL_KEYS else int64(0)
    threads = load(pool, Pool.thread_count) + 1 if pool != 0 else int64(1)
    size = max(total // (_TASKS_PER_THREAD * threads), int64(_TASK_KEYS))
    for index in range(count):
        call = call_at_index(job, int64(index))
        store(call, TableCall.first_task, tasks)
        tasks += (load(call, TableCall.key_count) + size - 1) // size
    store(job, StoreCall.task_keys, size)
    store(job, Job.kernel, load(store_record, StoreRecord.work))
    store(job, Job.next_task, 0)
    store(job, Job.task_count, tasks)
    slot = jobs.open_job(pool, job)
    _work(job, int64(0))
    jobs.close_job(pool, slot)
    store(job, StoreCall.waiting_count, 0)
    for index in range(count):
        _settle(job, call_at_index(job, int64(index)))


@jit
def _settle(job: int, call: int) -> None:
    """Decides whether the keys of a table that are not there are waited for, and counts."""
    table, missing = load(call, TableCall.table), load(call, TableCall.missing_count)
    atomic_add(table, HotTable.hit_count, load(call, TableCall.key_count) - missing)
    if missing == 0:
        return
    atomic_add(table, HotTable.miss_count, missing)
    threshold = as_float(load(table, HotTable.threshold))
    if threshold >= 1.0 or _hit_share(call) < threshold:
        store(call, TableCall.is_waiting, 1)
        store(job, StoreCall.waiting_count, load(job, StoreCall.waiting_count) + missing)
        atomic_add(table, HotTable.wait_count, int64(1))
        return
    atomic_add(table, HotTable.default_count, missing)
    size = load(table, HotTable.row_bytes)
    for k in range(missing):
        out = load(call, TableCall.out) + load(load(call, TableCall.missing), k) * size
        c_memcpy(out, load(table, HotTable.default), size)
    record = load(job, StoreCall.store)
    number = (table - load(record, StoreRecord.tables)) // (8 * HotTable.SIZE)
    keys, numbers = load(call, TableCall.keys), load(call, TableCall.missing)
    queue.push(load(record, StoreRecord.queue), number, keys, numbers, missing)


@jit
def _hit_share(call: int) -> float:
    """The share of distinct keys that are there; 0 where there is no memory to find out."""
    keys, count = load(call, TableCall.keys), load(call, TableCall.key_count)
    size = int64(2)
    while size < 2 * count:
        size *= 2
    seen = c_malloc(8 * size)
    if seen == 0:
        return 0.0
    c_memset(seen, int32(0), 8 * size)
    missing, distinct = int64(0), int64(0)
    for k in range(load(call, TableCall.missing_count)):
        number = load(load(call, TableCall.missing), k)
        missing += _is_first(seen, size, keys, number)
    for k in range(count):
        distinct += _is_first(seen, size, keys, int64(k))
    c_free(seen)
    # Those that are not there were seen before: they are not among the distinct ones.
    return distinct / (distinct + missing)


@jit
def _is_first(seen: int, size: int, keys: int, number: int) -> int:
    """1 if a key is not in a set of keys, in which it is then.

    Args:
      seen: the address of the set: numbers of keys from 1 on, 0 for none.
      size: a power of two.
    """
    key = load(keys, number)
    slot = hash_of(key) & (size - 1)
    while load(seen, slot) != 0:
        if load(keys, load(seen, slot) - 1) == key:
            return int64(0)
        slot = (slot + 1) & (size - 1)
    store(seen, slot, number + 1)
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


def look_up_open(job: int) -> None:
    """As `look_up`, where the store may be closed: then as many keys are waited for as -1.

    If keys are waited for, `end_lookup` is to follow.
    """
    record, begun = load(job, StoreCall.store), now()
    if not enter(record):
        store(job, StoreCall.waiting_count, int64(-1))
        return
    look_up(job)
    if load(job, StoreCall.waiting_count) == 0:
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
