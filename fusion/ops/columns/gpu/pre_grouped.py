"""GroupedEmbeddingPreLookUp on a GPU: all columns in a few launches, one wait for their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.host.device_methods import copy_in, on_host, report_error
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import PreLookupCall
from fusion.gpu_ops.layout.records import NumberedEntries
from fusion.ops.columns.cpu.inputs import SharedInputs
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.gpu.columns import (
    count_boundaries,
    put_batch,
    put_columns,
    put_sources,
    rows_to_last,
)
from fusion.ops.columns.gpu_steps.listing import PreCall, list_entries, number_entries, split_rows
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, pointer
from fusion.runtime.native.pointers import as_record
from fusion.runtime.tensorflow.dtypes import INT64
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MAX_ENTRIES

_list_entries, _number_entries = on_host(list_entries), on_host(number_entries)
_split_rows, _result_words = on_host(split_rows), jit(call_of.result_words)


@jit
def _put_firsts(state: ColumnsState, call: Array, sources: int, elements: int, batch: int) -> None:
    """Writes for each column the elements of those before it, then the starts of entries."""
    count = state.column_count
    firsts = elements + count + 1
    for index in range(count):
        ids = call[sources + index * ColumnInputs.SIZE + ColumnInputs.id_count]
        fills = state.columns[index].fill_empty_row != 0
        call[elements + index + 1] = call[elements + index] + ids
        call[firsts + index + 1] = call[firsts + index] + ids + (batch if fills else int64(0))


@jit
def _fills_rows(state: ColumnsState) -> bool:
    """Whether any column fills empty rows."""
    fills = int64(0)
    for index in range(state.column_count):
        fills |= state.columns[index].fill_empty_row
    return fills != 0


@jit
def _described(frame: op.Frame, device: Any, call: Array, boundaries: int) -> Any:
    """The call of all columns, in memory of the GPU."""
    state = as_record(ColumnsState, frame.state)
    count, size = state.column_count, int64(call.shape[0])
    base, host = device.reserve(8 * size), call.ctypes.data
    columns = int64(PreLookupCall.SIZE)
    sources = columns + count * ColumnAttrs.SIZE
    elements = sources + count * ColumnInputs.SIZE
    firsts, limits = elements + count + 1, elements + 2 * (count + 1)
    for k in range(size):
        call[k] = 0
    put_columns(state, host + 8 * columns, host + 8 * limits)
    batch = put_sources(
        frame, host + 8 * sources, base + 8 * limits, as_record(SharedInputs, int64(0))
    )
    results = device.filled(8 * _result_words(count), 0)
    if batch < 0 and not op.failed(frame):
        if _fills_rows(state):  # what there is to list depends on it
            batch = rows_to_last(device, state, as_record(ColumnInputs, host + 8 * sources))
        else:
            call[PreLookupCall.is_batch_open], batch = 1, int64(1)
    if not op.failed(frame):
        put_batch(state, as_record(ColumnInputs, host + 8 * sources), batch)
        _put_firsts(state, call, sources, elements, batch)
    call[PreLookupCall.column_count], call[PreLookupCall.batch_size] = count, batch
    call[PreLookupCall.columns], call[PreLookupCall.inputs] = base + 8 * columns, base + 8 * sources
    starts, entry_starts = base + 8 * elements, base + 8 * firsts
    call[PreLookupCall.element_offsets], call[PreLookupCall.entry_offsets] = starts, entry_starts
    call[PreLookupCall.results] = results
    copy_in(device, base, host, 8 * size)
    return PreCall(base, results, count, batch, call[elements + count], call[firsts + count])


@jit
def _new_keys(frame: op.Frame, device: Any, results: Array, count: int, host: Array) -> int:
    """Allocates the distinct ids of each column; gives where their addresses are for the GPU."""
    state = as_record(ColumnsState, frame.state)
    for index in range(count):
        number = results[ErrorRecord.SIZE + count + index]
        is_wide = state.columns[index].keys_dtype == INT64
        item = int64(8) if is_wide else int64(4)
        host[index] = op.new_output(frame, index, int64(1), number, int64(1), item)
    keys = device.reserve(8 * count)
    copy_in(device, keys, host.ctypes.data, 8 * count)
    return keys


@jit
def _check_rows(frame: op.Frame, columns: int, batch: int) -> None:
    """Refuses calls whose rows have no int32 numbers."""
    if columns * (batch + 1) > int64(MAX_ENTRIES) and not op.failed(frame):
        text = "%lld columns of %lld rows are more than the %lld rows that can be numbered"
        op.fail(frame, op.INVALID_ARGUMENT, text, columns, batch, int64(MAX_ENTRIES))


@jit
def _batch_of_columns(frame: op.Frame, call: Any, is_open: bool, results: Array) -> int:
    """The rows of the batch; reports columns that end with their last entry and have others."""
    first = ErrorRecord.SIZE + 3 * call.columns
    state = as_record(ColumnsState, frame.state)
    batch = results[first] if is_open else call.batch
    for index in range(call.columns):
        to_last = state.columns[index].row_count == LAST_ROW
        if to_last and results[first + index] != batch and not op.failed(frame):
            text = " has %lld rows, but others have %lld"
            op.fail_column(
                frame, op.INVALID_ARGUMENT, text, int64(index), results[first + index], batch
            )
    return batch


@jit
def _split_open(frame: op.Frame, device: Any, call: Any, listed: Any, batch: int) -> None:
    """Allocates and writes the row splits of a call with a number of rows."""
    _check_rows(frame, call.columns, batch)
    if op.failed(frame):
        return
    splits = op.new_output(frame, call.columns + 1, int64(2), call.columns, batch + 1, int64(4))
    if not op.failed(frame):
        _split_rows(device, call, listed, batch, splits)


@jit
def _prepare(frame: op.Frame, device: Any, host: Array, boundaries: int) -> None:
    state = as_record(ColumnsState, frame.state)
    count = state.column_count
    call = _described(frame, device, host, boundaries)
    if call.entries > int64(MAX_ENTRIES):
        text = "%lld entries are more than the %lld that can be numbered"
        op.fail(frame, op.INVALID_ARGUMENT, text, call.entries, int64(MAX_ENTRIES))
    _check_rows(frame, call.columns, call.batch)
    if op.failed(frame):
        return
    one, four, is_open = int64(1), int64(4), host[PreLookupCall.is_batch_open] != 0
    entries = op.new_output(frame, count, one, call.entries, one, four)
    if is_open:
        splits = device.reserve(8 * count)
    else:
        splits = op.new_output(frame, count + 1, int64(2), count, call.batch + 1, four)
    weighted = state.weighted_count != 0
    heavy = call.entries if weighted else int64(0)
    weights = op.new_output(frame, count + 2, one, heavy, one, state.item_bytes)
    if op.failed(frame):
        return
    listed, paired = _list_entries(device, call, splits)
    results = device.words(call.results, _result_words(count))
    if results[ErrorRecord.error_code] != call_of.UNSORTED_ROW and not op.failed(frame):
        batch = _batch_of_columns(frame, call, is_open, results)
        if is_open and results[ErrorRecord.error_code] == 0 and not op.failed(frame):
            _split_open(frame, device, call, listed, batch)
    if not op.failed(frame):
        report_error(device, as_record(ErrorRecord, results.ctypes.data))
    if op.failed(frame):
        return
    keys = _new_keys(frame, device, results, count, host)
    if not weighted:
        weights = int64(0)
    out = NumberedEntries(keys, entries, weights)
    _number_entries(device, call, listed, paired, results, splits, out)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""

    def pre_lookup(frame: op.Frame, device: Any) -> None:
        state = as_record(ColumnsState, frame.state)
        boundaries, count = count_boundaries(state), state.column_count
        described = count * (ColumnAttrs.SIZE + ColumnInputs.SIZE)
        size = PreLookupCall.SIZE + described + 2 * (count + 1) + (boundaries + 1) // 2
        memory = c_malloc(8 * size)
        if memory == 0:
            op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for %lld words", size)
            return
        _prepare(frame, device, carray(pointer(memory, np.int64), (size,)), boundaries)
        c_free(memory)

    return pre_lookup
