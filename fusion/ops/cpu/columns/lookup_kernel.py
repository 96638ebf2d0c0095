"""The kernel of the ops that combine rows into bags.

The rows of the batch are cut into blocks. A task is a column of a block, or a few neighbours if the
batch is small; tasks are taken in the order of the blocks, so that what is written lies together.
Any thread may take a task: it lists the entries of a column (`columns`) and combines their rows
right into its part of the result (`gather`). One that meets anything unusual, unsorted rows or an
error, only marks its column. Those are done once more in the end, by the kernel's own thread, which
sorts, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.row_tiles import LINE_BYTES
from fusion.ops.cpu.columns import tasks
from fusion.ops.cpu.columns.inputs import (
    SharedInputs,
    column_at,
    release,
    release_shared,
    state_field,
    take_shared,
    take_source,
)
from fusion.ops.cpu.columns.layout import POST, ColumnsState
from fusion.ops.cpu.columns.slow_path import finish_column
from fusion.ops.cpu.columns.tasks import ColumnResult, LookupJob
from fusion.runtime.native.frame import (
    context,
    count_rows,
    failed,
    kernel_state,
    new_output,
    scratch,
    status_of,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool

#: So many elements a task has at most, in the mean over the columns: rows are read fastest when
#: many are listed before they are combined.
_MOST_ELEMENTS = 24_576
#: A task should have so many elements if it can, and write so many bytes of a row: of columns that
#: do not end where lines end, two threads would write the same lines.
_TASK_ELEMENTS = 4096
_TASK_BYTES = 256
_LEAST_ROWS = 16
#: So many tasks for each thread even out what they cost.
_TASKS_PER_THREAD = 4
#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
#: What a task, and an element of it, cost in nanoseconds besides the bytes of rows.
_TASK_NS, _ELEMENT_NS, _BYTES_PER_NS = 500, 3, 8
#: A result of so many bytes would push all else out of the caches, itself included. Smaller ones
#: would be written faster past the caches, too, but read slower by about as much.
STREAMED_BYTES = 16 << 20
#: So many columns are looked at to guess how much work there is.
_SAMPLED = 16


@jit
def _survey(frame: int, ctx: int, state: int, source: int, shared: int) -> tuple[int, int]:
    """The rows of the batch, and a guess at the elements of all columns, by some of them."""
    count, status = state_field(state, ColumnsState.column_count), status_of(frame)
    if shared != 0:
        batch = load(shared, SharedInputs.split_count) - 1
        return batch, load(shared, SharedInputs.entry_count) + batch * count
    step = max((count + _SAMPLED - 1) // _SAMPLED, int64(1))
    batch, elements, looked = int64(-1), int64(0), int64(0)
    for index in range(0, count, step):
        sound = take_source(int64(0), ctx, state, index, source, status, shared)
        if sound:
            batch = load(source, ColumnInputs.batch_size) if batch < 0 else batch
            elements += load(source, ColumnInputs.id_count) + load(source, ColumnInputs.batch_size)
            looked += 1
        release(source)
    if batch < 0:  # then the first column is not sound
        take_source(frame, ctx, state, int64(0), source, status, shared)
        release(source)
        return int64(0), int64(0)
    return batch, elements * count // looked


@jit
def _dim_of(frame: int, state: int, index: int, source: int, shared: int) -> int:
    """The elements of a row of a column."""
    dim = load(column_at(state, index), ColumnAttrs.dim)
    if dim < 0:
        take_source(frame, context(frame), state, index, source, status_of(frame), shared)
        dim = load(source, ColumnInputs.table_dim)
        release(source)
    return dim


@jit
def _allocate(frame: int, state: int, source: int, batch: int, results: int, shared: int) -> int:
    """Allocates the outputs; returns the bytes of a row of all of them.

    Args:
      results: out, the address of a `ColumnResult` for each column.
    """
    count = state_field(state, ColumnsState.column_count)
    item = state_field(state, ColumnsState.item_bytes)
    first, total = int64(0), int64(0)
    while first < count and not failed(frame):
        output, end, width = load(column_at(state, first), ColumnAttrs.output), first, int64(0)
        while end < count and load(column_at(state, end), ColumnAttrs.output) == output:
            result = results + 8 * ColumnResult.SIZE * end
            store(result, ColumnResult.address, item * width)
            width += _dim_of(frame, state, end, source, shared)
            end += 1
        out = new_output(frame, output, int64(2), batch, width, item)
        for index in range(first, end):
            result = results + 8 * ColumnResult.SIZE * index
            store(result, ColumnResult.address, out + load(result, ColumnResult.address))
            store(result, ColumnResult.row_bytes, item * width)
        first, total = end, total + item * width
    return total


@jit
def _task_size(
    count: int, batch: int, elements: int, threads: int, row_bytes: int, apart: bool
) -> tuple[int, int]:
    """How many rows and how many columns a task should have.

    Args:
      apart: whether each column has an output of its own.
    """
    width = max(row_bytes // count, int64(1))
    least = int64(1)
    if width % LINE_BYTES != 0 and not apart:
        least = min((int64(_TASK_BYTES) + width - 1) // width, count)
    per_row = max(elements // max(batch * count, int64(1)), int64(1))
    rows = max(int64(_MOST_ELEMENTS) // (per_row * least), int64(_LEAST_ROWS))
    if threads > 1:
        fair = batch * (count // least) // (threads * _TASKS_PER_THREAD) + 1
        rows = min(rows, max(fair, int64(_LEAST_ROWS)))
    # Blocks are of one size.
    blocks = max(batch // rows, int64(1))
    rows = max((batch + blocks - 1) // blocks, int64(1))
    columns = max(int64(_TASK_ELEMENTS) // (rows * per_row), least)
    if threads > 1:
        columns = min(columns, count * blocks // (threads * _TASKS_PER_THREAD))
    return rows, max(min(columns, count), int64(1))


def lookup(frame: int) -> None:
    """The kernel body."""
    shared, state = stack_words(SharedInputs.SIZE), kernel_state(frame)
    if state_field(state, ColumnsState.role) != POST:
        look_up(frame, int64(0), int64(0))
        return
    first = state_field(state, ColumnsState.column_count)
    weighted = state_field(state, ColumnsState.weighted_count) != 0
    lookups = state_field(state, ColumnsState.lookup_count)
    take_shared(frame, context(frame), first, shared, lookups, weighted)
    if not failed(frame):
        look_up(frame, shared, int64(0))
    release_shared(shared)


@jit
def look_up(frame: int, shared: int, gathers: int) -> None:
    """Does all tasks of a call; `shared` and `gathers` see `LookupJob`."""
    ctx, state = context(frame), kernel_state(frame)
    count = state_field(state, ColumnsState.column_count)
    pool = state_field(state, ColumnsState.pool)
    source = stack_words(ColumnInputs.SIZE)
    job = stack_words(LookupJob.SIZE)
    batch, elements = _survey(frame, ctx, state, source, shared)
    lists = scratch(frame, (ColumnResult.SIZE + 1) * count, np.int64)
    if failed(frame):
        return
    results = lists.ctypes.data
    marks = results + 8 * ColumnResult.SIZE * count
    row_bytes = _allocate(frame, state, source, batch, results, shared)
    if failed(frame):
        return
    cost = count * _TASK_NS + elements * (_ELEMENT_NS + row_bytes // (count * _BYTES_PER_NS))
    parallel = pool != 0 and cost > _PARALLEL_NS
    threads = load(pool, Pool.thread_count) + 1 if parallel else int64(1)
    apart = state_field(state, ColumnsState.output_count) == count
    block, span = _task_size(count, batch, elements, threads, row_bytes, apart)
    blocks, spans = max((batch + block - 1) // block, int64(1)), (count + span - 1) // span
    for index in range(count):
        store(marks, index, 0)
    store(job, Job.kernel, load(state, State.kernel))
    store(job, Job.next_task, 0)
    store(job, Job.task_count, blocks * spans)
    store(job, LookupJob.context, ctx)
    store(job, LookupJob.state, state)
    store(job, LookupJob.batch_size, batch)
    store(job, LookupJob.results, results)
    store(job, LookupJob.is_streamed, int64(batch * row_bytes >= STREAMED_BYTES))
    store(job, LookupJob.block_rows, block)
    store(job, LookupJob.block_columns, span)
    store(job, LookupJob.column_count, count)
    store(job, LookupJob.marks, marks)
    store(job, LookupJob.mark_count, 0)
    store(job, LookupJob.id_count, 0)
    store(job, LookupJob.shared, shared)
    store(job, LookupJob.gathers, gathers)
    helpers = pool if parallel else int64(0)
    slot = jobs.open_job(helpers, job)
    tasks.work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    ids = load(job, LookupJob.id_count)
    count_rows(frame, ids if shared == 0 else load(shared, SharedInputs.entry_count))
    if load(job, LookupJob.mark_count) == 0:
        return
    for index in range(count):
        if load(marks, index) != 0 and not failed(frame):
            finish_column(frame, job, index, source)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return lookup, tasks.work
