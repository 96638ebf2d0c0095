"""The kernel of the op before the combination of many columns, some of embedding variables.

Distinct ids are found as by `unique_kernel`. Then the tasks are blocks of the keys of a column,
whose rows are found and gathered; and in training, columns whose new keys are added. All variables
are shared from the first task to the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.columns.cpu.keyed_variables import (
    VARIABLES,
    keyed_columns,
    set_column,
    share_columns,
    take_steps,
    unshare_columns,
)
from fusion.ops.columns.cpu.layout import ColumnsState, KeyedColumns
from fusion.ops.columns.cpu.unique_kernel import UniqueJob, do_columns, find_keys
from fusion.ops.tables.cpu.calls import (
    PARALLEL_KEYS,
    TASK_KEYS,
    TASKS_PER_THREAD,
    add_listed,
    begin_training,
    check_room,
    count_missing,
    list_missing,
)
from fusion.ops.tables.cpu.inputs import release
from fusion.ops.tables.cpu.layout import KeyedCall, SharedVariable
from fusion.ops.tables.cpu_kernels.gather import gather
from fusion.runtime.layout import Int64, Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memset, load_as, store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool


class KeyedJob(UniqueJob):
    """What the tasks of a call share."""

    phase: Int64  # see below
    keyed: KeyedColumns
    calls: KeyedCall  # of each of these
    task_keys: Int64
    first_tasks: Words  # the number of each call's first task, int64 [calls + 1]


#: What tasks do: find distinct ids; gather rows; add keys.
_NUMBERING, _GATHERING, _ADDING = range(3)

#: Inputs of each column, before those of embedding variables and the steps of all.
_COLUMN_INPUTS = 4

#: Outputs other than those of each column.
_OUTPUTS = 3


@jit
def _do_gather(job: KeyedJob, task: int) -> None:
    """Gathers the rows of a block of keys."""
    firsts, number, size = job.first_tasks, int64(0), job.task_keys
    while firsts[number + 1] <= task:
        number += 1
    call, start = job.calls[number], (task - firsts[number]) * size
    gather(call.gather, start, min(start + size, call.key_count))


@jit
def work(job: KeyedJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    phase = job.phase
    if phase == _NUMBERING:
        do_columns(job, helps)
        return
    task = jobs.next_task(job, helps)
    while task >= 0:
        if phase == _GATHERING:
            _do_gather(job, task)
        else:
            add_listed(job.calls[task])
        task = jobs.next_task(job, helps)


@jit
def _do_all(frame: op.Frame, job: KeyedJob, phase: int, tasks: int, helpers: Pool) -> None:
    """Does the tasks of a phase."""
    job.phase = phase
    job.next_task = 0
    job.task_count = tasks
    slot = jobs.open_job(helpers, job)
    work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)


@jit
def _set_up(
    frame: op.Frame, job: KeyedJob, shared: SharedVariable, count: int, steps: Words
) -> None:
    """Sets the variables of all calls, and their steps if they are in training."""
    for k in range(count):
        call = job.calls[k]
        set_column(frame, call, shared, k)
        if op.failed(frame):
            return
        call.addition.step = steps[k]


@jit
def _open_calls(frame: op.Frame, job: KeyedJob, count: int) -> int:
    """Gives each column's keys their outputs; returns how many keys there are."""
    state, total = as_record(ColumnsState, frame.state), int64(0)
    outputs = _OUTPUTS + state.column_count
    item = state.item_bytes
    for k in range(count):
        call = job.calls[k]
        column = job.keyed.columns[k].index
        args = call.gather
        dim = state.columns[column].dim
        keys = job.key_counts[column]
        first = job.entry_offsets[column]
        call.key_count = keys
        args.keys = as_words(job.keys + 8 * first)
        out = op.new_output(frame, outputs + k, int64(2), keys, dim, item)
        args.out = out
        rows = op.new_output(frame, outputs + count + k, int64(1), keys, int64(1), int64(8))
        args.rows = as_words(rows)
        total += keys
    return total


