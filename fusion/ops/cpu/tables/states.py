"""The builder of the states of ops that change embedding variables."""

from __future__ import annotations

from fusion.ops.cpu.tables.layout import AccessConstants, AccessedDtype, AccessState
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.registration.refusal import UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import (
    attr_word,
    begin_state,
    constants_of,
    is_access,
    pool_of,
)
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.variable_access import UpdateAccess

_DTYPE_COUNT = len(COMPUTED)
_INT32 = DTYPES["int32"].enum

#: Of the variable of an index.
INDEX_DTYPE = DTYPES["float64"].enum


def build_access_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    number = int64(INDEX_DTYPE)  # ops without tables have no attr for their dtype
    if load(constants, AccessConstants.T) >= 0:
        number = attr_word(creation, load(constants, AccessConstants.T))
    dtypes = constants + 8 * AccessConstants.dtypes
    of_table, of_index = accessed_dtype(dtypes, number), accessed_dtype(dtypes, int64(INDEX_DTYPE))
    if of_table == 0 or of_index == 0:
        text = "TensorFlow does not export how variables of DataType %lld are changed in place"
        refuse(creation, UNIMPLEMENTED, text, int64(INDEX_DTYPE) if of_index == 0 else number)
        return
    pool, state = pool_of(creation), begin_state(creation, AccessState.SIZE)
    if state == 0:
        return
    for k in range(UpdateAccess.SIZE):
        of_tables = load(load(of_table, AccessedDtype.access), k)
        of_indices = load(load(of_index, AccessedDtype.access), k)
        store(state, AccessState.table_access + k, of_tables)
        store(state, AccessState.index_access + k, of_indices)
    store(state, AccessState.pool, pool)
    store(state, AccessState.item_bytes, load(of_table, AccessedDtype.item_bytes))
    keys = _attr(creation, load(constants, AccessConstants.keys))
    store(state, AccessState.has_int32_keys, int64(keys == _INT32))
    dim = _attr(creation, load(constants, AccessConstants.dim))
    store(state, AccessState.dim, dim)
    is_training = _attr(creation, load(constants, AccessConstants.is_training))
    store(state, AccessState.is_training, is_training)
    store(state, AccessState.number, _attr(creation, load(constants, AccessConstants.number)))


@jit
def _attr(creation: int, attr: int) -> int:
    """The value of an attr, 0 of one that the op does not have."""
    return attr_word(creation, attr) if attr >= 0 else int64(0)


@jit
def accessed_dtype(dtypes: int, number: int) -> int:
    """The address of the `AccessedDtype` of a `TF_DataType`; 0 without access.

    Args:
      dtypes: the address of all.
    """
    for k in range(_DTYPE_COUNT):
        dtype = dtypes + 8 * AccessedDtype.SIZE * k
        if load(dtype, AccessedDtype.dtype) == number:
            return dtype if is_access(load(dtype, AccessedDtype.access)) else int64(0)
    return int64(0)
