"""The kernel of the op before the combination of many columns, some of embedding variables.

Distinct ids are found as by `unique_kernel`. Then the tasks are blocks of the keys of a column,
whose rows are found and gathered; and in training, columns whose new keys are added. All variables
are shared from the first task to the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.cpu_ops.keys.gather import gather
from fusion.cpu_ops.keys.layout import Addition, KeyedGather
from fusion.ops.cpu.columns.inputs import column_at, state_field
from fusion.ops.cpu.columns.keyed_variables import (
    VARIABLES,
    keyed_column,
    keyed_columns,
    set_column,
    share_columns,
    take_steps,
    unshare_columns,
)
from fusion.ops.cpu.columns.layout import ColumnsState, KeyedColumn, KeyedColumns
from fusion.ops.cpu.columns.unique_kernel import UniqueJob, do_columns, find_keys
from fusion.ops.cpu.tables.calls import (
    PARALLEL_KEYS,
    TASK_KEYS,
    TASKS_PER_THREAD,
    add_listed,
    addition_of,
    begin_training,
    check_room,
    count_missing,
    gather_of,
    list_missing,
)
from fusion.ops.cpu.tables.inputs import release
from fusion.ops.cpu.tables.layout import KeyedCall, SharedVariable
from fusion.runtime.layout import Address, Int64
from fusion.runtime.native.frame import failed, kernel_state, new_output, scratch_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import (
    c_memset,
    load,
    load_as,
    stack_words,
    store,
    store_as,
)
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool


class KeyedJob(UniqueJob):
    """What the tasks of a call share."""

    phase: Int64  # see below
    keyed: Address  # `KeyedColumns`
    calls: Address  # a `KeyedCall` for each of these
    task_keys: Int64
    first_tasks: Address  # the number of each call's first task, int64 [calls + 1]


#: What tasks do: find distinct ids; gather rows; add keys.
_NUMBERING, _GATHERING, _ADDING = range(3)

#: Inputs of each column, before those of embedding variables and the steps of all.
_COLUMN_INPUTS = 4

#: Outputs besides those of each column.
_OUTPUTS = 3


@jit
def _call_at(job: int, number: int) -> int:
    return load(job, KeyedJob.calls) + 8 * KeyedCall.SIZE * number


@jit
def _column_of(job: int, number: int) -> int:
    """The address of a `KeyedColumn`."""
    return keyed_column(load(job, KeyedJob.keyed), number)


@jit
def _do_gather(job: int, task: int) -> None:
    """Gathers the rows of a block of keys."""
    firsts, number, size = load(job, KeyedJob.first_tasks), int64(0), load(job, KeyedJob.task_keys)
    while load(firsts, number + 1) <= task:
        number += 1
    call, start = _call_at(job, number), (task - load(firsts, number)) * size
    gather(gather_of(call), start, min(start + size, load(call, KeyedCall.key_count)))


@jit
def work(job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    phase = load(job, KeyedJob.phase)
    if phase == _NUMBERING:
        do_columns(job, helps)
        return
    task = jobs.next_task(job, helps)
    while task >= 0:
        if phase == _GATHERING:
            _do_gather(job, task)
        else:
            add_listed(_call_at(job, task))
        task = jobs.next_task(job, helps)


@jit
def _do_all(frame: int, job: int, phase: int, tasks: int, helpers: int) -> None:
    """Does the tasks of a phase."""
    store(job, KeyedJob.phase, phase)
    store(job, Job.next_task, 0)
    store(job, Job.task_count, tasks)
    slot = jobs.open_job(helpers, job)
    work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)


@jit
def _set_up(frame: int, job: int, shared: int, count: int, steps: int) -> None:
    """Sets the variables of all calls, and their steps if they are in training."""
    for k in range(count):
        call = _call_at(job, k)
        set_column(frame, call, shared, k)
        if failed(frame):
            return
        store(addition_of(call), Addition.step, load(steps, k))


@jit
def _open_calls(frame: int, job: int, count: int) -> int:
    """Gives each column's keys their outputs; returns how many keys there are."""
    state, total = kernel_state(frame), int64(0)
    outputs = _OUTPUTS + state_field(state, ColumnsState.column_count)
    item = state_field(state, ColumnsState.item_bytes)
    for k in range(count):
        call, column = _call_at(job, k), load(_column_of(job, k), KeyedColumn.index)
        args, dim = gather_of(call), load(column_at(state, column), ColumnAttrs.dim)
        keys = load(load(job, UniqueJob.key_counts), column)
        first = load(load(job, UniqueJob.entry_offsets), column)
        store(call, KeyedCall.key_count, keys)
        store(args, KeyedGather.keys, load(job, UniqueJob.keys) + 8 * first)
        out = new_output(frame, outputs + k, int64(2), keys, dim, item)
        store(args, KeyedGather.out, out)
        rows = new_output(frame, outputs + count + k, int64(1), keys, int64(1), int64(8))
        store(args, KeyedGather.rows, rows)
        total += keys
    return total


