"""KeyedEmbeddingGather on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.ops.tables.cpu.calls import (
    PARALLEL_KEYS,
    TASK_KEYS,
    TASKS_PER_THREAD,
    add_listed,
    begin_training,
    check_room,
    count_missing,
    list_missing,
    set_variables,
)
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.ops.tables.cpu.layout import AccessState, GatherJob, SharedVariable
from fusion.ops.tables.cpu.sharing import share, share_all, unshare, unshare_all
from fusion.ops.tables.cpu_kernels.gather import gather
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.native.pointers import (
    as_record,
    as_words,
    clear,
    stack_record,
    stack_records,
    stack_words,
)
from fusion.runtime.tensorflow.c_api import tf_num_dims, tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Inputs.
_TABLE, _INDEX, _INITIAL, _KEYS, _COUNTS, _STEP = range(6)
_VARIABLES, _OF_TABLES, _TENSORS = 3, 2, 3


@jit
def _take_keys(frame: op.Frame, job: GatherJob, tensors: Words) -> None:
    """Takes keys, counts and the step."""
    call = job.call
    args, addition = call.gather, call.addition
    keys = take(frame, tensors, int64(_KEYS), int64(_KEYS - _VARIABLES))
    if op.failed(frame):
        return
    if tf_num_dims(keys) != 1:
        text = "keys must have rank 1, but have rank %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, int64(tf_num_dims(keys)))
        return
    count = element_count(keys)
    op.count_rows(frame, count)
    call.key_count = count
    args.keys = tf_tensor_data(keys)
    if as_record(AccessState, frame.state).has_int32_keys != 0:
        wide = as_words(op.scratch_bytes(frame, 8 * count))
        if op.failed(frame):
            return
        for k in range(count):
            wide[k] = int64(load_as(tf_tensor_data(keys), k, np.int32))
        args.keys = wide
    counts = take(frame, tensors, int64(_COUNTS), int64(_COUNTS - _VARIABLES))
    if op.failed(frame):
        return
    if element_count(counts) != 0 and element_count(counts) != count:
        text = "counts has %lld elements, but there are %lld keys"
        op.fail(frame, op.INVALID_ARGUMENT, text, element_count(counts), count)
        return
    if element_count(counts) != 0:
        addition.counts = tf_tensor_data(counts)
    step = take(frame, tensors, int64(_STEP), int64(_STEP - _VARIABLES))
    if op.failed(frame):
        return
    if element_count(step) != 1:
        text = "step must have one element, but has %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, element_count(step))
        return
    addition.step = load(tf_tensor_data(step), 0)


@jit
def _take_variables(frame: op.Frame, job: GatherJob, shared: SharedVariable) -> bool:
    """Shares the variables; whether they are there and belong together."""
    state, numbers = as_record(AccessState, frame.state), stack_words(int64(1))
    of_tables = state.table_access
    of_indices = state.index_access
    store_as(numbers, int64(0), np.int32(_TABLE), np.int32)
    store_as(numbers, int64(1), np.int32(_INITIAL), np.int32)
    initial, index = shared[1], shared[2]
    if not share_all(frame, of_tables, numbers, int64(_OF_TABLES), shared):
        return False
    if not share(frame, of_indices, int64(_INDEX), index):
        return False
    dim, item = state.dim, state.item_bytes
    set_variables(frame, job.call, shared, index, initial, dim, item, int64(-1))
    return not op.failed(frame)


@jit
def work(job: GatherJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    call, size = job.call, job.task_keys
    count = call.key_count
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        gather(call.gather, task * size, min((task + 1) * size, count))


@jit
def _gather_all(frame: op.Frame, job: GatherJob) -> None:
    """Gathers, by all threads that there are where that pays."""
    state = as_record(AccessState, frame.state)
    count = job.call.key_count
    pool = state.pool
    helpers = as_record(Pool, pool if count >= PARALLEL_KEYS else int64(0))
    size = count
    if helpers != 0:
        tasks = TASKS_PER_THREAD * (pool.thread_count + 1)
        size = max((count + tasks - 1) // tasks, int64(TASK_KEYS))
    size = max(size, int64(1))
    job.task_keys = size
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = (count + size - 1) // size
    slot = jobs.open_job(helpers, job)
    work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)


@jit
def _gather_shared(frame: op.Frame, job: GatherJob) -> None:
    """What is done while the variables are shared."""
    state = as_record(AccessState, frame.state)
    call = job.call
    args, count = call.gather, call.key_count
    dim, item = state.dim, state.item_bytes
    is_training = state.is_training != 0
    if is_training:
        begin_training(call)
    args.out = op.new_output(frame, int64(0), int64(2), count, dim, item)
    args.rows = as_words(op.new_output(frame, int64(1), int64(1), count, int64(1), int64(8)))
    if op.failed(frame):
        return
    _gather_all(frame, job)
    if is_training and count_missing(call) > 0:
        missing = as_words(op.scratch_bytes(frame, 8 * call.missing_count))
        if not op.failed(frame):
            list_missing(call, missing)
            add_listed(call)
            check_room(frame, call, int64(-1))


def gather_keys(frame: op.Frame) -> None:
    """The kernel body."""
    job, tensors = as_record(GatherJob, stack_record(GatherJob)), stack_words(int64(_TENSORS))
    shared = stack_records(SharedVariable, _VARIABLES)
    clear(job)
    for k in range(_TENSORS):
        tensors[k] = 0
    for k in range(_VARIABLES * SharedVariable.SIZE):
        store(shared, k, 0)
    _take_keys(frame, job, tensors)
    if not op.failed(frame):
        if _take_variables(frame, job, shared):
            _gather_shared(frame, job)
        unshare(shared[_OF_TABLES])
        unshare_all(shared, int64(_OF_TABLES))
    release(tensors, int64(_TENSORS))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return gather_keys, work, GatherJob
