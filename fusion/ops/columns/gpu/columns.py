"""The attrs and inputs of columns, laid out for kernels of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.elements import rows_until
from fusion.ops.columns.cpu.inputs import SharedInputs, release, take_source
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.native.pointers import as_record
from fusion.runtime.tensorflow.dtypes import INT64


@jit
def count_boundaries(state: ColumnsState) -> int:
    """The boundaries of all columns."""
    total = int64(0)
    for index in range(state.column_count):
        total += state.columns[index].boundary_count
    return total


@jit
def put_columns(state: ColumnsState, target: int, limits_target: int) -> None:
    """Copies the words of columns, and their boundaries one after the other."""
    limits, written = state + 8 * state.boundaries_offset, int64(0)
    for index in range(state.column_count):
        column = state.columns[index]
        for k in range(ColumnAttrs.SIZE):
            store(target, k, load(column, k))
        for k in range(column.boundary_count):
            limit = load_as(limits, column.first_boundary + k, np.float32)
            store_as(limits_target, written, limit, np.float32)
            written += 1
        target += 8 * ColumnAttrs.SIZE


@jit
def put_sources(frame: op.Frame, target: int, limits: int, shared: SharedInputs) -> int:
    """Writes what the columns are given; gives the rows of the batch, unless the call failed.

    Or -1: they are those up to the last entry's row of each column.

    Args:
      target: the address of the first source.
      limits: where the boundaries are for the GPU.
    """
    ctx = frame.context
    state = as_record(ColumnsState, frame.state)
    status = frame.status
    if shared != 0:
        op.count_rows(frame, shared.entry_count)
    batch, source, count = int64(-1), target, state.column_count
    for index in range(count):
        sound = take_source(
            frame, ctx, state, int64(index), as_record(ColumnInputs, source), status, shared
        )
        release(source)  # the context holds the inputs
        if not sound:
            if not op.failed(frame):
                op.fail_column(frame, op.INVALID_ARGUMENT, ": an input cannot be had", int64(index))
            return batch
        if shared == 0:
            op.count_rows(frame, as_record(ColumnInputs, source).id_count)
        rows = as_record(ColumnInputs, source).batch_size
        if batch < 0:
            batch = rows
        elif rows >= 0 and rows != batch:
            text = " has %lld rows, but others have %lld"
            op.fail_column(frame, op.INVALID_ARGUMENT, text, int64(index), rows, batch)
            return batch
        as_record(ColumnInputs, source).boundaries = limits
        limits += 4 * state.columns[index].boundary_count
        source += 8 * ColumnInputs.SIZE
    return batch


@jit
def put_batch(state: ColumnsState, target: ColumnInputs, batch: int) -> None:
    """Writes the rows of the batch to all sources."""
    for index in range(state.column_count):
        target[index].batch_size = batch


@jit
def rows_to_last(device: Any, state: ColumnsState, source: ColumnInputs) -> int:
    """The rows up to that of the first column's last entry, for which the host waits."""
    column = state.columns[0]
    index = (source.id_count - 1) * source.entry_row_stride
    is_wide = column.rows_dtype == INT64
    address = source.entry_rows + index * (8 if is_wide else 4)
    aligned = address - address % 8
    words = device.words(aligned, 1)
    row = words[0]
    if not is_wide:
        row = int64(load_as(words.ctypes.data, (address - aligned) // 4, np.int32))
    return rows_until(row)
