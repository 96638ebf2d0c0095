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

from fusion.cpu_ops.column_layout import ColumnInputs
from fusion.cpu_ops.row_tiles import LINE_BYTES
from fusion.ops.columns.cpu import tasks
from fusion.ops.columns.cpu.inputs import (
    SharedInputs,
    release,
    release_shared,
    take_shared,
    take_source,
)
from fusion.ops.columns.cpu.layout import POST, ColumnsState
from fusion.ops.columns.cpu.slow_path import finish_column
from fusion.ops.columns.cpu.tasks import ColumnResult, LookupJob
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: So many elements a task has at most, in the mean over the columns: rows are read fastest when
#: many are listed before they are combined.
_MAX_ELEMENTS = 24_576
#: A task should have so many elements if it can, and write so many bytes of a row: of columns that
#: do not end where lines end, two threads would write the same lines.
_TASK_ELEMENTS = 4096
_TASK_BYTES = 256
_MIN_ROWS = 16
#: So many tasks for each thread even out what they cost.
_TASKS_PER_THREAD = 4
#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
#: The cost of a task, and of an element of it, in nanoseconds, without reading the bytes of rows.
_TASK_NS, _ELEMENT_NS, _BYTES_PER_NS = 500, 3, 8
#: A result of so many bytes would push all else out of the caches, itself included. Smaller ones
#: would be written faster past the caches, too, but read slower by about as much.
STREAMED_BYTES = 16 << 20
#: So many columns are looked at to guess how much work there is.
_SAMPLED = 16


@jit
def _survey(
    frame: op.Frame, ctx: int, state: ColumnsState, source: ColumnInputs, shared: SharedInputs
) -> tuple[int, int]:
    """The rows of the batch, and an estimate of the elements of all columns from some of them."""
    count, status = state.column_count, frame.status
    if shared != 0:
        batch = shared.split_count - 1
        return batch, shared.entry_count + batch * count
    step = max((count + _SAMPLED - 1) // _SAMPLED, int64(1))
    batch, elements, looked = int64(-1), int64(0), int64(0)
    for index in range(0, count, step):
        sound = take_source(int64(0), ctx, state, index, source, status, shared)
        if sound:
            batch = source.batch_size if batch < 0 else batch
            elements += source.id_count + source.batch_size
            looked += 1
        release(source)
    if batch < 0:  # then the first column is not sound
        take_source(frame, ctx, state, int64(0), source, status, shared)
        release(source)
        return int64(0), int64(0)
    return batch, elements * count // looked


@jit
def _dim_of(
    frame: op.Frame, state: ColumnsState, index: int, source: ColumnInputs, shared: SharedInputs
) -> int:
    """The elements of a row of a column."""
    dim = state.columns[index].dim
    if dim < 0:
        take_source(frame, frame.context, state, index, source, frame.status, shared)
        dim = source.table_dim
        release(source)
    return dim


@jit
def _allocate(
    frame: op.Frame,
    state: ColumnsState,
    source: ColumnInputs,
    batch: int,
    results: ColumnResult,
    shared: SharedInputs,
) -> int:
    """Allocates the outputs; returns the bytes of a row of all of them.

    Args:
      results: out, of each column.
    """
    count = state.column_count
    item = state.item_bytes
    first, total = int64(0), int64(0)
    while first < count and not op.failed(frame):
        output, end, width = state.columns[first].output, first, int64(0)
        while end < count and state.columns[end].output == output:
            results[end].address = item * width
            width += _dim_of(frame, state, end, source, shared)
            end += 1
        out = op.new_output(frame, output, int64(2), batch, width, item)
        for index in range(first, end):
            result = results[index]
            result.address = out + result.address
            result.row_bytes = item * width
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
    min_columns = int64(1)
    if width % LINE_BYTES != 0 and not apart:
        min_columns = min((int64(_TASK_BYTES) + width - 1) // width, count)
    per_row = max(elements // max(batch * count, int64(1)), int64(1))
    rows = max(int64(_MAX_ELEMENTS) // (per_row * min_columns), int64(_MIN_ROWS))
    if threads > 1:
        fair = batch * (count // min_columns) // (threads * _TASKS_PER_THREAD) + 1
        rows = min(rows, max(fair, int64(_MIN_ROWS)))
    # Blocks are of one size.
    blocks = max(batch // rows, int64(1))
    rows = max((batch + blocks - 1) // blocks, int64(1))
    columns = max(int64(_TASK_ELEMENTS) // (rows * per_row), min_columns)
    if threads > 1:
        columns = min(columns, count * blocks // (threads * _TASKS_PER_THREAD))
    return rows, max(min(columns, count), int64(1))


def lookup(frame: op.Frame) -> None:
    """The kernel body."""
    shared = stack_record(SharedInputs)
    state = as_record(ColumnsState, frame.state)
    if state.role != POST:
        look_up(frame, as_record(SharedInputs, int64(0)), int64(0))
        return
    first = state.column_count
    weighted = state.weighted_count != 0
    lookups = state.lookup_count
    take_shared(frame, frame.context, first, shared, lookups, weighted)
    if not op.failed(frame):
        look_up(frame, shared, int64(0))
    release_shared(shared)


@jit
def look_up(frame: op.Frame, shared: SharedInputs, gathers: KeyedGather) -> None:
    """Does all tasks of a call; `shared` and `gathers` see `LookupJob`."""
    ctx, state = frame.context, as_record(ColumnsState, frame.state)
    count = state.column_count
    pool = state.pool
    source = stack_record(ColumnInputs)
    job = stack_record(LookupJob)
    batch, elements = _survey(frame, ctx, state, source, shared)
    lists = op.scratch(frame, (ColumnResult.SIZE + 1) * count, np.int64)
    if op.failed(frame):
        return
    results = as_record(ColumnResult, lists.ctypes.data)
    marks = results[count]
    row_bytes = _allocate(frame, state, source, batch, results, shared)
    if op.failed(frame):
        return
    cost = count * _TASK_NS + elements * (_ELEMENT_NS + row_bytes // (count * _BYTES_PER_NS))
    parallel = pool != 0 and cost > _PARALLEL_NS
    threads = pool.thread_count + 1 if parallel else int64(1)
    apart = state.output_count == count
    block, span = _task_size(count, batch, elements, threads, row_bytes, apart)
    blocks, spans = max((batch + block - 1) // block, int64(1)), (count + span - 1) // span
    for index in range(count):
        store(marks, index, 0)
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = blocks * spans
    job.context = ctx
    job.state = state
    job.batch_size = batch
    job.results = results
    job.is_streamed = int64(batch * row_bytes >= STREAMED_BYTES)
    job.block_rows = block
    job.block_columns = span
    job.column_count = count
    job.marks = as_words(marks)
    job.mark_count = 0
    job.id_count = 0
    job.shared = shared
    job.gathers = gathers
    helpers = as_record(Pool, pool if parallel else int64(0))
    slot = jobs.open_job(helpers, job)
    tasks.work(job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    ids = job.id_count
    op.count_rows(frame, ids if shared == 0 else shared.entry_count)
    if job.mark_count == 0:
        return
    for index in range(count):
        if load(marks, index) != 0 and not op.failed(frame):
            finish_column(frame, job, index, source)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return lookup, tasks.work, LookupJob
