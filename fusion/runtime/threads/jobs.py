"""Threads that help a kernel with a job of many small tasks.

A *pool* is memory that all kernels share; its threads wait until a kernel offers a *job*. Whoever
offers a job works on it like the others and waits only for tasks that have been begun, so that it
depends on nobody: busy threads, or none after a fork, make it slower and nothing else. A kernel
asks for help only while fewer threads are at work than there are processors.
What is in them: see `layout`.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap_if,
    read_float_modes,
    set_float_modes,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, store
from fusion.runtime.threads.layout import SLOT_COUNT, Job, Pool, Slot

#: So often a thread looks whether others have finished before it lets others run.
_SPINS = 2000

#: So often a thread looks for a job before it sleeps: some 100 microseconds.
_LOOKS = 300

_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
_sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


@jit
def next_task(job: int) -> int:
    """The number of a task that nobody has begun, or -1."""
    if atomic_load(job, Job.next_task) >= load(job, Job.task_count):
        return int64(-1)
    task = atomic_add(job, Job.next_task, int64(1))
    return task if task < load(job, Job.task_count) else int64(-1)


@jit
def offer(pool: int, job: int) -> int:
    """Offers a job to the pool's threads; returns its slot for `withdraw`, or -1: no help."""
    processors = load(pool, Pool.thread_count) + 1
    idle = processors - atomic_load(pool, Pool.active_count)
    wanted = min(idle, load(pool, Pool.thread_count), load(job, Job.task_count) - 1)
    if wanted <= 0:
        return int64(-1)
    store(job, Job.helper_count, 0)
    store(job, Job.helper_limit, wanted)
    read_float_modes(job + 8 * Job.float_modes)
    for slot in range(SLOT_COUNT):
        if atomic_swap_if(pool, Pool.slots + Slot.SIZE * slot, int64(0), job):
            for _ in range(wanted):
                _sem_post(pool)
            return int64(slot)
    return int64(-1)


@jit
def withdraw(pool: int, slot: int) -> None:
    """Takes an offer back and waits for those who accepted it."""
    if slot < 0:
        return
    atomic_store(pool, Pool.slots + Slot.SIZE * slot, int64(0))
    spins = 0
    while atomic_load(pool, Pool.slots + Slot.SIZE * slot + Slot.reader_count) > 0:
        spins += 1
        if spins > _SPINS:
            sched_yield()


@jit
def begin(pool: int) -> None:
    """Counts this thread among those at work."""
    if pool != 0:
        atomic_add(pool, Pool.active_count, int64(1))


@jit
def end(pool: int) -> None:
    """Takes `begin` back."""
    if pool != 0:
        atomic_add(pool, Pool.active_count, int64(-1))


@jit
def open_job(pool: int, job: int) -> int:
    """Offers a job to a pool, 0 for none; returns what `close_job` needs. Between them, work."""
    if pool == 0:
        return int64(-1)
    begin(pool)
    return offer(pool, job)


@jit
def close_job(pool: int, slot: int) -> None:
    """Waits until all tasks of a job are done."""
    if pool != 0:
        withdraw(pool, slot)
        end(pool)


@jit
def _is_wanted(job: int) -> bool:
    """Whether a job takes one more helper, which is counted then."""
    if atomic_load(job, Job.next_task) >= load(job, Job.task_count):
        return False
    return atomic_add(job, Job.helper_count, int64(1)) < load(job, Job.helper_limit)


@jit
def _help(pool: int, slot: int) -> None:
    """Works on the job in a slot, if there is one that wants help."""
    looking = Pool.slots + Slot.SIZE * slot + Slot.reader_count
    atomic_add(pool, looking, int64(1))
    # Only now: from here on the job stays, because its owner waits while anybody looks.
    job = atomic_load(pool, Pool.slots + Slot.SIZE * slot)
    if job != 0 and _is_wanted(job):
        begin(pool)
        set_float_modes(job + 8 * Job.float_modes)
        call_at(load(job, Job.kernel), job, int64(0))
        end(pool)
    atomic_add(pool, looking, int64(-1))


@jit
def _help_all(pool: int) -> bool:
    """Works on the jobs in all slots; returns whether there was one."""
    found = False
    for slot in range(SLOT_COUNT):
        if atomic_load(pool, Pool.slots + Slot.SIZE * slot) != 0:
            _help(pool, int64(slot))
            found = True
    return found


def serve(pool: int) -> None:
    """What each of the pool's threads does, forever.

    Waking up takes as long as many a job. So a thread looks for another job for a while before it
    sleeps, and lets others run meanwhile.
    """
    while True:
        _sem_wait(pool)
        idle = 0
        while idle < _LOOKS:
            idle = 0 if _help_all(pool) else idle + 1
            sched_yield()
