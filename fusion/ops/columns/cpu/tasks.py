"""The tasks of a call of an op that combines rows, and how threads share them.

See `lookup_kernel`.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops import column_layout, row_tiles
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.columns import element_range, list_entries, list_unfilled
from fusion.cpu_ops.elements import Batch
from fusion.cpu_ops.row_tiles import GatherArgs
from fusion.cpu_ops.vectors import fence
from fusion.ops.columns.cpu.inputs import SharedInputs, list_as_they_are, release, take_source
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.cpu_kernels.listing import list_all
from fusion.ops.tables.cpu_kernels.gather import find_addresses
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.layout import Address, Flag, Int64, Layout, Words
from fusion.runtime.native.atomic import atomic_add, atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.threads.jobs import next_task
from fusion.runtime.threads.layout import Job


class LookupJob(Job):
    """The data that the tasks of a call share."""

    context: Address  # TF_OpKernelContext*
    state: ColumnsState  # of the op
    batch_size: Int64
    results: ColumnResult  # [columns]
    is_streamed: Flag  # whether it goes past the caches
    block_rows: Int64  # rows of a task
    block_columns: Int64
    column_count: Int64
    marks: Words  # of columns that need the slow path, int64 [columns]
    mark_count: Int64
    id_count: Int64  # of all columns, those that are shared in each
    shared: SharedInputs  # or 0
    gathers: KeyedGather  # [columns], zeros of a plain table; or 0


class ColumnResult(Layout):
    """Where the result of a column goes."""

    address: Address  # of its first element
    row_bytes: Int64  # from a row to the next


#: Entries, and rows, that a thread reserves at first.
_MIN_CAPACITY = 4096


class Workspace(Layout):
    """A thread's memory for the entries that it lists."""

    memory: Address  # from malloc, or 0
    entry_capacity: Int64
    row_capacity: Int64


#: Its sections.
_ADDRESSES, _WEIGHTS, _ORDER, _NORMS, _STARTS = range(5)


@jit
def open_workspace(workspace: Workspace) -> None:
    """Makes a workspace without memory."""
    workspace.memory = 0


@jit
def reserve(workspace: Workspace, entries: int, rows: int) -> bool:
    """Allocates what so many entries and rows need; returns whether there is the memory."""
    if (
        workspace.memory != 0
        and entries <= workspace.entry_capacity
        and rows <= workspace.row_capacity
    ):
        return True
    free_workspace(workspace)
    entries, rows = max(entries, int64(_MIN_CAPACITY)), max(rows, int64(_MIN_CAPACITY))
    size = 8 * (4 * (entries + row_tiles.AHEAD) + rows + 2)
    workspace.memory = c_malloc(size)
    workspace.entry_capacity = entries
    workspace.row_capacity = rows
    return workspace.memory != 0


@jit
def free_workspace(workspace: Workspace) -> None:
    """Frees the memory of a workspace."""
    if workspace.memory != 0:
        c_free(workspace.memory)
        workspace.memory = 0


@jit
def _section(workspace: Workspace, index: int) -> Words:
    """The address of a section: of one word for each entry, but for starts, which are the last."""
    return as_words(workspace.memory + 8 * index * (workspace.entry_capacity + row_tiles.AHEAD))


@jit
def batch_in(
    workspace: Workspace, column: ColumnAttrs, source: ColumnInputs, first: int, count: int
) -> Batch:
    """The rows [first, first + count) of a column, to be listed in a thread's memory."""
    addresses, starts = _section(workspace, _ADDRESSES), _section(workspace, _STARTS)
    return Batch(column, source, first, count, addresses, starts, _section(workspace, _WEIGHTS))


@jit
def order_in(workspace: Workspace) -> int:
    """The address of the order of entries."""
    return _section(workspace, _ORDER)


