"""What host code that launches kernels on GPUs finds in memory, and what kernels report there."""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields, record

#: Copies to a GPU that may be under way, and the bytes of each.
SLOT_COUNT, SLOT_BYTES = 64, 1 << 16

#: The error slots of a node: one for each call that is under way, and the first for all that find
#: no other.
ERROR_SLOTS = 8


class LauncherRecord(Layout):
    """What launches kernels, once in a process.

    First functions of the driver, see `launcher.FUNCTIONS`. All others but `find_stream` are called
    while the GPU's context is the thread's.
    """

    launch: Address
    copy_in: Address
    copy_out: Address
    fill: Address
    wait: Address
    stream_context: Address
    push: Address
    pop: Address
    context_device: Address
    event_wait: Address
    event_record: Address
    find_stream: Address  # (context) -> its stream, 0 if there is none
    load: Address  # (kernel, GPU) -> the kernel's handle on that GPU, 0 if there is none
    open_gpu: Address  # (GPU) -> its `GpuRecord`, 0 if it cannot be had
    open_node: Address  # (state of a node) -> 1 once the state has error slots, else 0
    reason: Address  # what the last of those that gave 0 says, a C string
    zeros: Address  # stands for memory that could not be read
    waits: Flag  # whether every op waits for its kernels
    gpus: Words  # of each `GpuRecord`, 0 before it is opened, int64 [GPUs]


class CopySlot(Layout):
    """Memory by which the host copies to a GPU."""

    is_taken: Flag  # whether a thread is in it
    event: Address  # behind the last copy out of it
    memory: Address  # `SLOT_BYTES` of the host that the GPU can read


class GpuRecord(Layout):
    """A GPU."""

    next_slot: Int64
    slots: CopySlot = record(CopySlot, SLOT_COUNT)
    handles: Fields = fields(0)  # of kernels


class ErrorRecord(Layout):
    """The first error that kernels report."""

    error_code: Int64  # see `fusion.gpu_ops.layout.call`, 0 for none
    column: Int64
    element: Int64
    value: Int64  # its id or row


class ErrorSlot(ErrorRecord):
    """Where the kernels of a call of a node report errors."""

    is_taken: Flag  # whether a call has it
