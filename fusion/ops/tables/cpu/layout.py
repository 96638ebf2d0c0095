"""What kernels of embedding variables know of a node, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.tables.cpu_kernels.layout import Addition, KeyedGather
from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields, record
from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, UpdateAccess
from fusion.runtime.threads.layout import Job, Pool


class AccessedDtype(Layout):
    """How variables of a dtype are changed."""

    dtype: Int64  # `TF_DataType`
    item_bytes: Int64
    access: UpdateAccess  # 0 where this TensorFlow does not let them be changed in place


class AccessConstants(Layout):
    """What the builder of states needs to know: the indices of attrs, -1 for none, and dtypes."""

    T: Int64
    keys: Int64  # the dtype of keys
    dim: Int64
    is_training: Int64
    number: Int64
    dtypes: AccessedDtype = record(AccessedDtype, len(COMPUTED))


class AccessState(State):
    """The state of a node."""

    table_access: UpdateAccess = record(UpdateAccess)  # for tables and slots
    index_access: UpdateAccess = record(UpdateAccess)
    pool: Pool  # of threads, 0 for none
    item_bytes: Int64
    dim: Int64
    has_int32_keys: Flag
    is_training: Flag
    number: Int64  # of a slot


class KeyedCall(Layout):
    """Keys of one table, to be found and gathered, and added in training."""

    gather: KeyedGather = record(KeyedGather)
    addition: Addition = record(Addition)
    key_count: Int64
    missing: Words  # the numbers of keys that were not found, int64 [missing_count]
    missing_count: Int64


class GatherJob(Job):
    """What the tasks of a call share."""

    call: KeyedCall = record(KeyedCall)
    task_keys: Int64


class SharedVariable(Layout):
    """A variable that a kernel shares with others, until it lets go of it.

    Of several that are shared at once the first has the lock of all.
    """

    access: UpdateAccess
    variable: Address  # 0 if there is none
    is_locked: Flag
    has_tensor: Flag
    data: Address
    byte_count: Int64
    holder: Fields = fields(OBJECT_WORDS)  # of its lock
    tensor: Fields = fields(OBJECT_WORDS)
