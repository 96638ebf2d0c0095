"""Columns whose rows are combined that need a second look: unsorted ones, those with an error."""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.columns import element_range, list_entries, list_kept, list_unsorted
from fusion.cpu_ops.dense.listing import list_all
from fusion.cpu_ops.elements import id_at, integer_at, is_dropped, is_ignored
from fusion.cpu_ops.row_tiles import GatherArgs
from fusion.ops.cpu.columns import tasks
from fusion.ops.cpu.columns.inputs import column_at, release, take_source
from fusion.ops.cpu.columns.tasks import LookupJob, Workspace
from fusion.runtime.native.errors import INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, fail_column
from fusion.runtime.native.frame import context, failed, kernel_state, status_of
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words


@jit
def is_by_row(column: int) -> bool:
    """Whether each element has the number of its row."""
    form = load(column, ColumnAttrs.id_format)
    return form in (column_layout.INDICES, column_layout.ROW_IDS)


@jit
def _check_splits(frame: int, index: int, column: int, source: int) -> None:
    rows, kind = load(source, ColumnInputs.entry_rows), load(column, ColumnAttrs.rows_dtype)
    total, last = load(source, ColumnInputs.id_count), int64(0)
    batch = load(source, ColumnInputs.batch_size)
    for row in range(batch + 1):
        split = integer_at(rows, row, kind)
        if split < last or split > total or (row == 0 and split != 0):
            text = ": row split %lld is %lld, after %lld, for %lld ids"
            fail_column(frame, INVALID_ARGUMENT, text, index, int64(row), split, last, total)
            return
        last = split
    if last != total:
        text = ": the last row split is %lld, but there are %lld ids"
        fail_column(frame, INVALID_ARGUMENT, text, index, last, total)


@jit
def _check_listed(frame: int, index: int, column: int, source: int) -> None:
    rows = load(source, ColumnInputs.entry_rows)
    kind = load(column, ColumnAttrs.rows_dtype)
    last = int64(0)
    total, table_rows = load(source, ColumnInputs.id_count), load(source, ColumnInputs.table_rows)
    for row in range(load(source, ColumnInputs.batch_size) + 1):
        split = integer_at(rows, row, kind)
        if split < last or split > total:
            text = ": row split %lld is %lld, after %lld, for %lld entries"
            fail_column(frame, INVALID_ARGUMENT, text, index, int64(row), split, last, total)
            return
        last = split
    for k in range(integer_at(rows, int64(0), kind), last):
        number = id_at(column, source, int64(k), int64(0))
        if number < 0 or number >= table_rows:
            text = ": unique_idxs[%lld] = %lld is not in [0, %lld), the rows"
            fail_column(frame, INVALID_ARGUMENT, text, index, int64(k), number, table_rows)
            return


@jit
def _row_of(batch: Any, element: int) -> int:
    """The row of the batch that an element belongs to."""
    column, source = batch.column, batch.source
    rows, kind = load(source, ColumnInputs.entry_rows), load(column, ColumnAttrs.rows_dtype)
    if is_by_row(column):
        return integer_at(rows, element * load(source, ColumnInputs.entry_row_stride), kind)
    if load(column, ColumnAttrs.id_format) == column_layout.DENSE:
        return element // max(load(source, ColumnInputs.id_columns), int64(1))
    row = int64(0)
    while integer_at(rows, row + 1, kind) <= element:
        row += 1
    return row


@jit
def _check_elements(frame: int, index: int, batch: Any) -> None:
    """Says which element is out of bounds, or in the wrong order, if one is."""
    column, source = batch.column, batch.source
    by_row, sorted_rows = is_by_row(column), load(column, ColumnAttrs.ends_at_last_row) != 0
    width, before = max(load(source, ColumnInputs.id_columns), int64(1)), int64(0)
    rows, kind = load(source, ColumnInputs.entry_rows), load(column, ColumnAttrs.rows_dtype)
    is_axis = load(column, ColumnAttrs.sum_order) == column_layout.AXIS
    for k in range(load(source, ColumnInputs.id_count)):
        if by_row:
            row = integer_at(rows, k * load(source, ColumnInputs.entry_row_stride), kind)
            if sorted_rows and row < before:
                text = ": row %lld of entry %lld is less than %lld before it"
                fail_column(frame, INVALID_ARGUMENT, text, index, row, int64(k), before)
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
            fail_column(frame, INVALID_ARGUMENT, text, index, row, int64(k), batch.count, number)
            return
        if number < 0 and load(source, ColumnInputs.table) == 0:
            text = ": indices[%lld] = %lld is negative, in row %lld of the batch"
            row = _row_of(batch, int64(k))
            fail_column(frame, INVALID_ARGUMENT, text, index, int64(k), number, row)
            return
        if number < 0 or number >= load(source, ColumnInputs.table_rows):
            text = (
                ": indices[%lld] = %lld is not in [0, %lld), the rows of the table, "
                "in row %lld of the batch"
            )
            end, row = load(source, ColumnInputs.table_rows), _row_of(batch, int64(k))
            fail_column(frame, INVALID_ARGUMENT, text, index, int64(k), number, end, row)
            return


