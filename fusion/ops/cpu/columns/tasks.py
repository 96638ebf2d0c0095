"""The tasks of a call of an op that combines rows, and how threads share them.

See `lookup_kernel`.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops import column_layout, row_tiles
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.columns import element_range, list_entries, list_kept
from fusion.cpu_ops.dense.listing import list_all
from fusion.cpu_ops.elements import Batch
from fusion.cpu_ops.keys.gather import find_addresses
from fusion.cpu_ops.keys.layout import KeyedGather
from fusion.cpu_ops.row_tiles import GatherArgs
from fusion.cpu_ops.vectors import fence
from fusion.ops.cpu.columns.inputs import column_at, list_as_they_are, release, take_source
from fusion.ops.cpu.columns.layout import ColumnsState
from fusion.runtime.layout import Address, Flag, Int64, Layout
from fusion.runtime.native.atomic import atomic_add, atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at, load, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.threads.jobs import next_task
from fusion.runtime.threads.layout import Job


class LookupJob(Job):
    """What the tasks of a call share."""

    context: Address  # TF_OpKernelContext*
    state: Address  # of the op, see `ColumnsState`
    batch_size: Int64
    results: Address  # `ColumnResult` [columns]
    is_streamed: Flag  # whether it goes past the caches
    block_rows: Int64  # rows of a task
    block_columns: Int64
    column_count: Int64
    marks: Address  # of columns that need the slow path, int64 [columns]
    mark_count: Int64
    id_count: Int64  # of all columns, those that are shared in each
    shared: Address  # `SharedInputs`, or 0
    gathers: Address  # a `KeyedGather` for each column, zeros of a plain table; or 0


class ColumnResult(Layout):
    """Where the result of a column goes."""

    address: Address  # of its first element
    row_bytes: Int64  # from a row to the next


#: Entries, and rows, that a thread reserves at first.
_LEAST_CAPACITY = 4096


class Workspace(Layout):
    """A thread's memory for the entries that it lists."""

    memory: Address  # from malloc, or 0
    entry_capacity: Int64
    row_capacity: Int64


#: Its sections.
_ADDRESSES, _WEIGHTS, _ORDER, _NORMS, _STARTS = range(5)


@jit
def open_workspace(workspace: int) -> None:
    """Begins with no memory."""
    store(workspace, Workspace.memory, 0)


@jit
def reserve(workspace: int, entries: int, rows: int) -> bool:
    """Allocates what so many entries and rows need; returns whether there is the memory."""
    if (
        load(workspace, Workspace.memory) != 0
        and entries <= load(workspace, Workspace.entry_capacity)
        and rows <= load(workspace, Workspace.row_capacity)
    ):
        return True
    free_workspace(workspace)
    entries, rows = max(entries, int64(_LEAST_CAPACITY)), max(rows, int64(_LEAST_CAPACITY))
    size = 8 * (4 * (entries + row_tiles.AHEAD) + rows + 2)
    store(workspace, Workspace.memory, c_malloc(size))
    store(workspace, Workspace.entry_capacity, entries)
    store(workspace, Workspace.row_capacity, rows)
    return load(workspace, Workspace.memory) != 0


@jit
def free_workspace(workspace: int) -> None:
    """Gives the memory back."""
    if load(workspace, Workspace.memory) != 0:
        c_free(load(workspace, Workspace.memory))
        store(workspace, Workspace.memory, 0)


@jit
def _section(workspace: int, index: int) -> int:
    """The address of a section: of one word for each entry, but for starts, which are the last."""
    return load(workspace, Workspace.memory) + 8 * index * (
        load(workspace, Workspace.entry_capacity) + row_tiles.AHEAD
    )


@jit
def batch_in(workspace: int, column: int, source: int, first: int, count: int) -> Any:
    """The rows [first, first + count) of a column, to be listed in a thread's memory."""
    addresses, starts = _section(workspace, _ADDRESSES), _section(workspace, _STARTS)
    return Batch(column, source, first, count, addresses, starts, _section(workspace, _WEIGHTS))