@jit
def _begin_training(frame: int, job: int, count: int) -> None:
    """Begins training of the columns that are, with how often each key was there.

    That matters where keys are to be seen several times.
    """
    total = int64(0)
    for k in range(count):
        if load(_column_of(job, k), KeyedColumn.is_training) != 0:
            begin_training(_call_at(job, k))
            if load(addition_of(_call_at(job, k)), Addition.admission) > 1:
                total += load(_call_at(job, k), KeyedCall.key_count)
    counts = scratch_bytes(frame, 4 * total) if total > 0 else int64(0)
    if counts == 0:
        return
    c_memset(counts, np.int32(0), 4 * total)
    for k in range(count):
        call = _call_at(job, k)
        if load(addition_of(call), Addition.admission) > 1:
            store(addition_of(call), Addition.counts, counts)
            _count_entries(job, load(_column_of(job, k), KeyedColumn.index), counts)
            counts += 4 * load(call, KeyedCall.key_count)


@jit
def _count_entries(job: int, column: int, counts: int) -> None:
    """Counts the entries of each distinct id of a column."""
    batch, idxs = load(job, UniqueJob.batch_size), load(job, UniqueJob.unique_idxs)
    splits = load(job, UniqueJob.row_splits) + 4 * column * (batch + 1)
    first, end = load_as(splits, int64(0), np.int32), load_as(splits, batch, np.int32)
    for k in range(int64(first), int64(end)):
        number = int64(load_as(idxs, k, np.int32))
        store_as(counts, number, np.int32(load_as(counts, number, np.int32) + 1), np.int32)


@jit
def _gather_all(frame: int, job: int, count: int, total: int, pool: int) -> None:
    """Gathers the rows of all keys, by all threads that there are where that pays."""
    helpers = pool if total >= PARALLEL_KEYS else int64(0)
    size, tasks = total, int64(0)
    if helpers != 0:
        threads = load(pool, Pool.thread_count) + 1
        size = max(total // (TASKS_PER_THREAD * threads), int64(TASK_KEYS))
    size = max(size, int64(1))
    firsts = load(job, KeyedJob.first_tasks)
    for k in range(count):
        store(firsts, k, tasks)
        tasks += (load(_call_at(job, k), KeyedCall.key_count) + size - 1) // size
    store(firsts, count, tasks)
    store(job, KeyedJob.task_keys, size)
    _do_all(frame, job, int64(_GATHERING), tasks, helpers)


@jit
def _add_all(frame: int, job: int, count: int, pool: int) -> None:
    """Adds the keys without a row of columns in training."""
    total = int64(0)
    for k in range(count):
        if load(_column_of(job, k), KeyedColumn.is_training) != 0:
            total += count_missing(_call_at(job, k))
    missing = scratch_bytes(frame, 8 * total) if total > 0 else int64(0)
    if missing == 0:
        return
    for k in range(count):
        if load(_call_at(job, k), KeyedCall.missing_count) != 0:
            list_missing(_call_at(job, k), missing)
            missing += 8 * load(_call_at(job, k), KeyedCall.missing_count)
    _do_all(frame, job, int64(_ADDING), count, pool if total >= TASK_KEYS else int64(0))
    for k in range(count):
        check_room(frame, _call_at(job, k), load(_column_of(job, k), KeyedColumn.index))


@jit
def _prepare_shared(frame: int, job: int, shared: int, count: int, steps: int) -> None:
    """What is done while all variables are shared."""
    _set_up(frame, job, shared, count, steps)
    if not failed(frame):
        find_keys(frame, job)
    if failed(frame):
        return
    total = _open_calls(frame, job, count)
    if not failed(frame):
        _begin_training(frame, job, count)
    if failed(frame):
        return
    pool = state_field(kernel_state(frame), ColumnsState.pool)
    _gather_all(frame, job, count, total, pool)
    _add_all(frame, job, count, pool)


def prepare(frame: int) -> None:
    """The kernel body."""
    job, tensors = stack_words(KeyedJob.SIZE), stack_words(int64(1))
    keyed = keyed_columns(frame)
    count = load(keyed, KeyedColumns.count)
    store(tensors, 0, 0)
    steps = take_steps(frame, int64(_COLUMN_INPUTS), tensors)
    size = VARIABLES * SharedVariable.SIZE + KeyedCall.SIZE + 1
    memory = scratch_bytes(frame, 8 * (size * count + 1)) if not failed(frame) else int64(0)
    if memory != 0:
        c_memset(memory, np.int32(0), 8 * (size * count + 1))
        calls = memory + 8 * SharedVariable.SIZE * VARIABLES * count
        store(job, KeyedJob.phase, _NUMBERING)
        store(job, KeyedJob.keyed, keyed)
        store(job, KeyedJob.calls, calls)
        store(job, KeyedJob.first_tasks, calls + 8 * KeyedCall.SIZE * count)
        if share_columns(frame, int64(_COLUMN_INPUTS), memory):
            _prepare_shared(frame, job, memory, count, steps)
        unshare_columns(frame, memory)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return prepare, work
