"""The kernel of the op before the gathers of many columns.

A task is a column: its entries are listed (`columns`), their ids numbered (`numbering`). How many
distinct ids there are is only known then; so they wait in a workspace until all tasks are done, and
copied to tensors of their own. A column that meets anything unusual is only marked, and done once
more in the end by the kernel's own thread, which sorts, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnInputs
from fusion.cpu_ops.columns import element_range, list_unfilled, list_unfilled_unsorted
from fusion.cpu_ops.elements import Batch, put_weight
from fusion.cpu_ops.unique import table_bits
from fusion.ops.columns.cpu.inputs import SharedInputs, release, take_source
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.cpu.slow_path import is_by_row, report_error
from fusion.ops.columns.cpu.tasks import (
    Workspace,
    batch_in,
    free_workspace,
    lists_in,
    open_workspace,
    order_in,
    reserve,
    slots_in,
)
from fusion.ops.columns.cpu_kernels.ascending import sort_keys
from fusion.ops.columns.cpu_kernels.numbering import Numbering, number_entries
from fusion.runtime.layout import Address, Flag, Int64, Words
from fusion.runtime.native import op
from fusion.runtime.native.atomic import atomic_add, atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.tensorflow.dtypes import INT64
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES


class UniqueJob(Job):
    """The data that the tasks of a call share."""

    context: Address  # TF_OpKernelContext*
    state: ColumnsState  # of the op
    batch_size: Int64
    entry_offsets: Words  # where each column's entries start, int64 [columns + 1]
    marks: Words  # of columns that need the slow path; ids that are too large; int64 [columns]
    mark_count: Int64
    keys: Words  # workspace for the distinct ids of all columns, int64
    key_counts: Words  # distinct ids of each column, int64 [columns]
    unique_keys: Words  # the elements of each column's output, int64 [columns]
    unique_idxs: Address  # the outputs of all columns
    row_splits: Address
    entry_weights: Address
    is_copying: Flag  # whether the tasks are to copy the distinct ids to the outputs


#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
#: So many distinct ids are copied sooner than that.
_PARALLEL_KEYS = 30_000
#: What a column and an element of it cost in nanoseconds.
_COLUMN_NS, _ELEMENT_NS = 800, 8


@jit
def _survey(
    frame: op.Frame, ctx: int, state: ColumnsState, source: ColumnInputs, firsts: Words
) -> int:
    """Notes where each column's entries start; returns the number of rows, -1 without columns."""
    batch, total = int64(-1), int64(0)
    for index in range(state.column_count):
        firsts[index] = total
        sound = take_source(
            frame, ctx, state, index, source, frame.status, as_record(SharedInputs, int64(0))
        )
        if sound:
            rows, ids = source.batch_size, source.id_count
            if max(rows, ids) >= int64(MAX_ENTRIES):
                text = " has %lld rows and %lld ids, more than can be numbered"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, int64(index), rows, ids)
            batch = rows if batch < 0 else batch
            total += ids
            op.count_rows(frame, ids)
            if state.columns[index].fill_empty_row != 0:
                total += rows
            if rows != batch:
                text = " has %lld rows, but others have %lld"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, int64(index), rows, batch)
        release(source)
        if op.failed(frame):
            return batch
    firsts[state.column_count] = total
    return batch


@jit
def _number(job: UniqueJob, index: int, batch: Batch, workspace: Workspace, entries: int) -> None:
    """Numbers a column's listed entries, and those that fill its rows."""
    first = job.entry_offsets[index]
    bits = table_bits(entries + 1)
    numbering = Numbering(
        job.keys + 8 * first,
        first,
        job.unique_idxs,
        job.entry_weights,
        job.row_splits + 4 * index * (job.batch_size + 1),
        slots_in(workspace, bits),
        bits,
    )
    key_count, end = number_entries(batch, numbering)
    if batch.column.sort_key != 0:
        sort_keys(numbering, key_count, end, lists_in(workspace))
    job.key_counts[index] = key_count
    # Unused elements are 0, so that results are always the same.
    next_first = job.entry_offsets[index + 1]
    has_weights = batch.column.use_sparse_weights != 0
    for k in range(end, next_first):
        store_as(job.unique_idxs, k, np.int32(0), np.int32)
    if job.state.weighted_count != 0:
        for k in range(end if has_weights else first, next_first):
            put_weight(job.entry_weights, k, 0.0, batch.source.table_dtype)


@jit
def _do_column(job: UniqueJob, index: int, source: ColumnInputs, workspace: Workspace) -> bool:
    """Does a column; returns False, having done anything or nothing, if it is not as it should."""
    column = job.state.columns[index]
    rows = job.batch_size
    start, end = element_range(column, source, int64(0), rows)
    if end < start or not reserve(workspace, end - start + rows, rows):
        return False
    batch = batch_in(workspace, column, source, int64(0), rows)
    entries = list_unfilled(batch, start, end)
    if entries < 0:
        return False
    _number(job, index, batch, workspace, entries)
    return True


