"""Threads that help a kernel with a job of many small tasks.

A *pool* is memory that all kernels share; its threads wait until a kernel offers a *job*. A thread
that offers a job works on it like the others and waits only for tasks that have been begun, so that
it never needs help: busy threads, or none after a fork, make it slower and nothing else. Threads of
the pool help only while fewer threads are at work than there are processors: when another kernel
begins they leave the job that they are at, and when one ends they go to what is left of others'.
Their records are in `layout`.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import (
    atomic_add,
    atomic_load,
    atomic_max,
    atomic_store,
    atomic_swap_if,
    read_float_modes,
    set_float_modes,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at
from fusion.runtime.native.pointers import as_record
from fusion.runtime.tensorflow.layout import Frame
from fusion.runtime.threads.layout import SLOT_COUNT, Job, Pool, Slot

#: How often a thread checks whether others have finished before it yields.
_SPINS = 2000

#: How often a thread looks for a job before it sleeps: some 100 microseconds.
_LOOKS = 300

_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
_sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


@jit
def next_task(job: Job, helps: int) -> int:
    """The number of a task that has not been begun, or -1; `helps` as in `work(job, helps)`.

    A helper gets no task while more threads are at work than there are processors.
    """
    if atomic_load(job, Job.next_task) >= job.task_count:
        return int64(-1)
    if helps != 0 and _free_processors(job.pool) < 0:
        return int64(-1)
    task = atomic_add(job, Job.next_task, int64(1))
    return task if task < job.task_count else int64(-1)


@jit
def _free_processors(pool: Pool) -> int:
    """How many processors have no thread at work; negative if there are too few."""
    return pool.thread_count + 1 - atomic_load(pool, Pool.active_count)


@jit
def _wake(pool: int, count: int) -> None:
    """Wakes up to `count` threads that sleep."""
    for _ in range(count):
        if not _takes_sleeper(pool):
            return
        _sem_post(pool)


@jit
def _takes_sleeper(pool: int) -> bool:
    """Takes a thread that sleeps, or is about to, from their count; whether there was one."""
    if atomic_load(pool, Pool.sleeper_count) <= 0:
        return False
    if atomic_add(pool, Pool.sleeper_count, int64(-1)) > 0:
        return True
    atomic_add(pool, Pool.sleeper_count, int64(1))
    return False


@jit
def _is_any_offered(pool: int) -> bool:
    jobs = int64(0)
    for slot in range(SLOT_COUNT):
        jobs |= atomic_load(pool, Pool.slots + Slot.SIZE * slot)
    return jobs != 0


@jit
def offer(pool: Pool, job: Job) -> int:
    """Offers a job to the pool's threads; returns its slot for `withdraw`, or -1: no help."""
    limit = min(pool.thread_count, job.task_count - 1)
    if limit <= 0:
        return int64(-1)
    job.pool = pool
    job.helper_count = 0
    job.helper_limit = limit
    read_float_modes(job + 8 * Job.float_modes)
    for slot in range(SLOT_COUNT):
        if atomic_swap_if(pool, Pool.slots + Slot.SIZE * slot, int64(0), job):
            _wake(pool, min(limit, _free_processors(pool)))
            return int64(slot)
    return int64(-1)


@jit
def withdraw(pool: int, slot: int) -> None:
    """Withdraws an offer and waits for the threads that accepted it."""
    if slot < 0:
        return
    atomic_store(pool, Pool.slots + Slot.SIZE * slot, int64(0))
    spins = 0
    while atomic_load(pool, Pool.slots + Slot.SIZE * slot + Slot.reader_count) > 0:
        spins += 1
        if spins > _SPINS:
            sched_yield()


@jit
def open_job(pool: Pool, job: Job) -> int:
    """Offers a job to a pool, 0 for none; returns its slot, for `close_job` after the work."""
    job.max_helpers = 0
    if pool == 0:
        return int64(-1)
    atomic_add(pool, Pool.active_count, int64(1))
    if _free_processors(pool) < 0 and atomic_load(pool, Pool.helper_count) > 0:
        # Else a helper on this processor would finish its task, for which others wait, after us.
        sched_yield()
    return offer(pool, job)


@jit
def close_job(pool: Pool, slot: int) -> None:
    """Waits until all tasks of a job are done."""
    if pool == 0:
        return
    withdraw(pool, slot)
    atomic_add(pool, Pool.active_count, int64(-1))
    if _free_processors(pool) > 0 and _is_any_offered(pool):
        _wake(pool, int64(1))


@jit
def count_helpers(frame: Frame, job: Job) -> None:
    """Counts the threads that helped with a finished job of a call, for `Counters`."""
    helper_count = max(frame.helper_count, job.max_helpers)
    frame.helper_count = helper_count


@jit
def _takes_helper(job: Job) -> bool:
    """Whether a job takes one more helper; if so, counts it."""
    if atomic_load(job, Job.next_task) >= job.task_count:
        return False
    if atomic_add(job, Job.helper_count, int64(1)) < job.helper_limit:
        return True
    atomic_add(job, Job.helper_count, int64(-1))
    return False


@jit
def _begins_to_help(pool: Pool) -> bool:
    """Counts this thread among those at work, if there is a processor for it."""
    if atomic_add(pool, Pool.active_count, int64(1)) <= pool.thread_count:
        return True
    atomic_add(pool, Pool.active_count, int64(-1))
    return False


@jit
def _help(pool: Pool, slot: int) -> None:
    """Works on the job in a slot, if there is one that takes helpers."""
    looking = Pool.slots + Slot.SIZE * slot + Slot.reader_count
    atomic_add(pool, looking, int64(1))
    # Only now: from here on the job stays, because its owner waits while a thread looks.
    job = as_record(Job, atomic_load(pool, Pool.slots + Slot.SIZE * slot))
    if job != 0 and _takes_helper(job):
        if _begins_to_help(pool):
            atomic_add(pool, Pool.helper_count, int64(1))
            atomic_max(job, Job.max_helpers, atomic_load(job, Job.helper_count))
            set_float_modes(job + 8 * Job.float_modes)
            call_at(job.kernel, job, int64(0))
            atomic_add(pool, Pool.helper_count, int64(-1))
            atomic_add(pool, Pool.active_count, int64(-1))
        atomic_add(job, Job.helper_count, int64(-1))
    atomic_add(pool, looking, int64(-1))


@jit
def _help_all(pool: Pool) -> bool:
    """Works on the jobs in all slots; returns whether there was one."""
    has_job = False
    for slot in range(SLOT_COUNT):
        if atomic_load(pool, Pool.slots + Slot.SIZE * slot) != 0:
            _help(pool, int64(slot))
            has_job = True
    return has_job


@jit
def _sleep(pool: Pool) -> None:
    """Sleeps until it is woken, unless a job that it can help with was offered meanwhile."""
    atomic_add(pool, Pool.sleeper_count, int64(1))
    is_needed = _free_processors(pool) > 0 and _is_any_offered(pool)
    if not (is_needed and _takes_sleeper(pool)):
        _sem_wait(pool)


def serve(pool: Pool) -> None:
    """The function of each thread of the pool; it never returns.

    Waking up takes as long as many a job. So a thread looks for another job for a while before it
    sleeps, and lets others run meanwhile; not if there is no processor for it.
    """
    while True:
        _sleep(pool)
        idle = 0
        while idle < _LOOKS and _free_processors(pool) > 0:
            idle = 0 if _help_all(pool) else idle + 1
            sched_yield()
