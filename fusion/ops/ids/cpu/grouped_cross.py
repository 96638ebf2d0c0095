"""GroupedCross on a CPU: rows of all crosses in one job.

Where the rows of a cross may differ in their number of ids, a first job counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.ids.cpu.cross_errors import CrossTensors, check_cross
from fusion.ops.ids.cpu.cross_layout import CrossState
from fusion.ops.ids.cpu_kernels.cross_layout import (
    BLOCK_CURSORS,
    BLOCK_ROWS,
    DENSE,
    INDICES,
    MATRIX,
    ROW_SPLITS,
    SPARSE,
    VECTOR,
    Cross,
    CrossCall,
    CrossJob,
    FeatureCall,
)
from fusion.ops.ids.cpu_kernels.crossing import MANY_IDS, do_task, product_of_counts
from fusion.ops.tables.cpu.inputs import release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_dim, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Fewer values of features are not worth another thread.
_PARALLEL_VALUES = 2048


@jit
def work(job: CrossJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        do_task(job, task)


@jit
def _do_all(frame: op.Frame, job: CrossJob, task_count: int, value_count: int) -> None:
    """Does all tasks, by all threads that there are if there are many values."""
    state = as_record(CrossState, frame.state)
    pool = as_record(Pool, state.pool if value_count >= _PARALLEL_VALUES else int64(0))
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = task_count
    slot = jobs.open_job(pool, job)
    work(job, int64(0))
    jobs.close_job(pool, slot)
    jobs.count_helpers(frame, job)


@jit
def _open_cross(frame: op.Frame, cross: Cross, call: CrossCall, tensors: CrossTensors) -> None:
    """Sets the tensors of the features of a cross, which are checked."""
    width, sparse = int64(1 if call.row_count > 0 else 0), int64(0)
    for index in range(cross.feature_count):
        of_call, values = call.features[index], tensors.values[index]
        of_call.values = tf_tensor_data(values)
        form = cross.features[index].form
        if form == SPARSE:
            of_call.indices = as_words(tf_tensor_data(tensors.indices[sparse]))
            of_call.count = tf_dim(values, np.int32(0))
            sparse += 1
        else:
            of_call.count = int64(1) if form == VECTOR else tf_dim(values, np.int32(1))
        if form < DENSE:
            width = -1
        elif width >= 0:
            width = product_of_counts(width, of_call.count)
    call.width = width
    call.max_count = max(width, int64(0))
    call.total = product_of_counts(call.max_count, call.row_count)
    if call.total >= MANY_IDS:
        text = "no memory for %lld ids of %lld rows"
        op.fail(frame, op.RESOURCE_EXHAUSTED, text, call.total, call.row_count)


@jit
def _open_crosses(frame: op.Frame, job: CrossJob, tensors: Words) -> int:
    """Checks and sets the tensors of all crosses; returns how many values their features have."""
    state, of_cross = as_record(CrossState, frame.state), stack_record(CrossTensors)
    first, sparse, blocks, total = int64(0), int64(0), int64(0), int64(0)
    calls = job.calls + 8 * CrossCall.SIZE * job.cross_count
    features, indices = state.feature_count, state.feature_count + state.sparse_count
    for index in range(job.cross_count):
        cross, call = job.crosses[index], job.calls[index]
        of_cross.values = as_words(tensors + 8 * first)
        of_cross.indices = as_words(tensors + 8 * (features + sparse))
        of_cross.shapes = as_words(tensors + 8 * (indices + sparse))
        call.features = as_record(FeatureCall, calls + 8 * FeatureCall.SIZE * first)
        call.row_count = check_cross(frame, cross, of_cross)
        if not op.failed(frame):
            _open_cross(frame, cross, call, of_cross)
        if op.failed(frame):
            return total
        job.firsts[index] = blocks
        blocks += (call.row_count + BLOCK_ROWS - 1) // BLOCK_ROWS
        total += call.row_count * cross.feature_count
        first += cross.feature_count
        for k in range(cross.feature_count):
            sparse += int64(cross.features[k].form == SPARSE)
    job.firsts[job.cross_count] = blocks
    return total


@jit
def _count(frame: op.Frame, job: CrossJob, value_count: int) -> None:
    """Counts the ids of crosses whose rows differ."""
    size = int64(0)
    for index in range(job.cross_count):
        if job.calls[index].width < 0:
            blocks = job.firsts[index + 1] - job.firsts[index]
            size += blocks * (BLOCK_CURSORS + job.crosses[index].feature_count)
    if size == 0:
        return
    memory = op.scratch_bytes(frame, 8 * size)
    if op.failed(frame):
        return
    for index in range(job.cross_count):
        if job.calls[index].width < 0:
            blocks = job.firsts[index + 1] - job.firsts[index]
            job.calls[index].blocks = as_words(memory)
            memory += 8 * blocks * (BLOCK_CURSORS + job.crosses[index].feature_count)
    _do_all(frame, job, job.cross_count, value_count)


@jit
def _allocate(frame: op.Frame, job: CrossJob, index: int) -> None:
    """New tensors for the results of a cross."""
    cross, call, dims = job.crosses[index], job.calls[index], stack_words(int64(2))
    is_matrix = cross.form == MATRIX
    dims[0] = call.row_count if is_matrix else call.total
    dims[1] = call.max_count
    rank = int64(2 if is_matrix else 1)
    call.ids = as_words(op.shaped_output(frame, index, dims, rank, int64(8)))
    dims[1] = 2
    if cross.form == ROW_SPLITS:
        dims[0] = call.row_count + 1
    elif is_matrix:
        dims[0] = 0
    rank, number = int64(2 if cross.form == INDICES else 1), job.cross_count + index
    call.entry_rows = as_words(op.shaped_output(frame, number, dims, rank, int64(8)))
    dims[0] = 2
    number += job.cross_count
    shape = as_words(op.shaped_output(frame, number, dims, int64(1), int64(8)))
    if op.failed(frame):
        return
    shape[0] = call.row_count
    shape[1] = call.max_count
    if cross.form == ROW_SPLITS:
        call.entry_rows[call.row_count] = call.total


@jit
def _cross(frame: op.Frame, job: CrossJob, tensors: Words) -> None:
    """Crosses, when the inputs are there."""
    value_count = _open_crosses(frame, job, tensors)
    if not op.failed(frame):
        _count(frame, job, value_count)
    total = int64(0)
    for index in range(job.cross_count):
        if op.failed(frame):
            return
        _allocate(frame, job, int64(index))
        total += job.calls[index].total
    if op.failed(frame):
        return
    op.count_rows(frame, total)
    job.is_filling = 1
    _do_all(frame, job, job.firsts[job.cross_count], max(value_count, total))


@jit
def _open(frame: op.Frame, job: CrossJob, tensors: Words, count: int) -> None:
    """Takes the inputs, and crosses."""
    for k in range(count):
        take(frame, tensors, int64(k), int64(k))
        if op.failed(frame):
            return
    _cross(frame, job, tensors)


def cross_features(frame: op.Frame) -> None:
    """The kernel body."""
    state, job = as_record(CrossState, frame.state), stack_record(CrossJob)
    clear(job)
    count, crosses = state.feature_count + 2 * state.sparse_count, state.cross_count
    size = CrossCall.SIZE * crosses + FeatureCall.SIZE * state.feature_count
    memory = as_words(op.scratch_bytes(frame, 8 * (count + size + crosses + 1)))
    if op.failed(frame):
        return
    for k in range(count + size):
        memory[k] = 0
    job.crosses = state.crosses
    job.cross_count = crosses
    job.calls = as_record(CrossCall, memory + 8 * count)
    job.firsts = as_words(memory + 8 * (count + size))
    _open(frame, job, memory, count)
    release(memory, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return cross_features, work, CrossJob
