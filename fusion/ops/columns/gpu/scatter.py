"""GroupedEmbeddingPostLookUpGrad on a GPU: all columns are added up in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.language.arithmetic import SUM
from fusion.gpu_ops.layout import gradient as gradient_layout
from fusion.gpu_ops.layout.call import GradientCall
from fusion.gpu_ops.layout.gradient import ColumnGradient
from fusion.gpu_ops.steps.sums import numbers
from fusion.ops.columns.cpu import gradient_kernel as job_of
from fusion.ops.columns.cpu.gradient_kernel import GradColumn, GradJob
from fusion.ops.columns.cpu.inputs import SharedInputs, release_shared, take_shared
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.gpu_steps import gradient
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, pointer
from fusion.runtime.native.pointers import as_record, stack_record
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
def _put_columns(state: ColumnsState, job: GradJob, call: Array, base: int) -> int:
    """Writes what the columns are; gives the distinct ids of all."""
    total = int64(0)
    for index in range(state.column_count):
        own = state.columns[index]
        record = job.columns[index]
        column = ColumnGradient(
            record.unique_count, record.dim, record.out, record.top_grad, record.top_grad_bytes,
            own.combiner, own.use_sparse_weights,
        )  # fmt: skip
        _put_column(call, base, index, column)
        total += column.unique
    return total


@jit
def _scale_bytes(state: ColumnsState, batch: int) -> int:
    """The bytes of what gradients of bags are scaled by."""
    count, item = state.column_count, int64(4)
    if state.dtype_code == FLOAT64:
        item = int64(8)
    for index in range(count):
        if state.columns[index].combiner != SUM:
            return item * count * batch
    return int64(0)


@jit
def _add_up(frame: op.Frame, device: Any, job: GradJob, shared: SharedInputs, call: Array) -> None:
    state, size = as_record(ColumnsState, frame.state), int64(call.shape[0])
    base, batch = device.reserve(8 * size), shared.split_count - 1
    _open_gradient(call, base, state.column_count)
    unique, number = _put_columns(state, job, call, base), shared.entry_count
    keys, starts = _numbers(device, number, unique), device.reserve(8 * (unique + 1))
    call[GradientCall.entry_count] = number
    op.count_rows(frame, number)
    unique_idxs = shared.unique_idxs
    row_splits = shared.row_splits
    call[GradientCall.unique_idxs], call[GradientCall.row_splits] = unique_idxs, row_splits
    call[GradientCall.entry_weights] = shared.entry_weights
    call[GradientCall.errors] = error_record(device)
    call[GradientCall.keys], call[GradientCall.owners] = keys, device.reserve(4 * number)
    dtype_code = state.dtype_code
    call[GradientCall.starts], call[GradientCall.dtype_code] = starts, dtype_code
    call[GradientCall.scales] = device.reserve(_scale_bytes(state, batch))
    blocks = _lay_out(call, base, batch, state.item_bytes)
    copy_in(device, base, call.ctypes.data, 8 * size)
    entries = _grad_entries(number, unique, keys, starts)
    order = _order_entries(device, base, entries, batch * state.column_count)
    _scatter(device, state.dtype_code, base, order, blocks)


@jit
def _compute(frame: op.Frame, device: Any, job: GradJob, shared: SharedInputs) -> None:
    state = as_record(ColumnsState, frame.state)
    count = state.column_count
    size = _words_of_gradient(count)
    memory = c_malloc(8 * (size + GradColumn.SIZE * count))
    if memory == 0:
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for %lld words", size)
        return
    job.columns = memory + 8 * size
    job_of.take_columns(frame, job, shared.split_count - 1)
    if not op.failed(frame):
        call = carray(pointer(memory, np.int64), (size,))
        _add_up(frame, device, job, shared, call)
    c_free(memory)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""

    def scatter(frame: op.Frame, device: Any) -> None:
        state = as_record(ColumnsState, frame.state)
        shared = stack_record(SharedInputs)
        job, count = stack_record(GradJob), state.column_count
        job.state = state
        weighted = state.weighted_count != 0
        lookups = state.lookup_count
        take_shared(frame, frame.context, count + 1, shared, lookups, weighted)
        if not op.failed(frame):
            _compute(frame, device, job, shared)
        release_shared(shared)

    return scatter
