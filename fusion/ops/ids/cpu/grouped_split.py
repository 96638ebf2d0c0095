"""GroupedSplit on a CPU: texts of all columns in one job.

Tasks count parts; when all are counted there are tensors for these, and the same tasks write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops.ids.cpu.grouped_ids import open_index
from fusion.ops.ids.cpu.ids_layout import IdsState
from fusion.ops.ids.cpu_kernels.layout import IdsCall
from fusion.ops.ids.cpu_kernels.split_layout import (
    INDICES,
    TASK_TEXTS,
    SplitJob,
    SplitTask,
)
from fusion.ops.ids.cpu_kernels.splitting import do_task
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Fewer texts are not worth another thread.
_PARALLEL_TEXTS = 512


@jit
def work(job: SplitJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        do_task(job, task)


@jit
def _do_all(frame: op.Frame, job: SplitJob, text_count: int) -> None:
    """Does all tasks, by all threads that there are if there are many texts."""
    state = as_record(IdsState, frame.state)
    pool = as_record(Pool, state.pool if text_count >= _PARALLEL_TEXTS else int64(0))
    job.kernel = state.kernel
    job.next_task = 0
    slot = jobs.open_job(pool, job)
    work(job, int64(0))
    jobs.close_job(pool, slot)
    jobs.count_helpers(frame, job)


@jit
def _open_columns(frame: op.Frame, job: SplitJob, tensors: Words) -> int:
    """Sets the texts of columns; returns how many there are."""
    total, tasks = int64(0), int64(0)
    for index in range(job.column_count):
        texts = take(frame, tensors, int64(index), int64(index))
        if op.failed(frame):
            return total
        call = job.calls[index]
        call.values = tf_tensor_data(texts)
        call.count = element_count(texts)
        total += call.count
        job.firsts[index] = tasks
        tasks += (call.count + TASK_TEXTS - 1) // TASK_TEXTS
    job.firsts[job.column_count] = tasks
    job.task_count = tasks
    return total


@jit
def _allocate(frame: op.Frame, job: SplitJob, number: int) -> int:
    """New tensors of a column, whose parts are counted; returns their number."""
    has_indices, call = job.splits[number].form == INDICES, job.calls[number]
    total, largest, output = int64(0), int64(0), number
    for task in range(job.firsts[number], job.firsts[number + 1]):
        one = job.tasks[task]
        count = one.count
        one.count = total
        total += count
        largest = max(largest, one.max_count)
    dims = stack_words(int64(2))
    dims[0] = total
    call.ids = as_words(op.shaped_output(frame, output, dims, int64(1), int64(8)))
    output += job.column_count
    rank = int64(2 if has_indices else 1)
    dims[0] = total if has_indices else call.count + 1
    dims[1] = 2
    rows = as_words(op.shaped_output(frame, output, dims, rank, int64(8)))
    job.rows[number] = rows
    dims[0] = 2
    output += job.column_count
    shape = as_words(op.shaped_output(frame, output, dims, int64(1), int64(8)))
    if op.failed(frame):
        return total
    shape[0] = call.count
    shape[1] = largest
    if not has_indices:
        rows[0] = 0
    return total


@jit
def _split_texts(frame: op.Frame, job: SplitJob, tensors: Words) -> None:
    """Splits, when there is memory for the call."""
    state = as_record(IdsState, frame.state)
    if state.has_index != 0:
        open_index(frame, job, tensors)
    text_count = _open_columns(frame, job, tensors) if not op.failed(frame) else int64(0)
    tasks = as_record(
        SplitTask, op.scratch_bytes(frame, 8 * SplitTask.SIZE * max(job.task_count, int64(1)))
    )
    if op.failed(frame):
        return
    job.tasks = tasks
    _do_all(frame, job, text_count)
    total = int64(0)
    for index in range(job.column_count):
        total += _allocate(frame, job, int64(index))
    op.count_rows(frame, total)
    if op.failed(frame):
        return
    job.is_filling = 1
    _do_all(frame, job, text_count)


def split_texts(frame: op.Frame) -> None:
    """The kernel body."""
    state, job = as_record(IdsState, frame.state), stack_record(SplitJob)
    count = state.column_count
    clear(job)
    inputs = count + 1
    memory = op.scratch_bytes(frame, 8 * (inputs + (IdsCall.SIZE + 2) * count + 1))
    if op.failed(frame):
        return
    tensors = as_words(memory)
    for k in range(inputs):
        tensors[k] = 0
    job.columns = state.columns
    job.splits = state.splits
    job.column_count = count
    job.calls = as_record(IdsCall, memory + 8 * inputs)
    job.rows = as_words(job.calls + 8 * IdsCall.SIZE * count)
    job.firsts = as_words(job.rows + 8 * count)
    _split_texts(frame, job, tensors)
    release(tensors, inputs)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return split_texts, work, SplitJob
