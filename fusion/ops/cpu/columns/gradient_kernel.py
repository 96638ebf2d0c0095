"""The kernel of the gradient of the op behind the gathers of many columns.

A task is a column, or a range of its distinct ids if there are few columns: each task reads all of
the column's entries and adds up the gradients of the ids that are its own (`scatter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.cpu_ops.elements import weight_at
from fusion.cpu_ops.scatter import ScatterArgs
from fusion.ops.cpu.columns.inputs import (
    SharedInputs,
    column_at,
    input_tensor,
    release_shared,
    state_field,
    take_shared,
)
from fusion.ops.cpu.columns.layout import ColumnsState
from fusion.ops.cpu.columns.tasks import call_by_tiles
from fusion.runtime.layout import Address, Int64, Layout
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import (
    check,
    context,
    count_rows,
    failed,
    kernel_state,
    reused_output,
    scratch,
    status_of,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_num_dims,
    tf_num_inputs,
    tf_tensor_data,
)
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool


class GradJob(Job):
    """What the tasks of a call share."""

    state: Address  # of the op, see `ColumnsState`
    shared: Address  # `SharedInputs`
    range_count: Int64  # ranges of ids that a column is done in
    columns: Address  # `GradColumn` [columns]
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
def _take_top(frame: int, number: int, batch: int) -> tuple[int, int]:
    """The address of the gradient of a matrix of columns, and the elements of a row of it."""
    slot, index = stack_words(1), int64(0)
    if number > 0:  # they are the last inputs
        index = int64(tf_num_inputs(context(frame)))
        index += number - state_field(kernel_state(frame), ColumnsState.output_count)
    top = input_tensor(context(frame), index, slot, status_of(frame))
    if top == 0:
        check(frame)
        return int64(0), int64(0)
    address, rank = tf_tensor_data(top), int64(tf_num_dims(top))
    rows = tf_dim(top, np.int32(0)) if rank == 2 else int64(0)
    width = tf_dim(top, np.int32(1)) if rank == 2 else int64(0)
    tf_delete_tensor(top)  # the context holds the input
    if rank != 2:
        fail(frame, INVALID_ARGUMENT, "top_grad[%lld] has rank %lld, not 2", number, rank)
    elif rows < batch:
        text = "top_grad[%lld] has %lld rows, but row_splits say %lld"
        fail(frame, INVALID_ARGUMENT, text, number, rows, batch)
    return address, width


@jit
def take_columns(frame: int, job: int, batch: int) -> int:
    """Takes the gradients of columns, and makes the outputs; returns the number of their elements.

    Args:
      batch: the rows that gradients have to have.
    """
    state, slot, total, end = load(job, GradJob.state), stack_words(1), int64(0), int64(0)
    ctx, item = context(frame), state_field(state, ColumnsState.item_bytes)
    number, top, width = int64(-1), int64(0), int64(0)
    for index in range(state_field(state, ColumnsState.column_count)):
        if load(column_at(state, index), ColumnAttrs.output) != number:
            number, end = number + 1, int64(0)
            top, width = _take_top(frame, number, batch)
            if failed(frame):
                return total
        rows = input_tensor(ctx, index + 1, slot, status_of(frame))
        if rows == 0:
            check(frame)
            return total
        rank = int64(tf_num_dims(rows))
        keys = tf_dim(rows, np.int32(0)) if rank == 2 else int64(0)
        dim = tf_dim(rows, np.int32(1)) if rank == 2 else int64(0)
        tf_delete_tensor(rows)
        first = load(column_at(state, index), ColumnAttrs.top_grad_offset)
        first = end if first < 0 else first
        known = load(column_at(state, index), ColumnAttrs.dim)
        if rank != 2:
            text = "emb_rows[%lld] has rank %lld, not 2"
            fail(frame, INVALID_ARGUMENT, text, int64(index), rank)
        elif first > width - dim:
            text = (
                "column %lld has %lld elements from %lld on, but a row of top_grad[%lld] only %lld"
            )
            fail(frame, INVALID_ARGUMENT, text, int64(index), dim, first, number, width)
        elif known >= 0 and known != dim:
            text = "column %lld has rows of %lld elements, but dim is %lld"
            fail(frame, INVALID_ARGUMENT, text, int64(index), dim, known)
        end = first + dim
        # The rows themselves are not read.
        out = reused_output(frame, int64(index), int64(index + 1), keys, dim)
        if failed(frame):
            return total
        column = load(job, GradJob.columns) + 8 * GradColumn.SIZE * index
        store(column, GradColumn.unique_count, keys)
        store(column, GradColumn.dim, dim)
        store(column, GradColumn.top_grad, top + first * item)
        store(column, GradColumn.top_grad_bytes, width * item)
        store(column, GradColumn.out, out)
        total += keys * dim
    return total


@jit
def _first_wrong(job: int, index: int) -> int:
    """What is wrong with a column's entries, see `GradColumn.error`."""
    shared = load(job, GradJob.shared)
    count, total = load(shared, SharedInputs.split_count), load(shared, SharedInputs.entry_count)
    starts = load(shared, SharedInputs.row_splits) + 4 * index * count
    row_indices = load(shared, SharedInputs.unique_idxs)
    keys = load(
        load(job, GradJob.columns),
        GradColumn.SIZE * index + GradColumn.unique_count,
    )
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
def _report_error(frame: int, job: int, index: int, error: int) -> None:
    shared = load(job, GradJob.shared)
    if error >= 0:
        starts = load(shared, SharedInputs.row_splits) + 4 * index * load(
            shared, SharedInputs.split_count
        )
        split = int64(load_as(starts, error, np.int32))
        text = (
            "column %lld: row split %lld is %lld, less than one before it or more than %lld entries"
        )
        fail(
            frame,
            INVALID_ARGUMENT,
            text,
            index,
            error,
            split,
            load(shared, SharedInputs.entry_count),
        )
        return
    entry = -1 - error
    number = int64(load_as(load(shared, SharedInputs.unique_idxs), entry, np.int32))
    keys = load(load(job, GradJob.columns), GradColumn.SIZE * index + GradColumn.unique_count)
    text = "column %lld: unique_idxs[%lld] = %lld is not in [0, %lld), the rows"
    fail(frame, INVALID_ARGUMENT, text, index, entry, number, keys)


