"""The ops that combine rows into bags on a GPU: whole lookups, and what comes behind gathers.

What the columns are given is written down on the host and copied to the GPU in one piece, from
where two kernels read it. Nothing waits for them, unless the number of rows is known to the GPU
alone (row_count last_row in every column).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops import column_words as words
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops.host import copy_in, on_host, trouble_of
from fusion.gpu_ops.steps import combine, layout
from fusion.ops.lookup_source import (
    SHARED_WORDS,
    body,
    column_at,
    release,
    release_shared,
    take_shared,
    take_source,
)
from fusion.ops.lookup_state import (
    COUNT,
    ITEM,
    KIND,
    LIMITS_AT,
    LOOKUPS,
    POST,
    ROLE,
    WEIGHTED_COUNT,
)
from fusion.runtime.jit import Array, int64, jit
from fusion.runtime.memory import (
    c_free,
    c_malloc,
    load,
    load_as,
    pointer,
    stack_words,
    store,
    store_as,
)
from fusion.runtime.native import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    context,
    fail,
    failed,
    kernel_state,
    output_bytes,
    status_of,
)
from fusion.runtime.spec import OpSpec

_words_of_call, _open_call = on_host(layout.words_of_call), on_host(layout.open_call)
_place_in, _width_of = on_host(layout.place_in), on_host(layout.width_of)
_lay_out, _tiles_of = on_host(layout.lay_out), on_host(layout.tiles_of)
_check_rows = on_host(combine.check_rows)
_combine_plain, _combine_others = on_host(combine.combine_plain), on_host(combine.combine_others)


@jit
def _count_boundaries(state: int) -> int:
    total = int64(0)
    for place in range(body(state, COUNT)):
        total += load(column_at(state, place), words.BOUNDARY_COUNT)
    return total


@jit
def _put_columns(state: int, call: Array, base: int, limits_at: int) -> int:
    """Copies the columns into the call; gives where the boundaries of each are, in a list."""
    own, host = _place_in(call, base, call_of.COLUMNS), call.ctypes.data
    limits, target = state + 8 * body(state, LIMITS_AT), host + 8 * limits_at
    written = int64(0)
    for place in range(body(state, COUNT)):
        column = column_at(state, place)
        for k in range(words.COLUMN_WORDS):
            call[own + k] = load(column, k)
        for k in range(load(column, words.BOUNDARY_COUNT)):
            limit = load_as(limits, load(column, words.BOUNDARIES) + k, np.float32)
            store_as(target, written, limit, np.float32)
            written += 1
        own += words.COLUMN_WORDS
    return written


@jit
def _put_sources(frame: int, state: int, call: Array, base: int, limits: int, shared: int) -> int:
    """Writes what the columns are given into the call; gives the rows, -1: the GPU knows them.

    Args:
      limits: where the boundaries are for the GPU.
    """
    ctx, status, batch = context(frame), status_of(frame), int64(-1)
    source = call.ctypes.data + 8 * _place_in(call, base, call_of.SOURCES)
    for place in range(body(state, COUNT)):
        sound = take_source(frame, ctx, state, int64(place), source, status, shared)
        release(source)  # the context holds the inputs
        if not sound:
            if not failed(frame):
                fail(frame, INVALID_ARGUMENT, "column %lld: an input cannot be had", int64(place))
            return batch
        rows = load(source, words.BATCH)
        if batch < 0:
            batch = rows
        elif rows >= 0 and rows != batch:
            text = "column %lld has %lld rows, but others have %lld"
            fail(frame, INVALID_ARGUMENT, text, int64(place), rows, batch)
            return batch
        store(source, words.LIMITS, limits)
        limits += 4 * load(column_at(state, place), words.BOUNDARY_COUNT)
        source += 8 * words.SOURCE_WORDS
    return batch


@jit
def _rows_to_last(device: Any, state: int, call: Array, base: int) -> int:
    """The rows up to the last entry of the first column."""
    source = call.ctypes.data + 8 * _place_in(call, base, call_of.SOURCES)
    column = column_at(state, int64(0))
    place = (load(source, words.ID_COUNT) - 1) * load(source, words.ROW_STEP)
    is_wide = load(column, words.ROWS_KIND) == words.INT64
    address = load(source, words.ROWS) + place * (8 if is_wide else 4)
    aligned = address - address % 8
    found = device.words(aligned, 1)
    if is_wide:
        return found[0] + 1
    return int64(load_as(found.ctypes.data, (address - aligned) // 4, np.int32)) + 1


@jit
def _compute(frame: int, device: Any, call: Array, base: int, limits_at: int, shared: int) -> None:
    state = kernel_state(frame)
    _open_call(call, base, body(state, COUNT))
    _put_columns(state, call, base, limits_at)
    batch = _put_sources(frame, state, call, base, base + 8 * limits_at, shared)
    if failed(frame):
        return
    if batch < 0:
        batch = max(_rows_to_last(device, state, call, base), int64(0))
    width, item = _width_of(call, base), body(state, ITEM)
    out = output_bytes(frame, batch, width, item)
    if failed(frame):
        return
    _lay_out(call, base, batch, item, width, out, int64(0))
    call[call_of.TROUBLE] = trouble_of(device)
    copy_in(device, base, call.ctypes.data, 8 * int64(call.shape[0]))
    kind = body(state, KIND)
    _check_rows(device, base, _tiles_of(call, base, call_of.CHECK_TILES))
    plain, others = call_of.PLAIN_TILES, call_of.OTHER_TILES
    _combine_plain(device, kind, base, _tiles_of(call, base, plain), call[plain])
    _combine_others(device, kind, base, _tiles_of(call, base, others), call[others])


@jit
def _look_up(frame: int, device: Any, shared: int) -> None:
    state = kernel_state(frame)
    boundaries = _count_boundaries(state)
    size = _words_of_call(body(state, COUNT), boundaries)
    base, memory = device.room(8 * size), c_malloc(8 * size)
    if memory == 0:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for %lld words", size)
    if not failed(frame):
        limits_at = size - (boundaries + 1) // 2
        call = carray(pointer(memory, np.int64), (size,))
        _compute(frame, device, call, base, limits_at, shared)
    c_free(memory)


def made(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""

    def lookup(frame: int, device: Any) -> None:
        shared, state = stack_words(SHARED_WORDS), kernel_state(frame)
        if body(state, ROLE) != POST:
            _look_up(frame, device, int64(0))
            return
        first, weighted = body(state, COUNT), body(state, WEIGHTED_COUNT) != 0
        take_shared(frame, context(frame), first, shared, body(state, LOOKUPS), weighted)
        if not failed(frame):
            _look_up(frame, device, shared)
        release_shared(shared)

    return lookup