@jit
def _begin_training(frame: op.Frame, job: KeyedJob, count: int) -> None:
    """Begins training of the columns that are, with how often each key was there.

    That matters where keys are to be seen several times.
    """
    total = int64(0)
    for k in range(count):
        if job.keyed.columns[k].is_training != 0:
            begin_training(job.calls[k])
            if job.calls[k].addition.admission > 1:
                total += job.calls[k].key_count
    counts = op.scratch_bytes(frame, 4 * total) if total > 0 else int64(0)
    if counts == 0:
        return
    c_memset(counts, np.int32(0), 4 * total)
    for k in range(count):
        call = job.calls[k]
        if call.addition.admission > 1:
            call.addition.counts = counts
            _count_entries(job, job.keyed.columns[k].index, counts)
            counts += 4 * call.key_count


@jit
def _count_entries(job: UniqueJob, column: int, counts: int) -> None:
    """Counts the entries of each distinct id of a column."""
    batch, idxs = job.batch_size, job.unique_idxs
    splits = job.row_splits + 4 * column * (batch + 1)
    first, end = load_as(splits, int64(0), np.int32), load_as(splits, batch, np.int32)
    for k in range(int64(first), int64(end)):
        number = int64(load_as(idxs, k, np.int32))
        store_as(counts, number, np.int32(load_as(counts, number, np.int32) + 1), np.int32)


@jit
def _gather_all(frame: op.Frame, job: KeyedJob, count: int, total: int, pool: Pool) -> None:
    """Gathers the rows of all keys, by all threads that there are where that pays."""
    helpers = as_record(Pool, pool if total >= PARALLEL_KEYS else int64(0))
    size, tasks = total, int64(0)
    if helpers != 0:
        threads = pool.thread_count + 1
        size = max(total // (TASKS_PER_THREAD * threads), int64(TASK_KEYS))
    size = max(size, int64(1))
    firsts = job.first_tasks
    for k in range(count):
        firsts[k] = tasks
        tasks += (job.calls[k].key_count + size - 1) // size
    firsts[count] = tasks
    job.task_keys = size
    _do_all(frame, job, int64(_GATHERING), tasks, helpers)


@jit
def _add_all(frame: op.Frame, job: KeyedJob, count: int, pool: int) -> None:
    """Adds the keys without a row of columns in training."""
    total = int64(0)
    for k in range(count):
        if job.keyed.columns[k].is_training != 0:
            total += count_missing(job.calls[k])
    missing = op.scratch_bytes(frame, 8 * total) if total > 0 else int64(0)
    if missing == 0:
        return
    for k in range(count):
        if job.calls[k].missing_count != 0:
            list_missing(job.calls[k], as_words(missing))
            missing += 8 * job.calls[k].missing_count
    _do_all(
        frame, job, int64(_ADDING), count, as_record(Pool, pool if total >= TASK_KEYS else int64(0))
    )
    for k in range(count):
        check_room(frame, job.calls[k], job.keyed.columns[k].index)


@jit
def _prepare_shared(
    frame: op.Frame, job: KeyedJob, shared: SharedVariable, count: int, steps: Words
) -> None:
    """What is done while all variables are shared."""
    _set_up(frame, job, shared, count, steps)
    if not op.failed(frame):
        find_keys(frame, job)
    if op.failed(frame):
        return
    total = _open_calls(frame, job, count)
    if not op.failed(frame):
        _begin_training(frame, job, count)
    if op.failed(frame):
        return
    pool = as_record(ColumnsState, frame.state).pool
    _gather_all(frame, job, count, total, pool)
    _add_all(frame, job, count, pool)


def prepare(frame: op.Frame) -> None:
    """The kernel body."""
    job, tensors = stack_record(KeyedJob), stack_words(int64(1))
    keyed = keyed_columns(frame)
    count = keyed.count
    tensors[0] = 0
    steps = take_steps(frame, int64(_COLUMN_INPUTS), tensors)
    size = VARIABLES * SharedVariable.SIZE + KeyedCall.SIZE + 1
    memory = as_record(
        SharedVariable,
        op.scratch_bytes(frame, 8 * (size * count + 1)) if not op.failed(frame) else int64(0),
    )
    if memory != 0:
        c_memset(memory, np.int32(0), 8 * (size * count + 1))
        calls = as_record(KeyedCall, memory[VARIABLES * count])
        job.phase = _NUMBERING
        job.keyed = keyed
        job.calls = calls
        job.first_tasks = as_words(calls[count])
        if share_columns(frame, int64(_COLUMN_INPUTS), memory):
            _prepare_shared(frame, job, memory, count, steps)
        unshare_columns(frame, memory)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return prepare, work, KeyedJob
