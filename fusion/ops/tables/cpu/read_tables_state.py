"""The builder of the states of ReadEmbeddingTables."""

from __future__ import annotations

from fusion.ops.tables.cpu.access_layout import AccessConstants
from fusion.runtime.native import op
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import UNIMPLEMENTED, refuse
from fusion.runtime.registration.states import attr_word, begin_state, constants_of, is_access
from fusion.runtime.tensorflow.variable_access import VariableAccess


def build_read_tables_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(AccessConstants, constants_of(creation))
    if constants == 0:
        return
    number = attr_word(creation, constants.dtype_attr)
    for k in range(constants.dtype_count):
        typed = constants.accesses[k]
        access = typed.access
        if typed.dtype == number and is_access(access):
            state = begin_state(creation, op.State.SIZE + VariableAccess.SIZE)
            for field in range(VariableAccess.SIZE if state != 0 else 0):
                store(state, op.State.SIZE + field, load(access, field))
            return
    text = "TensorFlow does not export how variables of DataType %lld are shared here"
    refuse(creation, UNIMPLEMENTED, text, number)