@jit
def report_error(frame: int, index: int, batch: Any) -> None:
    """Says what is wrong with a column whose entries cannot be listed."""
    column, source = batch.column, batch.source
    form = load(column, ColumnAttrs.id_format)
    if form == column_layout.LISTED:
        _check_listed(frame, index, column, source)
    elif form == column_layout.ROW_SPLITS:
        _check_splits(frame, index, column, source)
    if not failed(frame) and form != column_layout.LISTED:
        _check_elements(frame, index, batch)
    if failed(frame):
        return
    number = max(load(column, ColumnAttrs.default_id), int64(0))
    if load(column, ColumnAttrs.fill_empty_row) != 0 and number >= load(
        source, ColumnInputs.table_rows
    ):
        text = ": the id %lld of empty rows is not in [0, %lld), the rows of the table"
        fail_column(
            frame, INVALID_ARGUMENT, text, index, number, load(source, ColumnInputs.table_rows)
        )
        return
    fail_column(frame, INTERNAL, " cannot be computed; was it changed meanwhile?", index)


@jit
def list_column(
    frame: int, index: int, source: int, gather: int, workspace: int, shared: int, rows: int
) -> tuple[Any, int]:
    """Lists a whole column, in any order of its entries, or says what is wrong with it.

    Args:
      source: out, the address of its `ColumnInputs`.
      gather: that of its `KeyedGather`, or 0.
      shared: see `LookupJob`.
      rows: how many there have to be, or -1.

    Returns:
      The listed rows, and the number of entries, negative if that has failed.
    """
    state = kernel_state(frame)
    column = column_at(state, index)
    is_sound = take_source(frame, context(frame), state, index, source, status_of(frame), shared)
    found = load(source, ColumnInputs.batch_size) if is_sound else int64(0)
    if is_sound and rows >= 0 and found != rows:
        text = " has %lld rows, but others have %lld"
        fail_column(frame, INVALID_ARGUMENT, text, index, found, rows)
    rows = found
    batch = tasks.batch_in(workspace, column, source, int64(0), rows)
    if failed(frame):
        return batch, int64(-1)
    if not tasks.reserve(workspace, load(source, ColumnInputs.id_count) + rows, rows + 1):
        fail_column(frame, RESOURCE_EXHAUSTED, ": no memory for %lld rows", index, rows)
        return batch, int64(-1)
    tasks.list_keys(gather, source)
    batch = tasks.batch_in(workspace, column, source, int64(0), rows)
    if load(column, ColumnAttrs.id_format) == column_layout.COPY:
        count = tasks.copy_rows(batch)
    elif load(column, ColumnAttrs.sum_order) == column_layout.AXIS:
        count = list_all(batch, tasks.norms_in(workspace))
    else:
        start, end = element_range(column, source, int64(0), rows)
        count = int64(-1)
        if end >= start:
            is_sequence = load(column, ColumnAttrs.sum_order) == column_layout.SEQUENCE
            count = list_kept(batch, start, end) if is_sequence else list_entries(batch, start, end)
        if count < 0 and is_by_row(column) and load(column, ColumnAttrs.ends_at_last_row) == 0:
            count = list_unsorted(batch, tasks.order_in(workspace))
    if count < 0:
        report_error(frame, index, batch)
    return batch, count


@jit
def _finish(frame: int, job: int, index: int, source: int, workspace: int) -> None:
    gather, shared = tasks.gather_of(job, index), load(job, LookupJob.shared)
    rows = load(job, LookupJob.batch_size)
    batch, count = list_column(frame, index, source, gather, workspace, shared, rows)
    if failed(frame):
        return
    tasks.find_listed(gather, batch, count, workspace)
    arguments = stack_words(GatherArgs.SIZE)
    tasks.combine(batch, count, tasks.norms_in(workspace), job, index, arguments)


@jit
def finish_column(frame: int, job: int, index: int, source: int) -> None:
    """Does a whole column, in any order of its entries, or says what is wrong with it."""
    workspace = stack_words(Workspace.SIZE)
    tasks.open_workspace(workspace)
    _finish(frame, job, index, source, workspace)
    tasks.free_workspace(workspace)
    release(source)
