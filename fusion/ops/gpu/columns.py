"""The attrs and inputs of columns, laid out for kernels of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.cpu_ops.elements import rows_until
from fusion.ops.cpu.columns.inputs import SharedInputs, column_at, release, take_source
from fusion.ops.cpu.columns.layout import ColumnsState
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail_column
from fusion.runtime.native.frame import context, count_rows, failed, kernel_state, status_of
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.tensorflow.dtypes import INT64


@jit
def count_boundaries(state: int) -> int:
    """The boundaries of all columns."""
    total = int64(0)
    for index in range(load(state, ColumnsState.column_count)):
        total += load(column_at(state, index), ColumnAttrs.boundary_count)
    return total


@jit
def put_columns(state: int, target: int, limits_target: int) -> None:
    """Copies the words of columns, and their boundaries one after the other."""
    limits, written = state + 8 * load(state, ColumnsState.boundaries_offset), int64(0)
    for index in range(load(state, ColumnsState.column_count)):
        column = column_at(state, index)
        for k in range(ColumnAttrs.SIZE):
            store(target, k, load(column, k))
        for k in range(load(column, ColumnAttrs.boundary_count)):
            limit = load_as(limits, load(column, ColumnAttrs.first_boundary) + k, np.float32)
            store_as(limits_target, written, limit, np.float32)
            written += 1
        target += 8 * ColumnAttrs.SIZE


@jit
def put_sources(frame: int, target: int, limits: int, shared: int) -> int:
    """Writes what the columns are given; gives the rows of the batch, unless the call failed.

    Or -1: they are those up to the last entry's row of each column.

    Args:
      target: the address of the first source.
      limits: where the boundaries are for the GPU.
    """
    ctx, state, status = context(frame), kernel_state(frame), status_of(frame)
    if shared != 0:
        count_rows(frame, load(shared, SharedInputs.entry_count))
    batch, source, count = int64(-1), target, load(state, ColumnsState.column_count)
    for index in range(count):
        sound = take_source(frame, ctx, state, int64(index), source, status, shared)
        release(source)  # the context holds the inputs
        if not sound:
            if not failed(frame):
                fail_column(frame, INVALID_ARGUMENT, ": an input cannot be had", int64(index))
            return batch
        if shared == 0:
            count_rows(frame, load(source, ColumnInputs.id_count))
        rows = load(source, ColumnInputs.batch_size)
        if batch < 0:
            batch = rows
        elif rows >= 0 and rows != batch:
            text = " has %lld rows, but others have %lld"
            fail_column(frame, INVALID_ARGUMENT, text, int64(index), rows, batch)
            return batch
        store(source, ColumnInputs.boundaries, limits)
        limits += 4 * load(column_at(state, index), ColumnAttrs.boundary_count)
        source += 8 * ColumnInputs.SIZE
    return batch


@jit
def put_batch(state: int, target: int, batch: int) -> None:
    """Writes the rows of the batch to all sources."""
    for index in range(load(state, ColumnsState.column_count)):
        store(target + 8 * ColumnInputs.SIZE * index, ColumnInputs.batch_size, batch)


@jit
def rows_to_last(device: Any, state: int, source: int) -> int:
    """The rows up to that of the first column's last entry, for which the host waits."""
    column = column_at(state, int64(0))
    index = (load(source, ColumnInputs.id_count) - 1) * load(source, ColumnInputs.entry_row_stride)
    is_wide = load(column, ColumnAttrs.rows_dtype) == INT64
    address = load(source, ColumnInputs.entry_rows) + index * (8 if is_wide else 4)
    aligned = address - address % 8
    words = device.words(aligned, 1)
    row = words[0]
    if not is_wide:
        row = int64(load_as(words.ctypes.data, (address - aligned) // 4, np.int32))
    return rows_until(row)
