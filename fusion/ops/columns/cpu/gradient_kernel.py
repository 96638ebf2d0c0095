"""The kernel of the gradient of the op behind the gathers of many columns.

A task is a column, or a range of its distinct ids if there are few columns: each task reads all of
the column's entries and adds up the gradients of the ids that are its own (`scatter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.elements import weight_at
from fusion.cpu_ops.scatter import ScatterArgs
from fusion.ops.columns.cpu.inputs import SharedInputs, input_tensor, release_shared, take_shared
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.cpu.tasks import call_by_tiles
from fusion.runtime.layout import Address, Int64, Layout
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_num_dims,
    tf_num_inputs,
    tf_tensor_data,
)
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool


class GradJob(Job):
    """What the tasks of a call share."""

    state: ColumnsState  # of the op
    shared: SharedInputs
    range_count: Int64  # ranges of ids that a column is done in
    columns: GradColumn  # [columns]
    weights: Address  # in the compute dtype


class GradColumn(Layout):
    """A column of a call."""

    unique_count: Int64  # distinct ids
    dim: Int64
    top_grad: Address  # the gradient of its first bag
    top_grad_bytes: Int64  # from the gradient of a bag to that of the next
    out: Address  # the gradients of its rows
    sums: Address  # of the same, in the compute dtype
    error: Int64  # a row split that is wrong, -1 - k for entry k, or `_NO_ERROR`


#: A column without errors.
_NO_ERROR = -(2**62)

#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
_COLUMN_NS, _ENTRY_NS = 300, 8


@jit
def _take_top(frame: op.Frame, number: int, batch: int) -> tuple[int, int]:
    """The address of the gradient of a matrix of columns, and the elements of a row of it."""
    slot, index = stack_words(1), int64(0)
    if number > 0:  # they are the last inputs
        index = int64(tf_num_inputs(frame.context))
        index += number - as_record(ColumnsState, frame.state).output_count
    top = input_tensor(frame.context, index, slot, frame.status)
    if top == 0:
        op.check(frame)
        return int64(0), int64(0)
    address, rank = tf_tensor_data(top), int64(tf_num_dims(top))
    rows = tf_dim(top, np.int32(0)) if rank == 2 else int64(0)
    width = tf_dim(top, np.int32(1)) if rank == 2 else int64(0)
    tf_delete_tensor(top)  # the context holds the input
    if rank != 2:
        op.fail(frame, op.INVALID_ARGUMENT, "top_grad[%lld] has rank %lld, not 2", number, rank)
    elif rows < batch:
        text = "top_grad[%lld] has %lld rows, but row_splits say %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, number, rows, batch)
    return address, width


@jit
def take_columns(frame: op.Frame, job: GradJob, batch: int) -> int:
    """Takes the gradients of columns, and makes the outputs; returns the number of their elements.

    Args:
      batch: the rows that gradients have to have.
    """
    state, slot, total, end = job.state, stack_words(1), int64(0), int64(0)
    ctx, item = frame.context, state.item_bytes
    number, top, width = int64(-1), int64(0), int64(0)
    for index in range(state.column_count):
        if state.columns[index].output != number:
            number, end = number + 1, int64(0)
            top, width = _take_top(frame, number, batch)
            if op.failed(frame):
                return total
        rows = input_tensor(ctx, index + 1, slot, frame.status)
        if rows == 0:
            op.check(frame)
            return total
        rank = int64(tf_num_dims(rows))
        keys = tf_dim(rows, np.int32(0)) if rank == 2 else int64(0)
        dim = tf_dim(rows, np.int32(1)) if rank == 2 else int64(0)
        tf_delete_tensor(rows)
        first = state.columns[index].top_grad_offset
        first = end if first < 0 else first
        known = state.columns[index].dim
        if rank != 2:
            text = "emb_rows[%lld] has rank %lld, not 2"
            op.fail(frame, op.INVALID_ARGUMENT, text, int64(index), rank)
        elif first > width - dim:
            text = (
                "column %lld has %lld elements from %lld on, but a row of top_grad[%lld] only %lld"
            )
            op.fail(frame, op.INVALID_ARGUMENT, text, int64(index), dim, first, number, width)
        elif known >= 0 and known != dim:
            text = "column %lld has rows of %lld elements, but dim is %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, int64(index), dim, known)
        end = first + dim
        # The rows themselves are not read.
        out = op.reused_output(frame, int64(index), int64(index + 1), keys, dim)
        if op.failed(frame):
            return total
        column = job.columns[index]
        column.unique_count = keys
        column.dim = dim
        column.top_grad = top + first * item
        column.top_grad_bytes = width * item
        column.out = out
        total += keys * dim
    return total


@jit
def _first_wrong(job: GradJob, index: int) -> int:
    """What is wrong with a column's entries, see `GradColumn.error`."""
    shared = job.shared
    count, total = shared.split_count, shared.entry_count
    starts = shared.row_splits + 4 * index * count
    row_indices = shared.unique_idxs
    keys = job.columns[index].unique_count
    last = int64(0)
    for row in range(count):
        split = int64(load_as(starts, row, np.int32))
        if split < last or split > total:
            return int64(row)
        last = split
    first, inside = int64(load_as(starts, int64(0), np.int32)), int64(-1)
    for k in range(first, last):
        number = int64(load_as(row_indices, k, np.int32))
        # The first is negative unless the index is, the second unless it is too large.
        inside &= ~number & (number - keys)
    if inside < 0:
        return int64(_NO_ERROR)
    while 0 <= load_as(row_indices, first, np.int32) < keys:
        first += 1
    return -1 - first


