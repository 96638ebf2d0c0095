"""The record of a call that a kernel is given."""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout, Words, fields
from fusion.runtime.tensorflow.layout import State


class Frame(Layout):
    """A call of a kernel.

    Lists follow: the starts of the inputs and of the outputs among the tensors of each; the size of
    each symbol and the input that bound it; the tensors.
    """

    context: Address  # TF_OpKernelContext*
    status: Address  # TF_Status*
    has_failed: Flag
    state: State  # of the kernel
    tensor_count: Int64  # tensors held
    tensor_capacity: Int64
    started: Int64  # nanoseconds, of `system.now`
    row_count: Int64  # for `Counters`
    helper_count: Int64
    starts: Words = fields(0)


#: So many temporary tensors can be held, beyond inputs and outputs, on a CPU and on a GPU.
MAX_TEMPS = 32
MAX_GPU_TEMPS = 192
