"""The slow path for columns whose rows are combined: unsorted ones, and those with an error."""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.columns import element_range, list_entries, list_unfilled, list_unsorted
from fusion.cpu_ops.elements import id_at, integer_at, is_dropped, is_ignored
from fusion.cpu_ops.row_tiles import GatherArgs
from fusion.ops.columns.cpu import tasks
from fusion.ops.columns.cpu.inputs import SharedInputs, release, take_source
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.cpu.tasks import LookupJob, Workspace
from fusion.ops.columns.cpu_kernels.listing import list_all
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.schema.attributes import LAST_ROW


@jit
def is_by_row(column: ColumnAttrs) -> bool:
    """Whether each element has the index of its row."""
    form = column.id_format
    return form in (column_layout.INDICES, column_layout.ROW_IDS)


@jit
def _check_splits(frame: int, index: int, column: ColumnAttrs, source: ColumnInputs) -> None:
    rows, dtype = source.entry_rows, column.rows_dtype
    total, last = source.id_count, int64(0)
    batch = source.batch_size
    for row in range(batch + 1):
        split = integer_at(rows, row, dtype)
        if split < last or split > total or (row == 0 and split != 0):
            text = ": row split %lld is %lld, after %lld, for %lld ids"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(row), split, last, total)
            return
        last = split
    if last != total:
        text = ": the last row split is %lld, but there are %lld ids"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, last, total)


@jit
def _check_listed(frame: int, index: int, column: ColumnAttrs, source: ColumnInputs) -> None:
    rows = source.entry_rows
    dtype = column.rows_dtype
    last = int64(0)
    total, table_rows = source.id_count, source.table_rows
    for row in range(source.batch_size + 1):
        split = integer_at(rows, row, dtype)
        if split < last or split > total:
            text = ": row split %lld is %lld, after %lld, for %lld entries"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(row), split, last, total)
            return
        last = split
    for k in range(integer_at(rows, int64(0), dtype), last):
        number = id_at(column, source, int64(k), int64(0))
        if number < 0 or number >= table_rows:
            text = ": unique_idxs[%lld] = %lld is not in [0, %lld), the rows"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(k), number, table_rows)
            return


@jit
def _row_of(batch: Any, element: int) -> int:
    """The row of the batch that an element belongs to."""
    column, source = batch.column, batch.source
    rows, dtype = source.entry_rows, column.rows_dtype
    if is_by_row(column):
        return integer_at(rows, element * source.entry_row_stride, dtype)
    if column.id_format == column_layout.DENSE:
        return element // max(source.id_columns, int64(1))
    row = int64(0)
    while integer_at(rows, row + 1, dtype) <= element:
        row += 1
    return row


@jit
def _check_elements(frame: int, index: int, batch: Any) -> None:
    """Reports an element that is out of bounds or in the wrong order, if there is one."""
    column, source = batch.column, batch.source
    by_row, sorted_rows = is_by_row(column), column.row_count == LAST_ROW
    width, before = max(source.id_columns, int64(1)), int64(0)
    rows, dtype = source.entry_rows, column.rows_dtype
    is_axis = column.sum_order == column_layout.AXIS
    for k in range(source.id_count):
        if by_row:
            row = integer_at(rows, k * source.entry_row_stride, dtype)
            if sorted_rows and row < before:
                text = ": row %lld of entry %lld is less than %lld before it"
                op.fail_column(frame, op.INVALID_ARGUMENT, text, index, row, int64(k), before)
                return
            before = max(before, row)
        if is_ignored(column, source, k) and not is_axis:
            continue
        number = id_at(column, source, k, k % width if not by_row else int64(0))
        if is_dropped(column, source, number, k):
            continue
        # Behind the last row there are only rows that are out of order.
        if by_row and (row < 0 or (row >= batch.count and not sorted_rows)):
            text = (
                ": row %lld of entry %lld is not in [0, %lld), the rows of the batch; "
                "its id is %lld"
            )
            op.fail_column(
                frame, op.INVALID_ARGUMENT, text, index, row, int64(k), batch.count, number
            )
            return
        if number < 0 and source.table == 0:
            text = ": indices[%lld] = %lld is negative, in row %lld of the batch"
            row = _row_of(batch, int64(k))
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(k), number, row)
            return
        if number < 0 or number >= source.table_rows:
            text = (
                ": indices[%lld] = %lld is not in [0, %lld), the rows of the table, "
                "in row %lld of the batch"
            )
            end, row = source.table_rows, _row_of(batch, int64(k))
            op.fail_column(frame, op.INVALID_ARGUMENT, text, index, int64(k), number, end, row)
            return