@jit
def do_columns(job: UniqueJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    if job.is_copying == 0:
        _number_columns(job, helps)
        return
    index = jobs.next_task(job, helps)
    while index >= 0:
        _copy_keys(job, index)
        index = jobs.next_task(job, helps)


@jit
def _number_columns(job: UniqueJob, helps: int) -> None:
    source = stack_record(ColumnInputs)
    workspace = stack_record(Workspace)
    open_workspace(workspace)
    status = tf_new_status()
    ctx, state = job.context, job.state
    index = jobs.next_task(job, helps)
    while index >= 0:
        done = take_source(
            int64(0), ctx, state, index, source, status, as_record(SharedInputs, int64(0))
        )
        done = done and _do_column(job, index, source, workspace)
        release(source)
        if not done:
            atomic_store(job.marks, index, int64(1))
            atomic_add(job, UniqueJob.mark_count, int64(1))
        index = jobs.next_task(job, helps)
    free_workspace(workspace)
    tf_delete_status(status)


@jit
def _finish_column(
    frame: op.Frame, job: UniqueJob, index: int, source: ColumnInputs, workspace: Workspace
) -> None:
    """Does a column in any order of its entries, or reports what is wrong with it."""
    state, rows = job.state, job.batch_size
    column = state.columns[index]
    if not take_source(
        frame,
        job.context,
        state,
        index,
        source,
        frame.status,
        as_record(SharedInputs, int64(0)),
    ):
        return
    if not reserve(workspace, source.id_count + rows, rows + 1):
        op.fail_column(frame, op.RESOURCE_EXHAUSTED, ": no memory for %lld rows", index, rows)
        return
    batch = batch_in(workspace, column, source, int64(0), rows)
    start, end = element_range(column, source, int64(0), rows)
    entries = list_unfilled(batch, start, end) if end >= start else int64(-1)
    if entries < 0 and is_by_row(column) and column.row_count != LAST_ROW:
        entries = list_unfilled_unsorted(batch, as_words(order_in(workspace)))
    if entries < 0:
        report_error(frame, index, batch)
        return
    _number(job, index, batch, workspace, entries)


@jit
def _finish(frame: op.Frame, job: UniqueJob, source: ColumnInputs) -> None:
    """Does the marked columns."""
    workspace = stack_record(Workspace)
    open_workspace(workspace)
    for index in range(job.task_count):
        if job.marks[index] != 0 and not op.failed(frame):
            _finish_column(frame, job, int64(index), source, workspace)
            release(source)
    free_workspace(workspace)


@jit
def _copy_keys(job: UniqueJob, index: int) -> None:
    """Copies the distinct ids of a column to their tensor; marks the column if one does not fit."""
    key_count = job.key_counts[index]
    out = as_words(job.unique_keys[index])
    keys = as_words(job.keys + 8 * job.entry_offsets[index])
    if job.state.columns[index].keys_dtype == INT64:
        for k in range(key_count):
            out[k] = keys[k]
        return
    for k in range(key_count):
        key = keys[k]
        store_as(out, k, np.int32(key), np.int32)
        if key != int64(np.int32(key)):
            job.marks[index] = key


@jit
def _put_keys(frame: op.Frame, job: UniqueJob, pool: int) -> None:
    """Gives the distinct ids of each column a tensor of their own."""
    state, total = job.state, int64(0)
    count = job.task_count
    for index in range(count):
        key_count = job.key_counts[index]
        is_wide = state.columns[index].keys_dtype == INT64
        item = int64(8) if is_wide else int64(4)
        out = op.new_output(frame, int64(index), int64(1), key_count, int64(1), item)
        job.unique_keys[index] = out
        job.marks[index] = 0
        total += key_count
    if op.failed(frame):
        return
    job.next_task = 0
    job.is_copying = 1
    helpers = as_record(Pool, pool if total > int64(_PARALLEL_KEYS) else int64(0))
    slot = jobs.open_job(helpers, job)
    do_columns(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    for index in range(count):
        key = job.marks[index]
        if key != 0:
            text = ": the id %lld does not fit int32, the dtype of unique_keys"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, int64(index), key)
            return


def prepare(frame: op.Frame) -> None:
    """The kernel body."""
    find_keys(frame, stack_record(UniqueJob))


@jit
def find_keys(frame: op.Frame, job: UniqueJob) -> None:
    """Makes the outputs, and fills the `UniqueJob`."""
    ctx, state = frame.context, as_record(ColumnsState, frame.state)
    count = state.column_count
    pool = state.pool
    source = stack_record(ColumnInputs)
    lists = op.scratch(frame, 4 * count + 1, np.int64)
    if op.failed(frame):
        return
    firsts = as_words(lists.ctypes.data)
    batch = _survey(frame, ctx, state, source, firsts)
    if op.failed(frame):
        return
    total = firsts[count]
    if total > int64(MAX_ENTRIES):
        text = "%lld entries are more than the %lld that can be numbered"
        op.fail(frame, op.INVALID_ARGUMENT, text, total, int64(MAX_ENTRIES))
        return
    keys = op.scratch(frame, total, np.int64)
    weights = total if state.weighted_count != 0 else int64(0)
    job.unique_idxs = op.new_output(frame, count, int64(1), total, int64(1), int64(4))
    job.row_splits = op.new_output(frame, count + 1, int64(2), count, batch + 1, int64(4))
    item = state.item_bytes
    job.entry_weights = op.new_output(frame, count + 2, int64(1), weights, int64(1), item)
    if op.failed(frame):
        return
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = count
    job.context = ctx
    job.state = state
    job.batch_size = batch
    job.entry_offsets = firsts
    job.marks = as_words(firsts + 8 * (count + 1))
    job.mark_count = 0
    job.keys = keys.ctypes.data
    job.key_counts = as_words(firsts + 8 * (2 * count + 1))
    job.unique_keys = as_words(firsts + 8 * (3 * count + 1))
    job.is_copying = 0
    for index in range(count):
        job.marks[index] = 0
    cost = count * _COLUMN_NS + total * _ELEMENT_NS
    helpers = as_record(Pool, pool if cost > _PARALLEL_NS else int64(0))
    slot = jobs.open_job(helpers, job)
    do_columns(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    if job.mark_count != 0:
        _finish(frame, job, source)
    if not op.failed(frame):
        _put_keys(frame, job, pool)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return prepare, do_columns, UniqueJob
