"""GroupedIds on a CPU: ids of all columns in one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.ids.cpu.ids_layout import IdsState
from fusion.ops.ids.cpu_kernels.layout import TASK_VALUES, IdsCall, IdsJob, Index
from fusion.ops.ids.cpu_kernels.tasks import do_task
from fusion.ops.ids.cpu_kernels.vocabulary import is_whole
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_dim, tf_num_dims, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Fewer values are not worth another thread.
_PARALLEL_VALUES = 2048


@jit
def work(job: IdsJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        do_task(job, task)


@jit
def _open_columns(frame: op.Frame, job: IdsJob, tensors: Words) -> int:
    """Sets the tensors of columns; returns how many values there are."""
    total, tasks = int64(0), int64(0)
    for index in range(job.column_count):
        values = take(frame, tensors, int64(index), int64(index))
        if op.failed(frame):
            return total
        call, rank = job.calls[index], int64(tf_num_dims(values))
        dims = stack_words(rank + 1)
        for axis in range(rank):
            dims[axis] = tf_dim(values, np.int32(axis))
        call.values = tf_tensor_data(values)
        call.count = element_count(values)
        call.ids = as_words(op.shaped_output(frame, int64(index), dims, rank, int64(8)))
        total += call.count
        job.firsts[index] = tasks
        tasks += (call.count + TASK_VALUES - 1) // TASK_VALUES
    job.firsts[job.column_count] = tasks
    job.task_count = tasks
    op.count_rows(frame, total)
    return total


@jit
def open_index(frame: op.Frame, job: IdsJob, tensors: Words) -> None:
    """Takes the index of vocabularies, which comes after the values."""
    count = job.column_count
    index = take(frame, tensors, count, count)
    if op.failed(frame):
        return
    words = element_count(index)
    job.index = as_record(Index, tf_tensor_data(index))
    for k in range(count):
        number = job.columns[k].vocabulary
        if number >= 0 and not is_whole(job.index, words, number, job.columns[k]):
            text = "index has no vocabulary %lld for column %lld: VocabularyIndex makes indices"
            op.fail(frame, op.INVALID_ARGUMENT, text, number, int64(k))
            return


@jit
def _make_ids(frame: op.Frame, job: IdsJob, tensors: Words) -> None:
    state = as_record(IdsState, frame.state)
    if state.has_index != 0:
        open_index(frame, job, tensors)
    total = _open_columns(frame, job, tensors) if not op.failed(frame) else int64(0)
    if op.failed(frame):
        return
    pool = as_record(Pool, state.pool if total >= _PARALLEL_VALUES else int64(0))
    job.kernel = state.kernel
    job.next_task = 0
    slot = jobs.open_job(pool, job)
    work(job, int64(0))
    jobs.close_job(pool, slot)
    jobs.count_helpers(frame, job)


def make_ids(frame: op.Frame) -> None:
    """The kernel body."""
    state, job = as_record(IdsState, frame.state), stack_record(IdsJob)
    count = state.column_count
    clear(job)
    inputs = count + 1
    memory = op.scratch_bytes(frame, 8 * (inputs + IdsCall.SIZE * count + count + 1))
    if op.failed(frame):
        return
    tensors = as_words(memory)
    for k in range(inputs):
        tensors[k] = 0
    job.columns = state.columns
    job.column_count = count
    job.calls = as_record(IdsCall, memory + 8 * inputs)
    job.firsts = as_words(job.calls + 8 * IdsCall.SIZE * count)
    _make_ids(frame, job, tensors)
    release(tensors, inputs)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return make_ids, work, IdsJob
