"""The builder of the states of the op that gathers rows of many variables."""

from __future__ import annotations

from fusion.ops.columns.cpu.grouped_gather_layout import GatherColumn, GatherConstants, GatherState
from fusion.ops.tables.cpu.layout import AccessedDtype
from fusion.ops.tables.cpu.states import accessed_dtype
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    pool_of,
)
from fusion.runtime.tensorflow.dtypes import DTYPES, INT32, INT64
from fusion.runtime.tensorflow.variable_access import UpdateAccess

_INT32_ENUM = DTYPES["int32"].enum


def build_grouped_gather_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(GatherConstants, constants_of(creation))
    if constants == 0:
        return
    number = attr_word(creation, constants.T)
    dtype = as_record(AccessedDtype, accessed_dtype(constants.dtypes, number))
    if dtype == 0:
        text = "TensorFlow does not export how variables of DataType %lld are shared here"
        refuse(creation, UNIMPLEMENTED, text, number)
        return
    count = attr_word(creation, constants.num_columns)
    if not _check(creation, constants, count):
        return
    state = as_record(
        GatherState, begin_state(creation, GatherState.SIZE + count * GatherColumn.SIZE)
    )
    if state == 0:
        return
    state.column_count = count
    state.item_bytes = dtype.item_bytes
    state.pool = pool_of(creation)
    for field in range(UpdateAccess.SIZE):
        value = load(dtype.access, field)
        store(state.access, field, value)
    for index in range(count):
        column = state.columns[index]
        dim = attr_item(creation, constants.dims, index)
        keys = attr_item(creation, constants.Tkeys, index)
        column.row_bytes = dim * dtype.item_bytes
        column.keys_dtype = int64(INT32 if keys == _INT32_ENUM else INT64)


@jit
def _check(creation: Creation, constants: GatherConstants, count: int) -> bool:
    """Whether lists have an item for each column, and dimensions are positive."""
    dims = constants.dims
    names = creation.record.names
    dim_count, name_count = attr_count(creation, dims), attr_count(creation, names)
    if dim_count != count or name_count not in (0, count):
        text = "dims and column_names have %lld and %lld items for %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, dim_count, name_count, count)
        return False
    for index in range(count):
        if attr_item(creation, dims, index) < 1:
            text = "dims must be at least 1, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, attr_item(creation, dims, index))
            return False
    return True
