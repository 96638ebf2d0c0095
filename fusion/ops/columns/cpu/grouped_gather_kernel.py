"""The kernel of the op that gathers rows of many variables.

All variables are shared from the first task to the last, as gathers and sparse updates share them.
A task is a block of the keys of a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.elements import integer_at
from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.columns.cpu.grouped_gather_layout import GatherState
from fusion.ops.columns.cpu.inputs import input_tensor
from fusion.ops.tables.cpu.layout import SharedVariable
from fusion.ops.tables.cpu.sharing import share_all, unshare_all
from fusion.runtime.layout import Address, Flag, Int64, Layout
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, store_as
from fusion.runtime.native.pointers import as_record, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_delete_tensor, tf_dim, tf_num_dims, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool


class GatherJob(Job):
    """The data that the tasks of a call share."""

    column_count: Int64
    columns: GatherCall  # [columns]
    task_keys: Int64


class GatherCall(Layout):
    """A column of a call."""

    table: Address
    table_rows: Int64
    row_bytes: Int64
    keys: Address
    keys_dtype: Int64  # its code
    key_count: Int64
    out: Address
    first_task: Int64
    has_wrong: Flag  # whether a key is not in the table


#: Fewer keys are gathered before another thread has woken up.
_PARALLEL_KEYS = 4096
#: A task has so many keys, or more where tasks enough are left for each thread.
_TASK_KEYS, _TASKS_PER_THREAD = 256, 4
#: So many keys ahead, and so many lines of their rows, are prefetched.
_AHEAD, _MAX_LINES, _LINE_BYTES = 12, 4, 64


@jit
def _row_address(call: GatherCall, k: int) -> int:
    """The address of the row of a key, 0 if it is not in the table."""
    number = integer_at(call.keys, k, call.keys_dtype)
    if number < 0 or number >= call.table_rows:
        return int64(0)
    return call.table + number * call.row_bytes


@jit
def _ask(call: GatherCall, k: int, lines: int) -> None:
    """Prefetches the row of a key."""
    address = _row_address(call, k)
    for line in range(lines):
        prefetch_line(address + _LINE_BYTES * line)


@jit
def _gather(call: GatherCall, first: int, end: int) -> None:
    """Gathers the rows of some keys."""
    size = call.row_bytes
    lines = min((size + _LINE_BYTES - 1) // _LINE_BYTES, int64(_MAX_LINES))
    for k in range(first, min(first + _AHEAD, end)):
        _ask(call, int64(k), lines)
    for k in range(first, end):
        if k + _AHEAD < end:
            _ask(call, int64(k + _AHEAD), lines)
        address = _row_address(call, int64(k))
        if address == 0:
            call.has_wrong = 1
        else:
            c_memcpy(call.out + k * size, address, size)


@jit
def work(job: GatherJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    size, count = job.task_keys, job.column_count
    task, index = jobs.next_task(job, helps), int64(0)
    while task >= 0:  # tasks come in order
        while index + 1 < count and job.columns[index + 1].first_task <= task:
            index += 1
        call = job.columns[index]
        start = (task - call.first_task) * size
        _gather(call, start, min(start + size, call.key_count))
        task = jobs.next_task(job, helps)


@jit
def _take_keys(frame: op.Frame, call: GatherCall, index: int) -> None:
    """Takes the keys of a column."""
    slot, count = stack_words(int64(1)), as_record(GatherState, frame.state).column_count
    keys = input_tensor(frame.context, count + index, slot, frame.status)
    if keys == 0:
        op.check(frame)
        return
    rank = int64(tf_num_dims(keys))
    call.keys = tf_tensor_data(keys)
    call.key_count = tf_dim(keys, np.int32(0)) if rank == 1 else int64(0)
    tf_delete_tensor(keys)  # the context holds the input
    if rank != 1:
        op.fail_column(frame, op.INVALID_ARGUMENT, ": keys have rank %lld, not 1", index, rank)


@jit
def _open_column(frame: op.Frame, job: GatherJob, shared: SharedVariable, index: int) -> int:
    """Sets a column of a call; the number of its keys."""
    state = as_record(GatherState, frame.state)
    call = job.columns[index]
    column = state.columns[index]
    variable, size = shared[index], column.row_bytes
    total = variable.byte_count
    if total % size != 0:
        text = ": the variable has %lld bytes, which are no rows of %lld"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, total, size)
        return int64(0)
    call.table = variable.data
    call.table_rows = total // size
    call.row_bytes = size
    call.keys_dtype = column.keys_dtype
    _take_keys(frame, call, index)
    if op.failed(frame):
        return int64(0)
    keys, item = call.key_count, state.item_bytes
    call.out = op.new_output(frame, index, int64(2), keys, size // item, item)
    return keys


@jit
def _report(frame: int, call: GatherCall, index: int) -> None:
    """Reports the key of a column that is not in its table."""
    for k in range(call.key_count):
        if _row_address(call, int64(k)) == 0:
            keys, dtype = call.keys, call.keys_dtype
            text = ": indices[%lld] = %lld is not in [0, %lld), the rows of the table"
            number, rows = integer_at(keys, int64(k), dtype), call.table_rows
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(k), number, rows)
            return


@jit
def _gather_all(frame: op.Frame, job: GatherJob, shared: SharedVariable, count: int) -> None:
    """Gathers the rows of all columns, whose variables are shared."""
    total, tasks = int64(0), int64(0)
    for index in range(count):
        total += _open_column(frame, job, shared, int64(index))
        if op.failed(frame):
            return
    op.count_rows(frame, total)
    pool = as_record(GatherState, frame.state).pool
    helpers = as_record(Pool, pool if total >= _PARALLEL_KEYS else int64(0))
    threads = pool.thread_count + 1 if helpers != 0 else int64(1)
    size = max(total // (_TASKS_PER_THREAD * threads), int64(_TASK_KEYS))
    for index in range(count):
        call = job.columns[index]
        call.first_task = tasks
        tasks += (call.key_count + size - 1) // size
    job.task_keys = size
    job.kernel = frame.state.kernel
    job.next_task = 0
    job.task_count = tasks
    slot = jobs.open_job(helpers, job)
    work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    for index in range(count):
        call = job.columns[index]
        if call.has_wrong != 0:
            _report(frame, call, int64(index))
            return


def gather_rows(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(GatherState, frame.state)
    job = stack_record(GatherJob)
    count = state.column_count
    size = 8 * count * (SharedVariable.SIZE + GatherCall.SIZE + 1)
    memory = as_record(SharedVariable, op.scratch_bytes(frame, size))
    if op.failed(frame):
        return
    c_memset(memory, np.int32(0), size)
    calls = as_record(GatherCall, memory[count])
    numbers = calls[count]
    for index in range(count):
        store_as(numbers, index, np.int32(index), np.int32)
    job.column_count = count
    job.columns = calls
    if share_all(frame, state.access, numbers, count, memory):
        _gather_all(frame, job, memory, count)
    unshare_all(memory, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return gather_rows, work, GatherJob
