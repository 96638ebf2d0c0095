"""The variables of the columns of a call that have embedding variables.

They are inputs behind those of all columns: tables, then initial rows, then indices.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.ops.cpu.columns.inputs import column_at, state_field
from fusion.ops.cpu.columns.layout import ColumnsState, KeyedColumn, KeyedColumns
from fusion.ops.cpu.tables.calls import set_variables
from fusion.ops.cpu.tables.inputs import element_count, take
from fusion.ops.cpu.tables.layout import SharedVariable
from fusion.ops.cpu.tables.sharing import share_all, unshare_all
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import failed, kernel_state
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store_as
from fusion.runtime.tensorflow.c_api import tf_tensor_data

#: Of each.
VARIABLES = 3


@jit
def keyed_columns(frame: int) -> int:
    """The address of `KeyedColumns`."""
    state = kernel_state(frame)
    return state + 8 * state_field(state, ColumnsState.keyed_offset)


@jit
def keyed_column(keyed: int, number: int) -> int:
    """The address of a `KeyedColumn`."""
    return keyed + 8 * (KeyedColumns.columns + KeyedColumn.SIZE * number)


@jit
def share_columns(frame: int, column_inputs: int, shared: int) -> bool:
    """Shares all variables; whether there are such. Then or not, `unshare_columns`.

    Args:
      column_inputs: how many inputs each column has.
      shared: out, the address of a `SharedVariable` for each.
    """
    keyed = keyed_columns(frame)
    count = load(keyed, KeyedColumns.count)
    numbers = stack_words(2 * count)
    first = column_inputs * state_field(kernel_state(frame), ColumnsState.column_count)
    for k in range(VARIABLES * count):
        store_as(numbers, k, np.int32(first + k), np.int32)
    of_tables = keyed + 8 * KeyedColumns.table_access
    of_indices = keyed + 8 * KeyedColumns.index_access
    if not share_all(frame, of_tables, numbers, 2 * count, shared):
        return False
    indices = shared + 8 * SharedVariable.SIZE * 2 * count
    return share_all(frame, of_indices, numbers + 4 * 2 * count, count, indices)


@jit
def unshare_columns(frame: int, shared: int) -> None:
    """Ends what `share_columns` has begun."""
    count = load(keyed_columns(frame), KeyedColumns.count)
    unshare_all(shared + 8 * SharedVariable.SIZE * 2 * count, count)
    unshare_all(shared, 2 * count)


@jit
def set_column(frame: int, call: int, shared: int, number: int) -> None:
    """Sets the variables of a `KeyedCall`, or fails if they do not belong together."""
    state, keyed = kernel_state(frame), keyed_columns(frame)
    count, size = load(keyed, KeyedColumns.count), int64(8 * SharedVariable.SIZE)
    column = load(keyed_column(keyed, number), KeyedColumn.index)
    table, initial = shared + size * number, shared + size * (count + number)
    index = shared + size * (2 * count + number)
    dim = load(column_at(state, column), ColumnAttrs.dim)
    item = state_field(state, ColumnsState.item_bytes)
    set_variables(frame, call, table, index, initial, dim, item, column)


@jit
def take_steps(frame: int, column_inputs: int, tensors: int) -> int:
    """The address of the steps, behind the variables; 0, having failed, if they cannot be had.

    Args:
      column_inputs: how many inputs each column has.
      tensors: where the tensor is noted, as of `take`.
    """
    count = load(keyed_columns(frame), KeyedColumns.count)
    columns = state_field(kernel_state(frame), ColumnsState.column_count)
    steps = take(frame, tensors, column_inputs * columns + VARIABLES * count, int64(0))
    if failed(frame):
        return int64(0)
    if element_count(steps) != count:
        text = "steps has %lld elements for %lld embedding variables"
        fail(frame, INVALID_ARGUMENT, text, element_count(steps), count)
        return int64(0)
    return tf_tensor_data(steps)
