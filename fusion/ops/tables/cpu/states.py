"""The builder of the states of ops that change embedding variables."""

from __future__ import annotations

from fusion.ops.tables.cpu.layout import AccessConstants, AccessedDtype, AccessState
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import (
    attr_word,
    begin_state,
    constants_of,
    is_access,
    pool_of,
)
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.variable_access import UpdateAccess, VariableAccess

_DTYPE_COUNT = len(COMPUTED)
_INT32 = DTYPES["int32"].enum

#: Of the variable of an index.
INDEX_DTYPE = DTYPES["float64"].enum


def build_access_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(AccessConstants, constants_of(creation))
    if constants == 0:
        return
    number = int64(INDEX_DTYPE)  # ops without tables have no attr for their dtype
    if constants.T >= 0:
        number = attr_word(creation, constants.T)
    dtypes = constants.dtypes
    of_table = as_record(AccessedDtype, accessed_dtype(dtypes, number))
    of_index = as_record(AccessedDtype, accessed_dtype(dtypes, int64(INDEX_DTYPE)))
    if of_table == 0 or of_index == 0:
        text = "TensorFlow does not export how variables of DataType %lld are changed in place"
        refuse(creation, UNIMPLEMENTED, text, int64(INDEX_DTYPE) if of_index == 0 else number)
        return
    pool, state = pool_of(creation), as_record(AccessState, begin_state(creation, AccessState.SIZE))
    if state == 0:
        return
    for k in range(UpdateAccess.SIZE):
        of_tables = load(of_table.access, k)
        of_indices = load(of_index.access, k)
        store(state.table_access, k, of_tables)
        store(state.index_access, k, of_indices)
    state.pool = pool
    state.item_bytes = of_table.item_bytes
    keys = _attr(creation, constants.keys)
    state.has_int32_keys = int64(keys == _INT32)
    dim = _attr(creation, constants.dim)
    state.dim = dim
    is_training = _attr(creation, constants.is_training)
    state.is_training = is_training
    state.number = _attr(creation, constants.number)


@jit
def _attr(creation: Creation, attr: int) -> int:
    """The value of an attr, 0 of one that the op does not have."""
    return attr_word(creation, attr) if attr >= 0 else int64(0)


@jit
def accessed_dtype(dtypes: AccessedDtype, number: int) -> int:
    """The address of the `AccessedDtype` of a `TF_DataType`; 0 without access.

    Args:
      dtypes: the address of all.
    """
    for k in range(_DTYPE_COUNT):
        dtype = dtypes[k]
        if dtype.dtype == number:
            return dtype if is_access(as_record(VariableAccess, dtype.access)) else int64(0)
    return int64(0)