@jit
def order_in(workspace: int) -> int:
    """The address of the order of entries."""
    return _section(workspace, _ORDER)


@jit
def slots_in(workspace: int, bits: int) -> int:
    """The address of `2**bits` int32, zero, where the order and norms of entries would be.

    That must be less than four times the entries that are reserved.
    """
    slots = _section(workspace, _ORDER)
    for k in range((int64(1) << bits) // 2):
        store(slots, k, 0)
    return slots


@jit
def lists_in(workspace: int) -> tuple[int, int, int]:
    """Three lists of a word per entry, where entries, their order and norms would be."""
    addresses, order = _section(workspace, _ADDRESSES), _section(workspace, _ORDER)
    return addresses, order, _section(workspace, _NORMS)


@jit
def norms_in(workspace: int) -> int:
    """The address of the norms of rows."""
    return _section(workspace, _NORMS)


@jit
def _has_one_each(batch: Any, count: int) -> bool:
    """Whether every row has one entry."""
    if count != batch.count:
        return False
    different = int64(0)
    for row in range(batch.count):
        different |= load(batch.starts, row) ^ row
    return different == 0


@jit
def call_by_tiles(column: int, dim: int, arguments: int, first_word: int, end_word: int) -> None:
    """Calls a column's kernels for its rows, tile by tile; the words tell them which."""
    first, tile = int64(0), load(column, ColumnAttrs.tile_width)
    while tile > 0 and dim - first > tile:
        store(arguments, first_word, first)
        store(arguments, end_word, first + tile)
        call_at(load(column, ColumnAttrs.tile_kernel), arguments)
        first += tile
    if first < dim:
        store(arguments, first_word, first)
        store(arguments, end_word, dim)
        call_at(load(column, ColumnAttrs.tail_kernel), arguments)


@jit
def combine(batch: Any, count: int, norms: int, job: int, index: int, arguments: int) -> None:
    """Combines listed entries into rows of the result of a column."""
    column, source = batch.column, batch.source
    result = load(job, LookupJob.results) + 8 * ColumnResult.SIZE * index
    out_bytes = load(result, ColumnResult.row_bytes)
    out = load(result, ColumnResult.address) + batch.first * out_bytes
    dim = load(source, ColumnInputs.table_dim)
    row_bytes = dim * load(load(job, LookupJob.state), ColumnsState.item_bytes)
    alignment = out | out_bytes | row_bytes
    streamed = load(job, LookupJob.is_streamed) != 0 and alignment % row_tiles.LINE_BYTES == 0
    store(arguments, GatherArgs.bag_count, batch.count)
    store(arguments, GatherArgs.row_addresses, batch.addresses)
    store(arguments, GatherArgs.bag_starts, batch.starts)
    store(arguments, GatherArgs.out, out)
    store(arguments, GatherArgs.out_bytes, out_bytes)
    store(arguments, GatherArgs.dim, dim)
    store(arguments, GatherArgs.combiner, load(column, ColumnAttrs.combiner))
    store(arguments, GatherArgs.weights, batch.weights)
    store(arguments, GatherArgs.norms, norms)
    store(arguments, GatherArgs.max_norm, load(column, ColumnAttrs.max_norm))
    store(arguments, GatherArgs.divide_no_nan, load(column, ColumnAttrs.divide_no_nan))
    store(arguments, GatherArgs.is_rounded_once, load(column, ColumnAttrs.is_rounded_once))
    store(arguments, GatherArgs.has_one_each, int64(1) if _has_one_each(batch, count) else int64(0))
    store(arguments, GatherArgs.is_streamed, int64(1) if streamed else int64(0))
    store(arguments, GatherArgs.divisors, norms)
    store(arguments, GatherArgs.first_row, batch.first)
    store(arguments, GatherArgs.all_rows, load(job, LookupJob.batch_size))
    for k in range(row_tiles.AHEAD):
        store(batch.addresses, count + k, load(source, ColumnInputs.table))
    call_by_tiles(
        column, dim, arguments, int64(GatherArgs.first_element), int64(GatherArgs.end_element)
    )
    if streamed:
        fence()


@jit
def gather_of(job: int, index: int) -> int:
    """The address of the `KeyedGather` of a column, 0 if its table is a plain one."""
    gathers = load(job, LookupJob.gathers)
    if gathers == 0:
        return int64(0)
    gather = gathers + 8 * KeyedGather.SIZE * index
    return gather if load(gather, KeyedGather.index) != 0 else int64(0)


@jit
def list_keys(gather: int, source: int) -> None:
    """Has keys listed in place of the addresses of rows."""
    if gather != 0:
        list_as_they_are(source)
        store(source, ColumnInputs.zeros, 0)


@jit
def find_listed(gather: int, batch: Any, count: int, workspace: int) -> None:
    """Makes of listed keys the addresses of their rows."""
    if gather != 0:
        find_addresses(gather, batch.addresses, count, order_in(workspace))
        store(batch.source, ColumnInputs.table, load(gather, KeyedGather.default))


@jit
def copy_rows(batch: Any) -> int:
    """Lists the rows of a matrix themselves."""
    address = load(batch.source, ColumnInputs.table)
    step = load(batch.source, ColumnInputs.row_bytes)
    for row in range(batch.count):
        store(batch.addresses, row, address + (batch.first + row) * step)
        store(batch.starts, row, row)
    store(batch.starts, batch.count, batch.count)
    return batch.count


@jit
def _do_column(
    job: int, index: int, first: int, source: int, workspace: int, arguments: int
) -> bool:
    """Does a column of the block that starts at row `first`.

    Returns False, having done anything or nothing, if it is not as it should be.
    """
    state = load(job, LookupJob.state)
    column = column_at(state, index)
    if load(source, ColumnInputs.batch_size) != load(job, LookupJob.batch_size):
        return False
    count = min(load(job, LookupJob.block_rows), load(job, LookupJob.batch_size) - first)
    is_copy = load(column, ColumnAttrs.id_format) == column_layout.COPY
    start, end = first, first + count
    if not is_copy:
        start, end = element_range(column, source, first, count)
    if end < start or not reserve(workspace, end - start + count, count):
        return False
    gather = gather_of(job, index)
    list_keys(gather, source)
    batch = batch_in(workspace, column, source, first, count)
    if is_copy:
        entries = copy_rows(batch)
    elif load(column, ColumnAttrs.sum_order) == column_layout.AXIS:
        entries = list_all(batch, norms_in(workspace))
    elif load(column, ColumnAttrs.sum_order) == column_layout.SEQUENCE:
        entries = list_kept(batch, start, end)
    else:
        entries = list_entries(batch, start, end)
    if entries < 0:
        return False
    find_listed(gather, batch, entries, workspace)
    combine(batch, entries, norms_in(workspace), job, index, arguments)
    return True


@jit
def work(job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    source = stack_words(ColumnInputs.SIZE)
    workspace = stack_words(Workspace.SIZE)
    arguments = stack_words(GatherArgs.SIZE)
    open_workspace(workspace)
    status = tf_new_status()
    ctx = load(job, LookupJob.context)
    state = load(job, LookupJob.state)
    span = load(job, LookupJob.block_columns)
    columns = load(job, LookupJob.column_count)
    spans = (columns + span - 1) // span
    task, ids = next_task(job, helps), int64(0)
    while task >= 0:
        first, start = (task // spans) * load(job, LookupJob.block_rows), (task % spans) * span
        for index in range(start, min(start + span, columns)):
            done = take_source(
                int64(0), ctx, state, index, source, status, load(job, LookupJob.shared)
            )
            if done and first == 0:
                ids += load(source, ColumnInputs.id_count)
            done = done and _do_column(job, index, first, source, workspace, arguments)
            release(source)
            if not done:
                atomic_store(load(job, LookupJob.marks), index, int64(1))
                atomic_add(job, LookupJob.mark_count, int64(1))
        task = next_task(job, helps)
    atomic_add(job, LookupJob.id_count, ids)
    free_workspace(workspace)
    tf_delete_status(status)
