"""GroupedEmbeddingPostLookUpGrad on a GPU: all columns are added up in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.layout import gradient as gradient_layout
from fusion.gpu_ops.layout.call import GradientCall
from fusion.gpu_ops.steps import gradient
from fusion.gpu_ops.steps.sums import numbers
from fusion.ops.cpu.columns import gradient_kernel as job_of
from fusion.ops.cpu.columns.gradient_kernel import GradColumn, GradJob
from fusion.ops.cpu.columns.inputs import SharedInputs, column_at, release_shared, take_shared
from fusion.ops.cpu.columns.layout import ColumnsState
from fusion.runtime.native.errors import RESOURCE_EXHAUSTED, fail
from fusion.runtime.native.frame import context, count_rows, failed, kernel_state
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, load, pointer, stack_words, store
from fusion.runtime.tensorflow.dtypes import FLOAT64
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
    for index in range(load(state, ColumnsState.column_count)):
        own = column_at(state, index)
        record = load(job, GradJob.columns) + 8 * GradColumn.SIZE * index
        keys = load(record, GradColumn.unique_count)
        _put_column(
            call, base, index, keys, load(record, GradColumn.dim),
            load(record, GradColumn.top_grad), load(record, GradColumn.top_grad_bytes),
            load(own, ColumnAttrs.combiner), load(own, ColumnAttrs.use_sparse_weights),
            load(record, GradColumn.out),
        )  # fmt: skip
        total += keys
    return total


@jit
def _scale_bytes(state: int, batch: int) -> int:
    """The bytes of what gradients of bags are scaled by."""
    count, item = load(state, ColumnsState.column_count), int64(4)
    if load(state, ColumnsState.dtype_code) == FLOAT64:
        item = int64(8)
    for index in range(count):
        if load(column_at(state, index), ColumnAttrs.combiner) != SUM:
            return item * count * batch
    return int64(0)


@jit
def _add_up(frame: int, device: Any, job: int, shared: int, call: Array) -> None:
    state, size = kernel_state(frame), int64(call.shape[0])
    base, batch = device.reserve(8 * size), load(shared, SharedInputs.split_count) - 1
    _open_gradient(call, base, load(state, ColumnsState.column_count))
    unique, number = _put_columns(state, job, call, base), load(shared, SharedInputs.entry_count)
    keys, starts = _numbers(device, number, unique), device.reserve(8 * (unique + 1))
    call[GradientCall.entry_count] = number
    count_rows(frame, number)
    unique_idxs = load(shared, SharedInputs.unique_idxs)
    row_splits = load(shared, SharedInputs.row_splits)
    call[GradientCall.unique_idxs], call[GradientCall.row_splits] = unique_idxs, row_splits
    call[GradientCall.entry_weights] = load(shared, SharedInputs.entry_weights)
    call[GradientCall.errors] = error_record(device)
    call[GradientCall.keys], call[GradientCall.owners] = keys, device.reserve(4 * number)
    dtype_code = load(state, ColumnsState.dtype_code)
    call[GradientCall.starts], call[GradientCall.dtype_code] = starts, dtype_code
    call[GradientCall.scales] = device.reserve(_scale_bytes(state, batch))
    blocks = _lay_out(call, base, batch, load(state, ColumnsState.item_bytes))
    copy_in(device, base, call.ctypes.data, 8 * size)
    entries = _grad_entries(number, unique, keys, starts)
    order = _order_entries(device, base, entries, batch * load(state, ColumnsState.column_count))
    _scatter(device, load(state, ColumnsState.dtype_code), base, order, blocks)


@jit
def _compute(frame: int, device: Any, job: int, shared: int) -> None:
    state = kernel_state(frame)
    count = load(state, ColumnsState.column_count)
    size = _words_of_gradient(count)
    memory = c_malloc(8 * (size + GradColumn.SIZE * count))
    if memory == 0:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for %lld words", size)
        return
    store(job, GradJob.columns, memory + 8 * size)
    job_of.take_columns(frame, job, load(shared, SharedInputs.split_count) - 1)
    if not failed(frame):
        call = carray(pointer(memory, np.int64), (size,))
        _add_up(frame, device, job, shared, call)
    c_free(memory)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""

    def scatter(frame: int, device: Any) -> None:
        state, shared = kernel_state(frame), stack_words(SharedInputs.SIZE)
        job, count = stack_words(GradJob.SIZE), load(state, ColumnsState.column_count)
        store(job, GradJob.state, state)
        weighted = load(state, ColumnsState.weighted_count) != 0
        lookups = load(state, ColumnsState.lookup_count)
        take_shared(frame, context(frame), count + 1, shared, lookups, weighted)
        if not failed(frame):
            _compute(frame, device, job, shared)
        release_shared(shared)

    return scatter
