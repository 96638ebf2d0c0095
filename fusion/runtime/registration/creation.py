"""The records that Python shares with the native code that makes the state of a node's kernel.

A state is made natively: `native_creation` reads the node's attrs, and the *builder* of its op
writes the state. If something is missing, such as a kernel that was never compiled or the pool of
threads, the builder notes it, an upcall has Python provide it, and the builder starts again. Once
nothing is missing, Python is not needed.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields
from fusion.runtime.registration.library.record import AccessEntry
from fusion.runtime.tensorflow.attrs import ArgEntry, AttrEntry, AttrValue
from fusion.runtime.tensorflow.layout import OpTable
from fusion.runtime.threads.layout import Pool
from fusion.runtime.upcalls.service import UpcallsRecord

#: What a builder may miss: one of these, a body by its index, or a row kernel from this index on.
BUILDER, POOL, CONSTANTS, LAUNCHER = -1, -2, -3, -4
FIRST_ROW_KERNEL = 1 << 32

#: A node fails if an idle process has not had Python's lock for so long.
PATIENCE_NS = 20_000_000_000


class KernelsRecord(Layout):
    """The kernels of an op for a type of device. Addresses are 0 until they are provided."""

    op_name: Address  # a C string
    provide: Address  # void (*)(`Creation`): provides what is missing, or refuses
    server: ServerRecord  # 0 without Python
    builder: Address  # void (*)(`Creation`)
    op_table: OpTable
    launcher: Address  # see `fusion.runtime.cuda.launcher`
    is_for_gpu: Flag
    attrs: AttrEntry  # [attr_count]
    attr_count: Int64
    args: ArgEntry  # [input_count + output_count]
    input_count: Int64  # a list counts once
    output_count: Int64
    is_cached: Flag  # whether TensorFlow caches kernels of the op by node name, see `calling`
    types: TypeEntry  # [type_count] of the attrs that bodies depend on
    type_count: Int64
    names: Int64  # the index of the attr that names columns, -1 for none
    bodies: Words  # addresses, for each combination of types, the last attr's first
    row_kernels: Words  # addresses, by an index that is the op's own
    constants: Address  # other data for the builder
    pool: Pool
    # Of a library, which has no server.
    pending: Address  # the value of `constants` once `accesses` are found
    accesses: AccessEntry  # [access_count]
    access_count: Int64


class ServerRecord(Layout):
    """The server in Python that provides what is missing."""

    number: Int64
    upcalls: UpcallsRecord
    patience_ns: Int64  # nanoseconds without Python's lock after which a node fails
    too_late: Address  # the message of that failure, a C string


class TypeEntry(Layout):
    """The values that an attr of a kernel may have."""

    attr: Int64  # its index
    count: Int64
    numbers: Words  # `TF_DataType` of each, int64


MESSAGE_BYTES = 2304
MAX_MISSING = 64


class Creation(Layout):
    """The creation of a state."""

    record: KernelsRecord
    values: AttrValue  # for each attr
    state: Address  # out: from malloc, 0 if it failed
    has_failed: Flag
    code: Int64  # `TF_Code`, and the message, a C string
    message: Fields = fields(MESSAGE_BYTES // 8)
    missing_count: Int64  # distinct missing items; the rest follows in the next round
    missing: Words = fields(MAX_MISSING)