@jit
def slots_in(workspace: Workspace, bits: int) -> int:
    """The address of `2**bits` int32, zero, where the order and norms of entries would be.

    That must be less than four times the entries that are reserved.
    """
    slots = _section(workspace, _ORDER)
    for k in range((int64(1) << bits) // 2):
        slots[k] = 0
    return slots


@jit
def lists_in(workspace: Workspace) -> tuple[int, int, int]:
    """Three lists of a word per entry, where entries, their order and norms would be."""
    addresses, order = _section(workspace, _ADDRESSES), _section(workspace, _ORDER)
    return addresses, order, _section(workspace, _NORMS)


@jit
def norms_in(workspace: Workspace) -> int:
    """The address of the norms of rows."""
    return _section(workspace, _NORMS)


@jit
def _has_one_each(batch: Any, count: int) -> bool:
    """Whether every row has one entry."""
    if count != batch.count:
        return False
    different = int64(0)
    for row in range(batch.count):
        different |= batch.starts[row] ^ row
    return different == 0


@jit
def call_by_tiles(
    column: ColumnAttrs, dim: int, arguments: Words, first_word: int, end_word: int
) -> None:
    """Calls a column's kernels for its rows, tile by tile; two arguments are the tile's bounds."""
    first, tile = int64(0), column.tile_width
    while tile > 0 and dim - first > tile:
        arguments[first_word] = first
        arguments[end_word] = first + tile
        call_at(column.tile_kernel, arguments)
        first += tile
    if first < dim:
        arguments[first_word] = first
        arguments[end_word] = dim
        call_at(column.tail_kernel, arguments)


@jit
def combine(
    batch: Any, count: int, norms: int, job: LookupJob, index: int, arguments: GatherArgs
) -> None:
    """Combines listed entries into rows of the result of a column."""
    column, source = batch.column, batch.source
    result = job.results[index]
    out_bytes = result.row_bytes
    out = result.address + batch.first * out_bytes
    dim = source.table_dim
    row_bytes = dim * job.state.item_bytes
    alignment = out | out_bytes | row_bytes
    streamed = job.is_streamed != 0 and alignment % row_tiles.LINE_BYTES == 0
    arguments.bag_count = batch.count
    arguments.row_addresses = batch.addresses
    arguments.bag_starts = batch.starts
    arguments.out = out
    arguments.out_bytes = out_bytes
    arguments.dim = dim
    arguments.combiner = column.combiner
    arguments.weights = batch.weights
    arguments.norms = norms
    arguments.max_norm = column.max_norm
    arguments.divide_no_nan = column.divide_no_nan
    arguments.is_rounded_once = column.is_rounded_once
    arguments.has_one_each = int64(1) if _has_one_each(batch, count) else int64(0)
    arguments.is_streamed = int64(1) if streamed else int64(0)
    arguments.divisors = norms
    arguments.first_row = batch.first
    arguments.all_rows = job.batch_size
    for k in range(row_tiles.AHEAD):
        batch.addresses[count + k] = source.table
    call_by_tiles(
        column,
        dim,
        as_words(arguments),
        int64(GatherArgs.first_element),
        int64(GatherArgs.end_element),
    )
    if streamed:
        fence()


@jit
def gather_of(job: LookupJob, index: int) -> int:
    """The address of the `KeyedGather` of a column, 0 if its table is a plain one."""
    gathers = job.gathers
    if gathers == 0:
        return int64(0)
    gather = gathers[index]
    return gather if gather.index != 0 else int64(0)


@jit
def list_keys(gather: int, source: ColumnInputs) -> None:
    """Makes a source list keys in place of the addresses of rows."""
    if gather != 0:
        list_as_they_are(source)
        source.zeros = 0


@jit
def find_listed(gather: KeyedGather, batch: Any, count: int, workspace: Workspace) -> None:
    """Replaces listed keys by the addresses of their rows."""
    if gather != 0:
        find_addresses(gather, batch.addresses, count, as_words(order_in(workspace)))
        batch.source.table = gather.default


@jit
def copy_rows(batch: Any) -> int:
    """Lists the rows of a matrix themselves."""
    address = batch.source.table
    step = batch.source.row_bytes
    for row in range(batch.count):
        batch.addresses[row] = address + (batch.first + row) * step
        batch.starts[row] = row
    batch.starts[batch.count] = batch.count
    return batch.count


@jit
def _do_column(
    job: LookupJob,
    index: int,
    first: int,
    source: ColumnInputs,
    workspace: Workspace,
    arguments: GatherArgs,
) -> bool:
    """Does a column of the block that starts at row `first`.

    Returns False, having done anything or nothing, if it is not as it should be.
    """
    state = job.state
    column = state.columns[index]
    if source.batch_size != job.batch_size:
        return False
    count = min(job.block_rows, job.batch_size - first)
    is_copy = column.id_format == column_layout.COPY
    start, end = first, first + count
    if not is_copy:
        start, end = element_range(column, source, first, count)
    if end < start or not reserve(workspace, end - start + count, count):
        return False
    gather = as_record(KeyedGather, gather_of(job, index))
    list_keys(gather, source)
    batch = batch_in(workspace, column, source, first, count)
    if is_copy:
        entries = copy_rows(batch)
    elif column.sum_order == column_layout.AXIS:
        entries = list_all(batch, norms_in(workspace))
    elif column.sum_order == column_layout.SEQUENCE:
        entries = list_unfilled(batch, start, end)
    else:
        entries = list_entries(batch, start, end)
    if entries < 0:
        return False
    find_listed(gather, batch, entries, workspace)
    combine(batch, entries, norms_in(workspace), job, index, arguments)
    return True


@jit
def work(job: LookupJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    source = stack_record(ColumnInputs)
    workspace = stack_record(Workspace)
    arguments = stack_record(GatherArgs)
    open_workspace(workspace)
    status = tf_new_status()
    ctx = job.context
    state = job.state
    span = job.block_columns
    columns = job.column_count
    spans = (columns + span - 1) // span
    task, ids = next_task(job, helps), int64(0)
    while task >= 0:
        first, start = (task // spans) * job.block_rows, (task % spans) * span
        for index in range(start, min(start + span, columns)):
            done = take_source(int64(0), ctx, state, index, source, status, job.shared)
            if done and first == 0:
                ids += source.id_count
            done = done and _do_column(job, index, first, source, workspace, arguments)
            release(source)
            if not done:
                atomic_store(job.marks, index, int64(1))
                atomic_add(job, LookupJob.mark_count, int64(1))
        task = next_task(job, helps)
    atomic_add(job, LookupJob.id_count, ids)
    free_workspace(workspace)
    tf_delete_status(status)
