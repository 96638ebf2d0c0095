"""What the kernel of KeyedEmbeddingGather knows of a node, and of a call."""

from __future__ import annotations

from fusion.cpu_ops.index_layout import Addition
from fusion.cpu_ops.keyed_gather import KeyedGather
from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, fields
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, UpdateAccess
from fusion.runtime.threads.layout import Job


class GatherState(State):
    """The state of a node."""

    table_access: Fields = fields(UpdateAccess.SIZE)
    index_access: Fields = fields(UpdateAccess.SIZE)
    pool: Address  # of threads, 0 for none
    item_bytes: Int64
    dim: Int64
    has_int32_keys: Flag
    is_training: Flag


class GatherJob(Job):
    """What the tasks of a call share."""

    gather: Fields = fields(KeyedGather.SIZE)
    addition: Fields = fields(Addition.SIZE)
    key_count: Int64
    task_keys: Int64


class SharedVariable(Layout):
    """A variable that a kernel shares with others, until it lets go of it."""

    access: Address  # `UpdateAccess`
    variable: Address  # 0 if there is none
    is_locked: Flag
    data: Address
    byte_count: Int64
    holder: Fields = fields(OBJECT_WORDS)  # of its lock
    tensor: Fields = fields(OBJECT_WORDS)
