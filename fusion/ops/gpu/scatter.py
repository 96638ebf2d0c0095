"""GroupedEmbeddingPostLookUpGrad on a GPU: all columns are added up in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops import column_words as words
from fusion.gpu_ops.host.device_methods import copy_in, on_host, trouble_of
from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout import gradient as gradient_layout
from fusion.gpu_ops.steps import gradient
from fusion.gpu_ops.steps.sums import numbers
from fusion.ops.columns import gradient_kernel as job_of
from fusion.ops.columns.inputs import (
    ENTRIES,
    ENTRY_COUNT,
    ENTRY_WEIGHTS,
    SHARED_WORDS,
    SPLIT_COUNT,
    SPLITS,
    body,
    column_at,
    release_shared,
    take_shared,
)
from fusion.ops.columns.state import COUNT, ITEM, KIND, LOOKUPS, WEIGHTED_COUNT
from fusion.runtime.native.frame import RESOURCE_EXHAUSTED, context, fail, failed, kernel_state
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, load, pointer, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_delete_tensor
from fusion.runtime.tensorflow.spec import OpSpec

_words_of_gradient = on_host(gradient_layout.words_of_gradient)
_open_gradient = on_host(gradient_layout.open_gradient)
_put_column, _lay_out = (
    on_host(gradient_layout.put_grad_column),
    on_host(gradient_layout.lay_out_gradient),
)
_order_entries, _scatter = on_host(gradient.order_entries), on_host(gradient.scatter)
_numbers, _grad_entries = on_host(numbers), gradient.GradEntries


@jit
def _put_columns(state: int, job: int, call: Array, base: int) -> int:
    """Writes what the columns are; gives the distinct ids of all."""
    total = int64(0)
    for index in range(body(state, COUNT)):
        own = column_at(state, index)
        given = load(job, job_of.COLUMNS) + 8 * job_of.COLUMN_WORDS * index
        keys = load(given, job_of.KEYS)
        _put_column(
            call, base, index, keys, load(given, job_of.DIM), load(given, job_of.FIRST),
            load(own, words.COMBINER), load(own, words.WEIGHTED), load(given, job_of.OUT),
        )  # fmt: skip
        total += keys
    return total


@jit
def _scale_bytes(state: int, batch: int) -> int:
    """The bytes of what gradients of bags are scaled by."""
    count, item = body(state, COUNT), int64(4)
    if body(state, KIND) == words.FLOAT64:
        item = int64(8)
    for index in range(count):
        if load(column_at(state, index), words.COMBINER) != SUM:
            return item * count * batch
    return int64(0)


@jit
def _add_up(frame: int, device: Any, job: int, shared: int, width: int, call: Array) -> None:
    state, size = kernel_state(frame), int64(call.shape[0])
    base, batch = device.room(8 * size), load(shared, SPLIT_COUNT) - 1
    _open_gradient(call, base, body(state, COUNT))
    unique, number = _put_columns(state, job, call, base), load(shared, ENTRY_COUNT)
    keys, starts = _numbers(device, number, unique), device.room(8 * (unique + 1))
    call[call_of.ENTRY_COUNT] = number
    call[call_of.PLACES], call[call_of.SPLITS] = load(shared, ENTRIES), load(shared, SPLITS)
    call[call_of.ENTRY_WEIGHTS] = load(shared, ENTRY_WEIGHTS)
    call[call_of.TOP], call[call_of.GRAD_TROUBLE] = load(job, job_of.TOP), trouble_of(device)
    call[call_of.KEYS], call[call_of.OWNERS] = keys, device.room(4 * number)
    call[call_of.STARTS], call[call_of.GRAD_KIND] = starts, body(state, KIND)
    call[call_of.SCALES] = device.room(_scale_bytes(state, batch))
    blocks = _lay_out(call, base, batch, body(state, ITEM), width)
    copy_in(device, base, call.ctypes.data, 8 * size)
    entries = _grad_entries(number, unique, keys, starts)
    order = _order_entries(device, base, entries, batch * body(state, COUNT))
    _scatter(device, body(state, KIND), base, order, blocks)


@jit
def _compute(frame: int, device: Any, job: int, shared: int, slot: int) -> None:
    state = kernel_state(frame)
    count = body(state, COUNT)
    width = job_of.take_top(frame, job, slot, load(shared, SPLIT_COUNT) - 1)
    if failed(frame):
        return
    size = _words_of_gradient(count)
    memory = c_malloc(8 * (size + job_of.COLUMN_WORDS * count))
    if memory == 0:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for %lld words", size)
        return
    store(job, job_of.COLUMNS, memory + 8 * size)
    job_of.take_columns(frame, job, context(frame), width)
    if not failed(frame):
        call = carray(pointer(memory, np.int64), (size,))
        _add_up(frame, device, job, shared, width, call)
    c_free(memory)


def made(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""

    def scatter(frame: int, device: Any) -> None:
        state, shared, slot = kernel_state(frame), stack_words(SHARED_WORDS), stack_words(1)
        job, count = stack_words(job_of.CALL_WORDS), body(state, COUNT)
        store(slot, 0, 0)
        store(job, job_of.STATE, state)
        weighted = body(state, WEIGHTED_COUNT) != 0
        take_shared(frame, context(frame), count + 1, shared, body(state, LOOKUPS), weighted)
        if not failed(frame):
            _compute(frame, device, job, shared, slot)
        release_shared(shared)
        if load(slot, 0) != 0:
            tf_delete_tensor(load(slot, 0))

    return scatter
