"""The kernel of the op that looks up whole columns, some of embedding variables, for inference.

It is that of `lookup_kernel`, but of a column of an embedding variable keys are listed, and then
made the addresses of their rows. If its gradient is asked for, all that have none get them before,
each entry being a time that a key is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnInputs
from fusion.cpu_ops.keys.index import add_rows
from fusion.cpu_ops.keys.layout import Addition, KeyedGather
from fusion.ops.cpu.columns import tasks
from fusion.ops.cpu.columns.inputs import release as release_source
from fusion.ops.cpu.columns.inputs import state_field
from fusion.ops.cpu.columns.keyed_variables import (
    VARIABLES,
    keyed_column,
    keyed_columns,
    set_column,
    share_columns,
    take_steps,
    unshare_columns,
)
from fusion.ops.cpu.columns.layout import ColumnsState, KeyedColumn, KeyedColumns
from fusion.ops.cpu.columns.lookup_kernel import look_up
from fusion.ops.cpu.columns.slow_path import list_column
from fusion.ops.cpu.tables.calls import addition_of, begin_training, check_room, gather_of
from fusion.ops.cpu.tables.inputs import release
from fusion.ops.cpu.tables.layout import KeyedCall, SharedVariable
from fusion.runtime.native.frame import failed, kernel_state, scratch_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, load, stack_words, store
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs of each column, before the variables.
_COLUMN_INPUTS = 5


@jit
def _train(frame: int, call: int, column: int, source: int, workspace: int) -> None:
    """Adds the keys of a column."""
    gather, addition = gather_of(call), addition_of(call)
    batch, count = list_column(frame, column, source, gather, workspace, int64(0), int64(-1))
    if failed(frame):
        return
    begin_training(call)
    index = load(gather, KeyedGather.index)
    add_rows(index, batch.addresses, count, tasks.order_in(workspace), addition)
    check_room(frame, call, column)


@jit
def _set_columns(frame: int, shared: int, gathers: int, steps: int) -> None:
    """Sets the `KeyedGather` of each column, and adds the keys of those in training."""
    keyed, call = keyed_columns(frame), stack_words(KeyedCall.SIZE)
    source, workspace = stack_words(ColumnInputs.SIZE), stack_words(tasks.Workspace.SIZE)
    tasks.open_workspace(workspace)
    for k in range(load(keyed, KeyedColumns.count)):
        c_memset(call, np.int32(0), int64(8 * KeyedCall.SIZE))
        set_column(frame, call, shared, int64(k))
        column = load(keyed_column(keyed, int64(k)), KeyedColumn.index)
        gather = gathers + 8 * KeyedGather.SIZE * column
        c_memcpy(gather, gather_of(call), int64(8 * KeyedGather.SIZE))
        is_training = load(keyed_column(keyed, int64(k)), KeyedColumn.is_training) != 0
        if is_training and not failed(frame):
            store(addition_of(call), Addition.step, load(steps, k))
            _train(frame, call, column, source, workspace)
            release_source(source)
    tasks.free_workspace(workspace)


def lookup(frame: int) -> None:
    """The kernel body."""
    tensors = stack_words(int64(1))
    store(tensors, 0, 0)
    count = load(keyed_columns(frame), KeyedColumns.count)
    columns = state_field(kernel_state(frame), ColumnsState.column_count)
    words = VARIABLES * SharedVariable.SIZE * count
    size = 8 * (words + KeyedGather.SIZE * columns)
    steps = take_steps(frame, int64(_COLUMN_INPUTS), tensors)
    memory = scratch_bytes(frame, size) if not failed(frame) else int64(0)
    if memory != 0:
        c_memset(memory, np.int32(0), size)
        if share_columns(frame, int64(_COLUMN_INPUTS), memory):
            _set_columns(frame, memory, memory + 8 * words, steps)
            if not failed(frame):
                look_up(frame, int64(0), memory + 8 * words)
        unshare_columns(frame, memory)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return lookup, tasks.work
