"""The pool of threads and the jobs that it is offered, in memory."""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, fields, record

SLOT_COUNT = 16

#: How many threads may work on one op, that which runs it included. Unset, it is TensorFlow's
#: intra-op setting, or the number of processors that the process may keep busy if that is less.
THREADS_VARIABLE = "FUSION_NUM_THREADS"

#: TensorFlow's own, for processes that set no number by its API.
INTRA_OP_VARIABLE = "TF_NUM_INTRAOP_THREADS"

#: More would only wait for the memory.
MAX_THREADS = 64


class Slot(Layout):
    """Where a kernel offers a job."""

    job: Job  # 0 for none
    reader_count: Int64  # threads that look at it


class Pool(Layout):
    """The threads of a process that help kernels."""

    semaphore: Fields = fields(4)  # sem_t has 32 bytes
    is_ready: Flag  # whether it has all threads that it is to have, maybe none
    thread_count: Int64
    active_count: Int64  # threads at work, kernels that may ask for help included
    helper_count: Int64  # of these, the pool's
    sleeper_count: Int64  # threads of the pool that have not been woken
    slots: Slot = record(Slot, SLOT_COUNT)
    # Of the pool of a library, which starts its threads without Python.
    is_starting: Flag
    serve: Address  # what a thread does, for `pthread_create`


class Job(Layout):
    """Tasks that threads share. What derives from it is the kernel's own."""

    kernel: Address  # is called with (job, 0)
    next_task: Int64
    task_count: Int64
    pool: Pool  # that it is offered to
    helper_count: Int64
    helper_limit: Int64
    max_helpers: Int64  # that were at work at the same time
    float_modes: Int64  # of the thread that offers it
