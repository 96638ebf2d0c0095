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
from fusion.ops.columns.cpu import tasks
from fusion.ops.columns.cpu.inputs import SharedInputs
from fusion.ops.columns.cpu.inputs import release as release_source
from fusion.ops.columns.cpu.keyed_variables import (
    VARIABLES,
    keyed_columns,
    set_column,
    share_columns,
    take_steps,
    unshare_columns,
)
from fusion.ops.columns.cpu.layout import ColumnsState
from fusion.ops.columns.cpu.lookup_kernel import look_up
from fusion.ops.columns.cpu.slow_path import list_column
from fusion.ops.columns.cpu.tasks import LookupJob, Workspace
from fusion.ops.tables.cpu.calls import begin_training, check_room
from fusion.ops.tables.cpu.inputs import release
from fusion.ops.tables.cpu.layout import KeyedCall, SharedVariable
from fusion.ops.tables.cpu_kernels.index import add_rows
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, c_memset
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs of each column, before the variables.
_COLUMN_INPUTS = 5


@jit
def _train(
    frame: op.Frame, call: KeyedCall, column: int, source: ColumnInputs, workspace: Workspace
) -> None:
    """Adds the keys of a column."""
    gather = call.gather
    addition = call.addition
    batch, count = list_column(
        frame, column, source, gather, workspace, as_record(SharedInputs, int64(0)), int64(-1)
    )
    if op.failed(frame):
        return
    begin_training(call)
    index = gather.index
    add_rows(index, batch.addresses, count, as_words(tasks.order_in(workspace)), addition)
    check_room(frame, call, column)


@jit
def _set_columns(
    frame: op.Frame, shared: SharedVariable, gathers: KeyedGather, steps: Words
) -> None:
    """Sets the `KeyedGather` of each column, and adds the keys of those in training."""
    keyed, call = keyed_columns(frame), stack_record(KeyedCall)
    source = stack_record(ColumnInputs)
    workspace = stack_record(Workspace)
    tasks.open_workspace(workspace)
    for k in range(keyed.count):
        c_memset(call, np.int32(0), int64(8 * KeyedCall.SIZE))
        set_column(frame, call, shared, int64(k))
        column = keyed.columns[k].index
        c_memcpy(gathers[column], call.gather, int64(8 * KeyedGather.SIZE))
        is_training = keyed.columns[k].is_training != 0
        if is_training and not op.failed(frame):
            call.addition.step = steps[k]
            _train(frame, call, column, source, workspace)
            release_source(source)
    tasks.free_workspace(workspace)


def lookup(frame: op.Frame) -> None:
    """The kernel body."""
    tensors = stack_words(int64(1))
    tensors[0] = 0
    count = keyed_columns(frame).count
    columns = as_record(ColumnsState, frame.state).column_count
    size = 8 * (VARIABLES * SharedVariable.SIZE * count + KeyedGather.SIZE * columns)
    steps = take_steps(frame, int64(_COLUMN_INPUTS), tensors)
    memory = as_record(
        SharedVariable, op.scratch_bytes(frame, size) if not op.failed(frame) else int64(0)
    )
    if memory != 0:
        c_memset(memory, np.int32(0), size)
        if share_columns(frame, int64(_COLUMN_INPUTS), memory):
            gathers = as_record(KeyedGather, memory[VARIABLES * count])
            _set_columns(frame, memory, gathers, steps)
            if not op.failed(frame):
                look_up(frame, as_record(SharedInputs, int64(0)), gathers)
        unshare_columns(frame, memory)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return lookup, tasks.work, LookupJob
