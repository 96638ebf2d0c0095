"""The builder of the states of ops for whole columns, some of which have embedding variables."""

from __future__ import annotations

from fusion.ops.columns.cpu.layout import ColumnsState, KeyedColumn, KeyedColumns, KeyedConstants
from fusion.ops.columns.cpu.states import columns_state
from fusion.ops.tables.cpu.layout import AccessedDtype
from fusion.ops.tables.cpu.states import INDEX_DTYPE, accessed_dtype
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import attr_count, attr_item, attr_word, constants_of
from fusion.runtime.tensorflow.variable_access import UpdateAccess


def build_keyed_columns_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(KeyedConstants, constants_of(creation))
    if constants == 0:
        return
    number = attr_word(creation, constants.dtype_attr)
    dtypes = constants.dtypes
    of_table = as_record(AccessedDtype, accessed_dtype(dtypes, number))
    of_index = as_record(AccessedDtype, accessed_dtype(dtypes, int64(INDEX_DTYPE)))
    if of_table == 0 or of_index == 0:
        text = "TensorFlow does not export how variables of DataType %lld are changed in place"
        refuse(creation, UNIMPLEMENTED, text, number)
        return
    if not _check(creation, constants):
        return
    count = attr_word(creation, constants.keyed_count)
    more = KeyedColumns.SIZE + count * KeyedColumn.SIZE
    state = as_record(ColumnsState, columns_state(creation, constants, more))
    if state == 0:
        return
    columns = as_record(KeyedColumns, state + 8 * state.keyed_offset)
    for k in range(UpdateAccess.SIZE):
        of_tables = load(of_table.access, k)
        of_indices = load(of_index.access, k)
        store(columns.table_access, k, of_tables)
        store(columns.index_access, k, of_indices)
    columns.count = count
    _put_columns(creation, constants, state, columns.columns)


@jit
def _check(creation: Creation, constants: KeyedConstants) -> bool:
    """Whether the lists of attrs have a flag for each column, and as many are set as counted."""
    keyed, keyed_count = constants.keyed, int64(0)
    count = attr_word(creation, constants.count_attr)
    trained = constants.is_training
    flags, trained_flags = attr_count(creation, keyed), attr_count(creation, trained)
    if flags != count or trained_flags not in (0, count):
        text = "keyed and is_training have %lld and %lld items for %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, flags, trained_flags, count)
        return False
    for index in range(count):
        keyed_count += attr_item(creation, keyed, index)
    declared = attr_word(creation, constants.keyed_count)
    if keyed_count != declared:
        text = "num_keyed is %lld, but keyed has %lld columns"
        refuse(creation, INVALID_ARGUMENT, text, declared, keyed_count)
    return keyed_count == declared


@jit
def _put_columns(
    creation: Creation, constants: KeyedConstants, state: ColumnsState, columns: int
) -> None:
    """Writes each `KeyedColumn`."""
    keyed, trained = constants.keyed, constants.is_training
    for index in range(state.column_count):
        if attr_item(creation, keyed, index) == 0:
            continue
        as_record(KeyedColumn, columns).index = index
        if attr_count(creation, trained) != 0:
            as_record(KeyedColumn, columns).is_training = attr_item(creation, trained, index)
        columns += 8 * KeyedColumn.SIZE
