"""The variables of the columns of a call that have embedding variables.

They are inputs behind those of all columns: tables, then initial rows, then indices.
"""

from __future__ import annotations

import numpy as np

from fusion.ops.columns.cpu.layout import ColumnsState, KeyedColumns
from fusion.ops.tables.cpu.calls import set_variables
from fusion.ops.tables.cpu.inputs import element_count, take
from fusion.ops.tables.cpu.layout import KeyedCall, SharedVariable
from fusion.ops.tables.cpu.sharing import share_all, unshare_all
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data

#: Of each.
VARIABLES = 3


@jit
def keyed_columns(frame: op.Frame) -> KeyedColumns:
    """The columns whose tables are embedding variables."""
    state = as_record(ColumnsState, frame.state)
    return as_record(KeyedColumns, state + 8 * state.keyed_offset)


@jit
def share_columns(frame: op.Frame, column_inputs: int, shared: SharedVariable) -> bool:
    """Shares all variables; whether there are such. Then or not, `unshare_columns`.

    Args:
      column_inputs: how many inputs each column has.
      shared: out, the address of a `SharedVariable` for each.
    """
    keyed = keyed_columns(frame)
    count = keyed.count
    numbers = stack_words(2 * count)
    first = column_inputs * as_record(ColumnsState, frame.state).column_count
    for k in range(VARIABLES * count):
        store_as(numbers, k, np.int32(first + k), np.int32)
    of_tables = keyed.table_access
    of_indices = keyed.index_access
    if not share_all(frame, of_tables, numbers, 2 * count, shared):
        return False
    indices = shared[2 * count]
    return share_all(frame, of_indices, numbers + 4 * 2 * count, count, indices)


@jit
def unshare_columns(frame: op.Frame, shared: SharedVariable) -> None:
    """Ends what `share_columns` has begun."""
    count = keyed_columns(frame).count
    unshare_all(shared[2 * count], count)
    unshare_all(shared, 2 * count)


@jit
def set_column(frame: op.Frame, call: KeyedCall, shared: SharedVariable, number: int) -> None:
    """Sets the variables of a `KeyedCall`, or fails if they do not belong together."""
    state = as_record(ColumnsState, frame.state)
    keyed = keyed_columns(frame)
    count = keyed.count
    column = keyed.columns[number].index
    table, initial, index = shared[number], shared[count + number], shared[2 * count + number]
    dim = state.columns[column].dim
    item = state.item_bytes
    set_variables(frame, call, table, index, initial, dim, item, column)


@jit
def take_steps(frame: op.Frame, column_inputs: int, tensors: Words) -> Words:
    """The address of the steps, behind the variables; 0, having failed, if they cannot be had.

    Args:
      column_inputs: how many inputs each column has.
      tensors: where the tensor is noted, as of `take`.
    """
    count = keyed_columns(frame).count
    columns = as_record(ColumnsState, frame.state).column_count
    steps = take(frame, tensors, column_inputs * columns + VARIABLES * count, int64(0))
    if op.failed(frame):
        return as_words(int64(0))
    if element_count(steps) != count:
        text = "steps has %lld elements for %lld embedding variables"
        op.fail(frame, op.INVALID_ARGUMENT, text, element_count(steps), count)
        return as_words(int64(0))
    return as_words(tf_tensor_data(steps))
