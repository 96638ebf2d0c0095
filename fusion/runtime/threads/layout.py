"""The pool of threads and the jobs that it is offered, in memory."""

from __future__ import annotations

#: The pool, in words: a semaphore (`sem_t` has 32 bytes), the number of threads, the number of
#: those at work, slots for jobs.
THREADS, ACTIVE, SLOTS = range(4, 7)


SLOT_COUNT = 16


POOL_WORDS = SLOTS + 2 * SLOT_COUNT


KERNEL, NEXT, TASKS, HELPERS, MOST_HELPERS, MODES = range(6)


JOB_WORDS = 6
