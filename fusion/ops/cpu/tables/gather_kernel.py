"""KeyedEmbeddingGather on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.keys.gather import copy_missing, gather
from fusion.cpu_ops.keys.index import add_missing
from fusion.cpu_ops.keys.layout import Addition, KeyedGather, KeyIndex
from fusion.ops.cpu.tables.inputs import element_count, release, take
from fusion.ops.cpu.tables.layout import AccessState, GatherJob, SharedVariable
from fusion.ops.cpu.tables.sharing import check_index, check_rows, share, unshare
from fusion.runtime.native.atomic import atomic_add
from fusion.runtime.native.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, fail
from fusion.runtime.native.frame import failed, kernel_state, new_output, scratch_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_num_dims, tf_tensor_data
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool

#: Inputs.
_TABLE, _INDEX, _INITIAL, _KEYS, _COUNTS, _STEP = range(6)
_VARIABLES, _TENSORS = 3, 3

#: Keys that are worth another thread, and those of a task at least.
_PARALLEL_KEYS, _TASK_KEYS = 4096, 512

#: Tasks for each thread.
_TASKS_PER_THREAD = 4


@jit
def _take_keys(frame: int, job: int, tensors: int) -> None:
    """Takes keys, counts and the step."""
    args, addition = job + 8 * GatherJob.gather, job + 8 * GatherJob.addition
    keys = take(frame, tensors, int64(_KEYS), int64(_KEYS - _VARIABLES))
    if failed(frame):
        return
    if tf_num_dims(keys) != 1:
        text = "keys must have rank 1, but have rank %lld"
        fail(frame, INVALID_ARGUMENT, text, int64(tf_num_dims(keys)))
        return
    count = element_count(keys)
    store(job, GatherJob.key_count, count)
    store(args, KeyedGather.keys, tf_tensor_data(keys))
    if load(kernel_state(frame), AccessState.has_int32_keys) != 0:
        wide = scratch_bytes(frame, 8 * count)
        if failed(frame):
            return
        for k in range(count):
            store(wide, k, int64(load_as(tf_tensor_data(keys), k, np.int32)))
        store(args, KeyedGather.keys, wide)
    counts = take(frame, tensors, int64(_COUNTS), int64(_COUNTS - _VARIABLES))
    if failed(frame):
        return
    if element_count(counts) != 0 and element_count(counts) != count:
        text = "counts has %lld elements, but there are %lld keys"
        fail(frame, INVALID_ARGUMENT, text, element_count(counts), count)
        return
    if element_count(counts) != 0:
        store(addition, Addition.counts, tf_tensor_data(counts))
    step = take(frame, tensors, int64(_STEP), int64(_STEP - _VARIABLES))
    if failed(frame):
        return
    if element_count(step) != 1:
        text = "step must have one element, but has %lld"
        fail(frame, INVALID_ARGUMENT, text, element_count(step))
        return
    store(addition, Addition.step, load(tf_tensor_data(step), 0))


@jit
def _take_variables(frame: int, job: int, shared: int) -> None:
    """Shares the variables, and checks that they belong together."""
    state = kernel_state(frame)
    of_tables = state + 8 * AccessState.table_access
    of_indices = state + 8 * AccessState.index_access
    for index in range(_VARIABLES):
        access = of_indices if index == _INDEX else of_tables
        if not share(frame, access, int64(index), shared + 8 * SharedVariable.SIZE * index):
            return
    args, addition = job + 8 * GatherJob.gather, job + 8 * GatherJob.addition
    index = shared + 8 * SharedVariable.SIZE * _INDEX
    check_index(frame, index)
    if failed(frame):
        return
    dim, item = load(state, AccessState.dim), load(state, AccessState.item_bytes)
    check_rows(frame, shared, load(index, SharedVariable.data), dim * item)
    if failed(frame):
        return
    store(args, KeyedGather.index, load(index, SharedVariable.data))
    store(args, KeyedGather.table, load(shared, SharedVariable.data))
    store(args, KeyedGather.row_bytes, dim * item)
    initial = shared + 8 * SharedVariable.SIZE * _INITIAL
    size = load(initial, SharedVariable.byte_count)
    if size < 2 * dim * item or size % (dim * item) != 0:
        text = "initial has %lld bytes, which are no two or more rows of %lld"
        fail(frame, INVALID_ARGUMENT, text, size, dim * item)
        return
    first = load(initial, SharedVariable.data)
    store(args, KeyedGather.default, first)
    store(addition, Addition.table, load(shared, SharedVariable.data))
    store(addition, Addition.samples, first + dim * item)
    store(addition, Addition.sample_count, size // (dim * item) - 1)
    store(addition, Addition.dim, dim)
    store(addition, Addition.item_bytes, item)


@jit
def _begin_training(frame: int, job: int) -> None:
    """Has keys noted as seen."""
    args, addition = job + 8 * GatherJob.gather, job + 8 * GatherJob.addition
    store(args, KeyedGather.addition, addition)
    admission = load(load(args, KeyedGather.index), KeyIndex.admission)
    store(addition, Addition.admission, admission)
    clock = atomic_add(load(args, KeyedGather.index), KeyIndex.clock, int64(1)) + 1
    if load(addition, Addition.step) < 0:
        store(addition, Addition.step, clock)
    store(addition, Addition.step, min(load(addition, Addition.step), int64(2**31 - 1)))


@jit
def _add_missing(frame: int, job: int) -> None:
    """Adds keys without a row, and gathers theirs."""
    args, addition = job + 8 * GatherJob.gather, job + 8 * GatherJob.addition
    rows, count = load(args, KeyedGather.rows), load(job, GatherJob.key_count)
    missing_count = int64(0)
    for k in range(count):
        missing_count += int64(load(rows, k) < 0)
    if missing_count == 0:
        return
    missing = scratch_bytes(frame, 8 * missing_count)
    if failed(frame):
        return
    number = int64(0)
    for k in range(count):
        if load(rows, k) < 0:
            store(missing, number, int64(k))
            number += 1
    index = load(args, KeyedGather.index)
    add_missing(index, load(args, KeyedGather.keys), count, rows, addition)
    copy_missing(args, missing_count, missing)
    if load(addition, Addition.refused_count) > 0 and load(index, KeyIndex.waits) == 0:
        text = "there is no room for %lld keys more than the capacity of %lld rows"
        refused = load(addition, Addition.refused_count)
        fail(frame, RESOURCE_EXHAUSTED, text, refused, load(index, KeyIndex.capacity))


@jit
def work(job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    size, count = load(job, GatherJob.task_keys), load(job, GatherJob.key_count)
    while True:
        task = jobs.next_task(job, helps)
        if task < 0:
            return
        gather(job + 8 * GatherJob.gather, task * size, min((task + 1) * size, count))


@jit
def _gather_all(frame: int, job: int) -> None:
    """Gathers, by all threads that there are where that pays."""
    state, count = kernel_state(frame), load(job, GatherJob.key_count)
    pool = load(state, AccessState.pool)
    helpers = pool if count >= _PARALLEL_KEYS else int64(0)
    size = count
    if helpers != 0:
        tasks = _TASKS_PER_THREAD * (load(pool, Pool.thread_count) + 1)
        size = max((count + tasks - 1) // tasks, int64(_TASK_KEYS))
    size = max(size, int64(1))
    store(job, GatherJob.task_keys, size)
    store(job, Job.kernel, load(state, State.kernel))
    store(job, Job.next_task, 0)
    store(job, Job.task_count, (count + size - 1) // size)
    slot = jobs.open_job(helpers, job)
    work(job, int64(0))
    jobs.close_job(helpers, slot)


@jit
def _gather_shared(frame: int, job: int) -> None:
    """What is done while the variables are shared."""
    state, count = kernel_state(frame), load(job, GatherJob.key_count)
    args = job + 8 * GatherJob.gather
    dim, item = load(state, AccessState.dim), load(state, AccessState.item_bytes)
    if load(state, AccessState.is_training) != 0:
        _begin_training(frame, job)
    store(args, KeyedGather.out, new_output(frame, int64(0), int64(2), count, dim, item))
    store(args, KeyedGather.rows, new_output(frame, int64(1), int64(1), count, int64(1), int64(8)))
    if failed(frame):
        return
    _gather_all(frame, job)
    if load(state, AccessState.is_training) != 0:
        _add_missing(frame, job)


def gather_keys(frame: int) -> None:
    """The kernel body."""
    job, tensors = stack_words(GatherJob.SIZE), stack_words(int64(_TENSORS))
    shared = stack_words(_VARIABLES * SharedVariable.SIZE)
    for k in range(GatherJob.SIZE):
        store(job, k, 0)
    for k in range(_TENSORS):
        store(tensors, k, 0)
    for k in range(_VARIABLES * SharedVariable.SIZE):
        store(shared, k, 0)
    _take_keys(frame, job, tensors)
    if not failed(frame):
        _take_variables(frame, job, shared)
        last = shared + 8 * SharedVariable.SIZE * (_VARIABLES - 1)
        if load(last, SharedVariable.data) != 0 and not failed(frame):
            _gather_shared(frame, job)
        for k in range(_VARIABLES):
            unshare(shared + 8 * SharedVariable.SIZE * (_VARIABLES - 1 - k))
    release(tensors, int64(_TENSORS))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return gather_keys, work