@jit
def report_error(frame: op.Frame, index: int, batch: Any) -> None:
    """Reports what is wrong with a column whose entries cannot be listed."""
    column, source = batch.column, batch.source
    form = column.id_format
    if form == column_layout.LISTED:
        _check_listed(frame, index, column, source)
    elif form == column_layout.ROW_SPLITS:
        _check_splits(frame, index, column, source)
    if not op.failed(frame) and form != column_layout.LISTED:
        _check_elements(frame, index, batch)
    if op.failed(frame):
        return
    number = max(column.default_id, int64(0))
    if column.fill_empty_row != 0 and number >= source.table_rows:
        text = ": the id %lld of empty rows is not in [0, %lld), the rows of the table"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, number, source.table_rows)
        return
    op.fail_column(frame, op.INTERNAL, " cannot be computed; was it changed meanwhile?", index)


@jit
def list_column(
    frame: op.Frame,
    index: int,
    source: ColumnInputs,
    gather: int,
    workspace: Workspace,
    shared: SharedInputs,
    rows: int,
) -> tuple[Any, int]:
    """Lists a whole column, in any order of its entries, or reports what is wrong with it.

    Args:
      source: out, the address of its `ColumnInputs`.
      gather: that of its `KeyedGather`, or 0.
      shared: see `LookupJob`.
      rows: how many there have to be, or -1.

    Returns:
      The listed rows, and the number of entries, negative if that has failed.
    """
    state = as_record(ColumnsState, frame.state)
    column = state.columns[index]
    is_sound = take_source(frame, frame.context, state, index, source, frame.status, shared)
    row_count = source.batch_size if is_sound else int64(0)
    if is_sound and rows >= 0 and row_count != rows:
        text = " has %lld rows, but others have %lld"
        op.fail_column(frame, op.INVALID_ARGUMENT, text, index, row_count, rows)
    rows = row_count
    batch = tasks.batch_in(workspace, column, source, int64(0), rows)
    if op.failed(frame):
        return batch, int64(-1)
    if not tasks.reserve(workspace, source.id_count + rows, rows + 1):
        op.fail_column(frame, op.RESOURCE_EXHAUSTED, ": no memory for %lld rows", index, rows)
        return batch, int64(-1)
    tasks.list_keys(gather, source)
    batch = tasks.batch_in(workspace, column, source, int64(0), rows)
    if column.id_format == column_layout.COPY:
        count = tasks.copy_rows(batch)
    elif column.sum_order == column_layout.AXIS:
        count = list_all(batch, tasks.norms_in(workspace))
    else:
        start, end = element_range(column, source, int64(0), rows)
        count = int64(-1)
        if end >= start:
            is_sequence = column.sum_order == column_layout.SEQUENCE
            count = (
                list_unfilled(batch, start, end) if is_sequence else list_entries(batch, start, end)
            )
        if count < 0 and is_by_row(column) and column.row_count != LAST_ROW:
            count = list_unsorted(batch, as_words(tasks.order_in(workspace)))
    if count < 0:
        report_error(frame, index, batch)
    return batch, count


@jit
def _finish(
    frame: op.Frame, job: LookupJob, index: int, source: ColumnInputs, workspace: Workspace
) -> None:
    gather = as_record(KeyedGather, tasks.gather_of(job, index))
    shared = job.shared
    rows = job.batch_size
    batch, count = list_column(frame, index, source, gather, workspace, shared, rows)
    if op.failed(frame):
        return
    tasks.find_listed(gather, batch, count, workspace)
    arguments = stack_record(GatherArgs)
    tasks.combine(batch, count, tasks.norms_in(workspace), job, index, arguments)


@jit
def finish_column(frame: op.Frame, job: LookupJob, index: int, source: ColumnInputs) -> None:
    """Does a whole column, in any order of its entries, or reports what is wrong with it."""
    workspace = stack_record(Workspace)
    tasks.open_workspace(workspace)
    _finish(frame, job, index, source, workspace)
    tasks.free_workspace(workspace)
    release(source)