@jit
def scatter_columns(job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    state = load(job, GradJob.state)
    shared = load(job, GradJob.shared)
    range_count = load(job, GradJob.range_count)
    splits = load(shared, SharedInputs.split_count)
    args = stack_words(ScatterArgs.SIZE)
    task = jobs.next_task(job, helps)
    while task >= 0:
        index, range_index = task // range_count, task % range_count
        column = column_at(state, index)
        record = load(job, GradJob.columns) + 8 * GradColumn.SIZE * index
        error = _first_wrong(job, index)
        if range_index == 0:
            store(record, GradColumn.error, error)
        if error == _NO_ERROR:
            keys, dim = load(record, GradColumn.unique_count), load(record, GradColumn.dim)
            sum_item = max(state_field(state, ColumnsState.item_bytes), int64(4))
            store(args, ScatterArgs.bag_count, splits - 1)
            store(args, ScatterArgs.top_grad, load(record, GradColumn.top_grad))
            store(args, ScatterArgs.top_grad_bytes, load(record, GradColumn.top_grad_bytes))
            store(
                args,
                ScatterArgs.bag_starts,
                load(shared, SharedInputs.row_splits) + 4 * index * splits,
            )
            store(args, ScatterArgs.row_indices, load(shared, SharedInputs.unique_idxs))
            store(args, ScatterArgs.sums, load(record, GradColumn.sums))
            store(args, ScatterArgs.sum_bytes, dim * sum_item)
            store(args, ScatterArgs.first_row, keys * range_index // range_count)
            store(args, ScatterArgs.end_row, keys * (range_index + 1) // range_count)
            store(args, ScatterArgs.combiner, load(column, ColumnAttrs.combiner))
            store(args, ScatterArgs.weights, load(job, GradJob.weights))
            store(args, ScatterArgs.rows, load(record, GradColumn.out))
            store(args, ScatterArgs.sum_addresses, 0)
            store(args, ScatterArgs.masks, 0)
            call_by_tiles(
                column, dim, args, int64(ScatterArgs.first_element), int64(ScatterArgs.end_element)
            )
        task = jobs.next_task(job, helps)


@jit
def _allocate_sums(frame: int, job: int, total: int) -> None:
    """Decides where sums go: to the result itself, or for half types to a workspace."""
    state, columns = load(job, GradJob.state), load(job, GradJob.columns)
    is_half = state_field(state, ColumnsState.item_bytes) == 2
    sums = scratch(frame, total if is_half else int64(0), np.float32)
    if failed(frame):
        return
    address = sums.ctypes.data
    for index in range(state_field(state, ColumnsState.column_count)):
        column = columns + 8 * GradColumn.SIZE * index
        store(column, GradColumn.sums, address if is_half else load(column, GradColumn.out))
        address += 4 * load(column, GradColumn.unique_count) * load(column, GradColumn.dim)


@jit
def _widen_weights(frame: int, job: int, shared: int) -> None:
    """Brings the entries' weights to the compute dtype."""
    state = load(job, GradJob.state)
    store(job, GradJob.weights, load(shared, SharedInputs.entry_weights))
    if (
        state_field(state, ColumnsState.item_bytes) != 2
        or state_field(state, ColumnsState.weighted_count) == 0
    ):
        return
    weights = scratch(frame, load(shared, SharedInputs.entry_count), np.float32)
    if failed(frame):
        return
    for k in range(weights.shape[0]):
        weights[k] = weight_at(
            load(shared, SharedInputs.entry_weights), k, state_field(state, ColumnsState.dtype_code)
        )
    store(job, GradJob.weights, weights.ctypes.data)


@jit
def _row_elements(job: int, count: int) -> int:
    """The elements of a row of all columns side by side."""
    elements = int64(0)
    for index in range(count):
        elements += load(load(job, GradJob.columns), GradColumn.SIZE * index + GradColumn.dim)
    return elements


@jit
def _compute(frame: int, job: int, shared: int) -> None:
    state = load(job, GradJob.state)
    count = state_field(state, ColumnsState.column_count)
    pool = state_field(state, ColumnsState.pool)
    batch = load(shared, SharedInputs.split_count) - 1
    columns = scratch(frame, GradColumn.SIZE * count, np.int64)
    if failed(frame):
        return
    store(job, GradJob.columns, columns.ctypes.data)
    total = take_columns(frame, job, batch)
    _allocate_sums(frame, job, total)
    _widen_weights(frame, job, shared)
    if failed(frame):
        return
    entries = load(shared, SharedInputs.entry_count)
    cost = count * _COLUMN_NS + entries * (_ENTRY_NS + _row_elements(job, count) // (2 * count))
    helpers = pool if cost > _PARALLEL_NS else int64(0)
    range_count = int64(1)
    if helpers != 0:
        threads = load(pool, Pool.thread_count) + 1
        range_count = max((2 * threads) // count, int64(1))
    store(job, GradJob.range_count, range_count)
    store(job, Job.kernel, load(state, State.kernel))
    store(job, Job.next_task, 0)
    store(job, Job.task_count, count * range_count)
    slot_of_job = jobs.open_job(helpers, job)
    scatter_columns(job, int64(0))
    jobs.close_job(helpers, slot_of_job)
    jobs.count_helpers(frame, job)
    count_rows(frame, entries)
    for index in range(count):
        error = load(load(job, GradJob.columns), GradColumn.SIZE * index + GradColumn.error)
        if error != _NO_ERROR:
            _report_error(frame, job, int64(index), error)
            return


def scatter_grads(frame: int) -> None:
    """The kernel body."""
    state = kernel_state(frame)
    count = state_field(state, ColumnsState.column_count)
    shared, job = stack_words(SharedInputs.SIZE), stack_words(GradJob.SIZE)
    store(job, GradJob.state, state)
    store(job, GradJob.shared, shared)
    weighted = state_field(state, ColumnsState.weighted_count) != 0
    lookups = state_field(state, ColumnsState.lookup_count)
    take_shared(frame, context(frame), count + 1, shared, lookups, weighted)
    if not failed(frame):
        _compute(frame, job, shared)
    release_shared(shared)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return scatter_grads, scatter_columns
