"""The kernel of the op that looks up whole columns, some of embedding variables, for inference.

It is that of `lookup_kernel`, but of a column of an embedding variable keys are listed, and then
made the addresses of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.keys.layout import KeyedGather
from fusion.ops.cpu.columns import tasks
from fusion.ops.cpu.columns.inputs import state_field
from fusion.ops.cpu.columns.keyed_variables import (
    VARIABLES,
    keyed_column,
    keyed_columns,
    set_column,
    share_columns,
    unshare_columns,
)
from fusion.ops.cpu.columns.layout import ColumnsState, KeyedColumn, KeyedColumns
from fusion.ops.cpu.columns.lookup_kernel import look_up
from fusion.ops.cpu.tables.calls import gather_of
from fusion.ops.cpu.tables.layout import KeyedCall, SharedVariable
from fusion.runtime.native.frame import failed, kernel_state, scratch_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset, load, stack_words
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs of each column, before the variables.
_COLUMN_INPUTS = 5


@jit
def _look_up(frame: int, shared: int, gathers: int, count: int) -> None:
    """What is done while all variables are shared."""
    keyed, call = keyed_columns(frame), stack_words(KeyedCall.SIZE)
    for k in range(count):
        c_memset(call, np.int32(0), int64(8 * KeyedCall.SIZE))
        set_column(frame, call, shared, int64(k))
        if failed(frame):
            return
        column = load(keyed_column(keyed, int64(k)), KeyedColumn.index)
        gather = gathers + 8 * KeyedGather.SIZE * column
        c_memcpy(gather, gather_of(call), int64(8 * KeyedGather.SIZE))
    look_up(frame, int64(0), gathers)


def lookup(frame: int) -> None:
    """The kernel body."""
    count = load(keyed_columns(frame), KeyedColumns.count)
    columns = state_field(kernel_state(frame), ColumnsState.column_count)
    words = VARIABLES * SharedVariable.SIZE * count
    size = 8 * (words + KeyedGather.SIZE * columns)
    memory = scratch_bytes(frame, size)
    if memory == 0:
        return
    c_memset(memory, np.int32(0), size)
    if share_columns(frame, int64(_COLUMN_INPUTS), memory):
        _look_up(frame, memory, memory + 8 * words, count)
    unshare_columns(frame, memory)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return lookup, tasks.work
