"""The builder of the states of KeyedEmbeddingGather."""

from __future__ import annotations

from fusion.ops.cpu.tables.constants import AccessedDtype, GatherConstants
from fusion.ops.cpu.tables.layout import GatherState
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
_INDEX_DTYPE = DTYPES["float64"].enum


def build_gather_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    number = attr_word(creation, load(constants, GatherConstants.T))
    of_table, of_index = _dtype(constants, number), _dtype(constants, int64(_INDEX_DTYPE))
    if of_table == 0 or of_index == 0:
        text = "TensorFlow does not export how variables of DataType %lld are changed in place"
        refuse(creation, UNIMPLEMENTED, text, int64(_INDEX_DTYPE) if of_index == 0 else number)
        return
    pool, state = pool_of(creation), begin_state(creation, GatherState.SIZE)
    if state == 0:
        return
    for k in range(UpdateAccess.SIZE):
        of_tables = load(load(of_table, AccessedDtype.access), k)
        of_indices = load(load(of_index, AccessedDtype.access), k)
        store(state, GatherState.table_access + k, of_tables)
        store(state, GatherState.index_access + k, of_indices)
    store(state, GatherState.pool, pool)
    store(state, GatherState.item_bytes, load(of_table, AccessedDtype.item_bytes))
    keys = attr_word(creation, load(constants, GatherConstants.Tid))
    store(state, GatherState.has_int32_keys, int64(keys == _INT32))
    dim = attr_word(creation, load(constants, GatherConstants.dim))
    store(state, GatherState.dim, dim)
    is_training = attr_word(creation, load(constants, GatherConstants.is_training))
    store(state, GatherState.is_training, is_training)


@jit
def _dtype(constants: int, number: int) -> int:
    """The address of the `AccessedDtype` of a `TF_DataType`; 0 without access."""
    for k in range(_DTYPE_COUNT):
        dtype = constants + 8 * (GatherConstants.dtypes + AccessedDtype.SIZE * k)
        if load(dtype, AccessedDtype.dtype) == number:
            return dtype if is_access(load(dtype, AccessedDtype.access)) else int64(0)
    return int64(0)
