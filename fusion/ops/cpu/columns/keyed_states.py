"""The builder of the states of ops for whole columns, some of which have embedding variables."""

from __future__ import annotations

from fusion.cpu_ops.column_layout import COPY, SEGMENT, ColumnAttrs
from fusion.ops.cpu.columns.inputs import column_at
from fusion.ops.cpu.columns.layout import (
    ColumnsConstants,
    ColumnsState,
    KeyedColumn,
    KeyedColumns,
    KeyedConstants,
)
from fusion.ops.cpu.columns.states import columns_state
from fusion.ops.cpu.tables.layout import AccessedDtype
from fusion.ops.cpu.tables.states import INDEX_DTYPE, accessed_dtype
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    constants_of,
    give_up,
)
from fusion.runtime.tensorflow.variable_access import UpdateAccess


def build_keyed_columns_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    number = attr_word(creation, load(constants, ColumnsConstants.dtype_attr))
    dtypes = constants + 8 * KeyedConstants.dtypes
    of_table, of_index = accessed_dtype(dtypes, number), accessed_dtype(dtypes, int64(INDEX_DTYPE))
    if of_table == 0 or of_index == 0:
        text = "TensorFlow does not export how variables of DataType %lld are changed in place"
        refuse(creation, UNIMPLEMENTED, text, number)
        return
    if not _check(creation, constants):
        return
    count = attr_word(creation, load(constants, KeyedConstants.keyed_count))
    more = KeyedColumns.SIZE + count * KeyedColumn.SIZE
    state = columns_state(creation, constants, more)
    if state == 0:
        return
    columns = state + 8 * load(state, ColumnsState.keyed_offset)
    for k in range(UpdateAccess.SIZE):
        of_tables = load(load(of_table, AccessedDtype.access), k)
        of_indices = load(load(of_index, AccessedDtype.access), k)
        store(columns, KeyedColumns.table_access + k, of_tables)
        store(columns, KeyedColumns.index_access + k, of_indices)
    store(columns, KeyedColumns.count, count)
    if not _put_columns(creation, constants, state, columns + 8 * KeyedColumns.columns):
        give_up(creation)


@jit
def _check(creation: int, constants: int) -> bool:
    """Whether the lists of attrs have a flag for each column, and as many are set as counted."""
    keyed, found = load(constants, KeyedConstants.keyed), int64(0)
    count = attr_word(creation, load(constants, ColumnsConstants.count_attr))
    trained = load(constants, KeyedConstants.is_training)
    flags, trained_flags = attr_count(creation, keyed), attr_count(creation, trained)
    if flags != count or trained_flags not in (0, count):
        text = "keyed and is_training have %lld and %lld items for %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, flags, trained_flags, count)
        return False
    for index in range(count):
        found += attr_item(creation, keyed, index)
    told = attr_word(creation, load(constants, KeyedConstants.keyed_count))
    if found != told:
        text = "num_keyed is %lld, but keyed has %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, told, found)
    return found == told


@jit
def _put_columns(creation: int, constants: int, state: int, columns: int) -> bool:
    """Writes each `KeyedColumn`; whether their dimensions are known."""
    keyed, trained = (
        load(constants, KeyedConstants.keyed),
        load(constants, KeyedConstants.is_training),
    )
    for index in range(load(state, ColumnsState.column_count)):
        if attr_item(creation, keyed, index) == 0:
            continue
        column = column_at(state, index)
        dim = load(column, ColumnAttrs.dim)
        if dim < 1:
            text = "column %lld: the dim of an embedding variable must be at least 1, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, index, dim)
            return False
        is_copy = load(column, ColumnAttrs.id_format) == COPY
        if is_copy or load(column, ColumnAttrs.sum_order) != SEGMENT:
            text = "column %lld: an embedding variable needs sum_order segment, and no form copy"
            refuse(creation, INVALID_ARGUMENT, text, index)
            return False
        if load(column, ColumnAttrs.wrap_negative) != 0:
            text = "column %lld: wrap_negative does not go with an embedding variable"
            refuse(creation, INVALID_ARGUMENT, text, index)
            return False
        if load(column, ColumnAttrs.row_words) != 0:
            text = "column %lld: an embedding variable has row_format plain"
            refuse(creation, INVALID_ARGUMENT, text, index)
            return False
        store(columns, KeyedColumn.index, index)
        if attr_count(creation, trained) != 0:
            store(columns, KeyedColumn.is_training, attr_item(creation, trained, index))
        columns += 8 * KeyedColumn.SIZE
    return True
