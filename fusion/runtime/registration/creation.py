"""What the native code that makes the state of a node's kernel shares with Python.

A state is made natively: `native_creation` reads the node's attrs, and the *builder* of its op
writes the state. Where that needs what is not there yet, a kernel that was never compiled or the
pool of threads, the builder notes it, it is provided, by Python that an upcall asks, and the
builder starts again. Python is not needed once all is there.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields
from fusion.runtime.registration.library.record import AccessEntry
from fusion.runtime.tensorflow.attrs import ArgEntry, AttrEntry, AttrValue
from fusion.runtime.tensorflow.layout import OpTable
from fusion.runtime.threads.layout import Pool
from fusion.runtime.upcalls.service import UpcallsRecord

#: What a builder may lack: these, a body by its index, and a row kernel from this index on.
BUILDER, POOL, CONSTANTS, LAUNCHER = -1, -2, -3, -4
FIRST_ROW_KERNEL = 1 << 32

#: A node fails only where nothing in an idle process can have Python's lock for so long.
PATIENCE_NS = 20_000_000_000


class KernelsRecord(Layout):
    """The kernels of an op for a type of device. Addresses are 0 until Python has been asked."""

    op_name: Address  # a C string
    provide: Address  # void (*)(`Creation`): brings what is lacking, or refuses
    server: ServerRecord  # 0 where Python is not asked
    builder: Address  # void (*)(`Creation`)
    op_table: OpTable
    launcher: Address  # see `fusion.runtime.cuda.launcher`
    is_for_gpu: Flag
    attrs: AttrEntry  # [attr_count]
    attr_count: Int64
    args: ArgEntry  # [input_count + output_count]
    input_count: Int64  # a list counts once
    output_count: Int64
    is_cached: Flag  # whether TensorFlow keeps kernels of the op by names, see `calling`
    types: TypeEntry  # [type_count] of the attrs that bodies depend on
    type_count: Int64
    names: Int64  # the index of the attr that names columns, -1 for none
    bodies: Words  # addresses, for each combination of types, the last attr's first
    row_kernels: Words  # addresses, by an index that is the op's own
    constants: Address  # what else the builder needs to know
    pool: Pool
    # Of a library, which has no server.
    pending: Address  # what the constants are once there are `accesses`
    accesses: AccessEntry  # [access_count]
    access_count: Int64


class ServerRecord(Layout):
    """The server in Python that provides what is lacking."""

    number: Int64
    upcalls: UpcallsRecord
    patience_ns: Int64  # nanoseconds without Python's lock after which a node fails
    too_late: Address  # what it says then, a C string


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
    missing_count: Int64  # what was not there, each once; what is beyond is found the next time
    missing: Words = fields(MAX_MISSING)