@jit
def _report_error(frame: int, job: GradJob, index: int, error: int) -> None:
    shared = job.shared
    if error >= 0:
        starts = shared.row_splits + 4 * index * shared.split_count
        split = int64(load_as(starts, error, np.int32))
        text = (
            "column %lld: row split %lld is %lld, less than one before it or more than %lld entries"
        )
        op.fail(frame, op.INVALID_ARGUMENT, text, index, error, split, shared.entry_count)
        return
    entry = -1 - error
    number = int64(load_as(shared.unique_idxs, entry, np.int32))
    keys = job.columns[index].unique_count
    text = "column %lld: unique_idxs[%lld] = %lld is not in [0, %lld), the rows"
    op.fail(frame, op.INVALID_ARGUMENT, text, index, entry, number, keys)


@jit
def scatter_columns(job: GradJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    state = job.state
    shared = job.shared
    range_count = job.range_count
    splits = shared.split_count
    args = stack_record(ScatterArgs)
    task = jobs.next_task(job, helps)
    while task >= 0:
        index, range_index = task // range_count, task % range_count
        column = state.columns[index]
        record = job.columns[index]
        error = _first_wrong(job, index)
        if range_index == 0:
            record.error = error
        if error == _NO_ERROR:
            keys, dim = record.unique_count, record.dim
            sum_item = max(state.item_bytes, int64(4))
            args.bag_count = splits - 1
            args.top_grad = record.top_grad
            args.top_grad_bytes = record.top_grad_bytes
            args.bag_starts = shared.row_splits + 4 * index * splits
            args.row_indices = shared.unique_idxs
            args.sums = record.sums
            args.sum_bytes = dim * sum_item
            args.first_row = keys * range_index // range_count
            args.end_row = keys * (range_index + 1) // range_count
            args.combiner = column.combiner
            args.weights = job.weights
            args.rows = record.out
            args.sum_addresses = as_words(int64(0))
            args.masks = 0
            call_by_tiles(
                column,
                dim,
                as_words(args),
                int64(ScatterArgs.first_element),
                int64(ScatterArgs.end_element),
            )
        task = jobs.next_task(job, helps)


@jit
def _allocate_sums(frame: op.Frame, job: GradJob, total: int) -> None:
    """Decides where sums go: to the result itself, or for half types to a workspace."""
    state, columns = job.state, job.columns
    is_half = state.item_bytes == 2
    sums = op.scratch(frame, total if is_half else int64(0), np.float32)
    if op.failed(frame):
        return
    address = sums.ctypes.data
    for index in range(state.column_count):
        column = columns[index]
        column.sums = address if is_half else column.out
        address += 4 * column.unique_count * column.dim


@jit
def _widen_weights(frame: op.Frame, job: GradJob, shared: SharedInputs) -> None:
    """Brings the entries' weights to the compute dtype."""
    state = job.state
    job.weights = shared.entry_weights
    if state.item_bytes != 2 or state.weighted_count == 0:
        return
    weights = op.scratch(frame, shared.entry_count, np.float32)
    if op.failed(frame):
        return
    for k in range(weights.shape[0]):
        weights[k] = weight_at(shared.entry_weights, k, state.dtype_code)
    job.weights = weights.ctypes.data


@jit
def _row_elements(job: GradJob, count: int) -> int:
    """The elements of a row of all columns side by side."""
    elements = int64(0)
    for index in range(count):
        elements += job.columns[index].dim
    return elements


@jit
def _compute(frame: op.Frame, job: GradJob, shared: SharedInputs) -> None:
    state = as_record(op.State, job.state)
    count = as_record(ColumnsState, state).column_count
    pool = as_record(ColumnsState, state).pool
    batch = shared.split_count - 1
    columns = op.scratch(frame, GradColumn.SIZE * count, np.int64)
    if op.failed(frame):
        return
    job.columns = columns.ctypes.data
    total = take_columns(frame, job, batch)
    _allocate_sums(frame, job, total)
    _widen_weights(frame, job, shared)
    if op.failed(frame):
        return
    entries = shared.entry_count
    cost = count * _COLUMN_NS + entries * (_ENTRY_NS + _row_elements(job, count) // (2 * count))
    helpers = as_record(Pool, pool if cost > _PARALLEL_NS else int64(0))
    range_count = int64(1)
    if helpers != 0:
        threads = pool.thread_count + 1
        range_count = max((2 * threads) // count, int64(1))
    job.range_count = range_count
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = count * range_count
    slot_of_job = jobs.open_job(helpers, job)
    scatter_columns(job, int64(0))
    jobs.close_job(helpers, slot_of_job)
    jobs.count_helpers(frame, job)
    op.count_rows(frame, entries)
    for index in range(count):
        error = job.columns[index].error
        if error != _NO_ERROR:
            _report_error(frame, job, int64(index), error)
            return


def scatter_grads(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(ColumnsState, frame.state)
    count = state.column_count
    shared = stack_record(SharedInputs)
    job = stack_record(GradJob)
    job.state = state
    job.shared = shared
    weighted = state.weighted_count != 0
    lookups = state.lookup_count
    take_shared(frame, frame.context, count + 1, shared, lookups, weighted)
    if not op.failed(frame):
        _compute(frame, job, shared)
    release_shared(shared)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return scatter_grads, scatter_columns, GradJob
