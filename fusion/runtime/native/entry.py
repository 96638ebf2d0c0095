"""The compute function around a kernel body: it takes the inputs, checks them, and cleans up.

See `native` for the frame of a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.runtime.layout import Layout
from fusion.runtime.native.atomic import atomic_add
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.op import (
    attr,
    check,
    count_rows,
    failed,
    first_tensor,
    list_length,
    size,
)
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.system import now
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_delete_tensor,
    tf_dim,
    tf_failure,
    tf_get_input,
    tf_new_status,
    tf_num_dims,
    tf_num_inputs,
    tf_num_outputs,
)
from fusion.runtime.tensorflow.layout import (
    FIRST_PEER,
    FIRST_SYMBOL,
    MAX_GPU_TEMPS,
    MAX_RANK,
    MAX_TEMPS,
    Counters,
    Frame,
    InputEntry,
    OpTable,
    OutputEntry,
    State,
)

#: Words of the frame of an op whose body takes its inputs itself, and holds none of them there;
#: the words for tensors are added.
_SHORT_FRAME = 64


@jit
def _bind(frame: Frame, entry: InputEntry, arg: int, axis: int, symbol: int, actual: int) -> None:
    """Checks one size against what an earlier input says of the same symbol."""
    table = frame.state.op_table
    slot = Frame.starts + table.input_count + table.output_count + 2 * symbol
    if load(frame, slot) < 0:
        store(frame, slot, actual)
        store(frame, slot + 1, arg)
    elif load(frame, slot) != actual:
        other = load(
            table, OpTable.entries + load(frame, slot + 1) * InputEntry.SIZE + InputEntry.name
        )
        fail(
            frame,
            INVALID_ARGUMENT,
            "%s has size %lld in dimension %lld, but %s says that it is %lld",
            entry.name,
            actual,
            axis,
            other,
            load(frame, slot),
        )


@jit
def _check_peer(
    frame: Frame, entry: InputEntry, position: int, axis: int, peer: int, actual: int
) -> None:
    """Checks one size against the tensor at the same place of an earlier list."""
    arg = peer // MAX_RANK
    expected = size(frame, arg, position, peer % MAX_RANK)
    if actual != expected:
        other = frame.state.op_table.entries[arg].name
        fail(
            frame,
            INVALID_ARGUMENT,
            "%s[%lld] has size %lld in dimension %lld, but %s[%lld] says that it is %lld",
            entry.name,
            position,
            actual,
            axis,
            other,
            position,
            expected,
        )


@jit
def _check_shape(frame: Frame, arg: int, position: int, tensor: int) -> None:
    entry = frame.state.op_table.entries[arg]
    rank = entry.rank
    if rank < 0:
        return
    if tf_num_dims(tensor) != rank:
        actual = int64(tf_num_dims(tensor))
        text = "%s must have rank %lld, but has rank %lld"
        fail(frame, INVALID_ARGUMENT, text, entry.name, rank, actual)
        return
    if entry.condition >= 0 and attr(frame, entry.condition) == 0:
        return
    for axis in range(rank):
        dim = entry.dims[axis]
        actual = tf_dim(tensor, np.int32(axis))
        if dim <= FIRST_PEER:
            _check_peer(frame, entry, position, axis, FIRST_PEER - dim, actual)
        elif dim <= FIRST_SYMBOL:
            _bind(frame, entry, arg, axis, FIRST_SYMBOL - dim, actual)
        elif dim >= 0 and dim != actual:
            text = "%s must have size %lld in dimension %lld, but has %lld"
            fail(frame, INVALID_ARGUMENT, text, entry.name, dim, axis, actual)


@jit
def _take_inputs(frame: Frame) -> None:
    """Holds every input, checked against the declared shapes."""
    table = frame.state.op_table
    n_args = table.input_count
    first = first_tensor(frame)
    index = 0
    for arg in range(n_args):
        count = 1
        if load(table, OpTable.entries + arg * InputEntry.SIZE + InputEntry.length) != 0:
            count = list_length(frame)
        frame.starts[arg] = index
        for position in range(count):
            slot = as_words(frame + 8 * (first + index))
            tf_get_input(frame.context, np.int32(index), slot, frame.status)
            check(frame)
            if not failed(frame):
                _check_shape(frame, arg, position, slot[0])
            if failed(frame):
                return
            index += 1
    output = 0
    for arg in range(table.output_count):
        store(frame, Frame.starts + n_args + arg, output)
        entry = OpTable.entries + n_args * InputEntry.SIZE + arg * OutputEntry.SIZE
        output += list_length(frame) if load(table, entry) != 0 else 1


@jit
def _frame_words(state: State, ctx: int) -> int:
    table = state.op_table
    fixed = Frame.starts + table.input_count + table.output_count + 2 * table.symbol_count
    return fixed + tf_num_inputs(ctx) + tf_num_outputs(ctx) + _temps(state)


@jit
def _temps(state: State) -> int:
    return int64(MAX_TEMPS) if state.launcher == 0 else int64(MAX_GPU_TEMPS)


@jit
def _open(frame: Frame, words: int, state: State, ctx: int) -> None:
    for k in range(words):
        store(frame, k, 0)
    frame.context = ctx
    frame.state = state
    frame.status = tf_new_status()
    frame.started = now()
    frame.tensor_capacity = words - first_tensor(frame)
    table = state.op_table
    for symbol in range(table.symbol_count):
        store(frame, Frame.starts + table.input_count + table.output_count + 2 * symbol, -1)


@jit
def _close(frame: Frame) -> None:
    if failed(frame):
        tf_failure(frame.context, frame.status)
    first = first_tensor(frame)
    for k in range(frame.tensor_count):
        tensor = load(frame, first + k)
        if tensor != 0:
            tf_delete_tensor(tensor)
    tf_delete_status(frame.status)
    _count(frame)


@jit
def _count(frame: Frame) -> None:
    """Counts the call."""
    counters = frame.state.op_table.counters
    atomic_add(counters, Counters.calls, int64(1))
    atomic_add(counters, Counters.nanoseconds, now() - frame.started)
    if frame.row_count != 0:
        atomic_add(counters, Counters.rows, frame.row_count)
    if frame.helper_count != 0:
        atomic_add(counters, Counters.helpers, frame.helper_count)


@jit
def _count_rows(frame: Frame) -> None:
    """Counts the rows of the call by its input `OpSpec.rows`."""
    table = frame.state.op_table
    arg = table.rows_input
    if arg < 0:
        return
    entry = table.entries[arg]
    count = list_length(frame) if entry.length != 0 else int64(1)
    for position in range(count):
        rows = int64(1)
        for axis in range(entry.rank):
            if entry.dims[axis] < 0:
                rows *= size(frame, arg, int64(position), int64(axis))
        count_rows(frame, rows)


def make_entry(body: Any) -> Any:
    """The compute function `(state, ctx)` around a kernel body.

    All inputs are in the frame, checked against the declared shapes, before the body runs.
    """
    body = jit(body)

    def entry(state: int, ctx: int) -> None:
        words = _frame_words(as_record(State, state), ctx)
        frame = as_record(Frame, stack_words(words))
        _open(frame, words, as_record(State, state), ctx)
        frame.tensor_count = int64(tf_num_inputs(ctx))
        _take_inputs(frame)
        if not failed(frame):
            _count_rows(frame)
            body(frame)
        _close(frame)

    return entry


def make_short_entry(body: Any) -> Any:
    """The compute function `(state, ctx)` around a body that takes its inputs itself."""
    body = jit(body)

    def entry(state: int, ctx: int) -> None:
        words = _SHORT_FRAME + _temps(as_record(State, state))
        frame = as_record(Frame, stack_words(words))
        _open(frame, words, as_record(State, state), ctx)
        body(frame)
        _close(frame)

    return entry


def make_shared_entry(entry: Any, work: Any, layout: type[Layout]) -> Any:
    """A compute function for work that threads help with.

    Called with (job, 0), as threads of the pool call it, it does `work(job, 1)`. The body of
    `entry` itself does `work(job, 0)`. Jobs are records of the layout.
    """
    compute = jit(entry)

    def shared(state: int, ctx: int) -> None:
        if ctx == 0:
            work(as_record(layout, state), int64(1))
        else:
            compute(state, ctx)

    return shared
