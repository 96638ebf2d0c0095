"""The ops that combine rows into bags on a GPU: whole lookups, and what comes after gathers.

The inputs of the columns are listed on the host and copied to the GPU in one piece, from
where two kernels read it. Nothing waits for them, unless the number of rows is known to the GPU
alone (row_count last_row in every column).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops.column_layout import ColumnInputs
from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.layout import combine as combine_layout
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import CombineCall
from fusion.gpu_ops.steps import combine
from fusion.ops.columns.cpu.inputs import SharedInputs, release_shared, take_shared
from fusion.ops.columns.cpu.layout import POST, ColumnsState
from fusion.ops.columns.gpu.columns import (
    count_boundaries,
    put_batch,
    put_columns,
    put_sources,
    rows_to_last,
)
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, pointer
from fusion.runtime.native.pointers import as_record, stack_record
from fusion.runtime.tensorflow.spec import OpSpec

_words_of_call, _open_call = (
    on_host(combine_layout.words_of_call),
    on_host(combine_layout.open_call),
)
_array_index, _width_of = on_host(array_index), on_host(combine_layout.width_of)
_output_end, _put_output = on_host(combine_layout.output_end), on_host(combine_layout.put_output)
_lay_out, _tiles_of = on_host(combine_layout.lay_out), on_host(combine_layout.tiles_of)
_check_rows = on_host(combine.check_rows)
_combine_columns = on_host(combine.combine_columns)


@jit
def _allocate(frame: op.Frame, call: Array, base: int, batch: int, item: int) -> None:
    """Allocates the outputs, and writes where the results of columns are."""
    output, first = int64(0), int64(0)
    while first < call[CombineCall.column_count] and not op.failed(frame):
        end = _output_end(call, base, first)
        width = _width_of(call, base, first, end)
        out = op.new_output(frame, output, int64(2), batch, width, item)
        _put_output(call, base, first, end, item, out)
        output, first = output + 1, end


@jit
def _compute(
    frame: op.Frame, device: Any, call: Array, base: int, limits_at: int, shared: SharedInputs
) -> None:
    state = as_record(ColumnsState, frame.state)
    _open_call(call, base, state.column_count)
    host = call.ctypes.data
    put_columns(
        state, host + 8 * _array_index(call, base, CombineCall.columns), host + 8 * limits_at
    )
    sources = as_record(ColumnInputs, host + 8 * _array_index(call, base, CombineCall.inputs))
    batch = put_sources(frame, sources, base + 8 * limits_at, shared)
    if op.failed(frame):
        return
    if batch < 0:
        batch = rows_to_last(device, state, sources)
    put_batch(state, sources, batch)
    item = state.item_bytes
    _allocate(frame, call, base, batch, item)
    if op.failed(frame):
        return
    _lay_out(call, base, batch, item, int64(0))
    call[CombineCall.errors] = error_record(device)
    copy_in(device, base, call.ctypes.data, 8 * int64(call.shape[0]))
    dtype = state.dtype_code
    _check_rows(device, base, _tiles_of(call, base, CombineCall.check_tiles))
    tiles = _tiles_of(call, base, CombineCall.tiles)
    _combine_columns(device, dtype, base, tiles, call[CombineCall.is_all_plain])


@jit
def _look_up(frame: op.Frame, device: Any, shared: SharedInputs) -> None:
    state = as_record(ColumnsState, frame.state)
    boundaries = count_boundaries(state)
    size = _words_of_call(state.column_count, boundaries)
    base, memory = device.reserve(8 * size), c_malloc(8 * size)
    if memory == 0:
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for %lld words", size)
    if not op.failed(frame):
        limits_at = size - (boundaries + 1) // 2
        call = carray(pointer(memory, np.int64), (size,))
        _compute(frame, device, call, base, limits_at, shared)
    c_free(memory)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""

    def lookup(frame: op.Frame, device: Any) -> None:
        shared = stack_record(SharedInputs)
        state = as_record(ColumnsState, frame.state)
        if state.role != POST:
            _look_up(frame, device, as_record(SharedInputs, int64(0)))
            return
        first = state.column_count
        weighted = state.weighted_count != 0
        lookups = state.lookup_count
        take_shared(frame, frame.context, first, shared, lookups, weighted)
        if not op.failed(frame):
            _look_up(frame, device, shared)
        release_shared(shared)

    return lookup
