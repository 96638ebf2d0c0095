"""The functions that kernel bodies use: a call's frame, its tensors, and errors.

Bodies name it with a prefix: `op.vector(frame, ...)`, `op.fail(frame, op.INTERNAL, ...)`. It is
imported only when something is compiled. Nothing here allocates through Numba's runtime or raises:
a body gets a `Frame`, a record on the stack of one call, takes its inputs from it as arrays,
allocates outputs and scratch in it, and reports errors with `fail`. The frame owns every tensor, so
that all of them are released on every path.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from fusion.runtime.layout import Words
from fusion.runtime.native.errors import (
    DATA_LOSS,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNKNOWN,
    fail,
    fail_column,
)
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import as_float, load, pointer, store, store_as
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.tensorflow.c_api import (
    datatype,
    item_bytes,
    tf_allocate_output,
    tf_allocate_temp,
    tf_delete_tensor,
    tf_dim,
    tf_expected_output_datatype,
    tf_forward_or_allocate,
    tf_get_code,
    tf_num_dims,
    tf_num_inputs,
    tf_set_output,
    tf_set_status,
    tf_tensor_data,
)
from fusion.runtime.tensorflow.layout import Frame, State

__all__ = ["DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT"]
__all__ += ["NOT_FOUND", "RESOURCE_EXHAUSTED", "UNKNOWN", "Frame", "State", "fail", "fail_column"]

#: The bytes of a TF_AllocatorAttributes: a size and whether memory is to be the host's.
_ALLOCATOR_ATTRIBUTES_BYTES = 9

#: No tensor is larger: this is the address space of a process. TensorFlow would wait ten seconds
#: for so much memory, and aborts when the number of elements does not fit 63 bits.
_MAX_BYTES = 2**47


@jit
def failed(frame: Frame) -> bool:
    """Whether `fail` was called, or a C API call ended in error."""
    return frame.has_failed != 0


@jit
def check(frame: Frame) -> None:
    """Marks the call as failed if a C API call has ended with an error."""
    if tf_get_code(frame.status) != 0:
        frame.has_failed = 1


@jit
def fail_with(frame: Frame, code: int, text: int) -> None:
    """As `fail`, with a message of any length, a C string."""
    if frame.has_failed == 0:
        frame.has_failed = 1
        tf_set_status(frame.status, np.int32(code), text)


@jit
def attr(frame: Frame, index: int) -> int:
    """The int, bool or string attr (its index in the allowed values) in slot `index`."""
    return load(frame.state, State.SIZE + index)


@jit
def attr_float(frame: Frame, index: int) -> float:
    """The float attr in slot `index`, as a double."""
    return as_float(load(frame.state, State.SIZE + index))


@jit
def count_rows(frame: Frame, count: int) -> None:
    """Adds to the rows that the call is counted by, see `Counters`."""
    frame.row_count = frame.row_count + count


# --- inputs ---------------------------------------------------------------------------------


@jit
def first_tensor(frame: Frame) -> int:
    """Index of the first tensor slot."""
    table = frame.state.op_table
    return Frame.starts + table.input_count + table.output_count + 2 * table.symbol_count


@jit
def list_length(frame: Frame) -> int:
    """The length of the op's list inputs, 0 if it has none."""
    table = frame.state.op_table
    lists = table.list_counts[0]
    if lists == 0:
        return 0
    return (tf_num_inputs(frame.context) - table.single_count) // lists


@jit
def _tensor(frame: Frame, index: int) -> int:
    return load(frame, first_tensor(frame) + index)


@jit
def size(frame: Frame, arg: int, position: int, axis: int) -> int:
    """Elements of tensor `position` of input `arg` along `axis`."""
    return tf_dim(_tensor(frame, frame.starts[arg] + position), np.int32(axis))


@jit
def data(frame: Frame, arg: int, position: int) -> int:
    """Address of the elements of tensor `position` of input `arg`."""
    return tf_tensor_data(_tensor(frame, frame.starts[arg] + position))


@jit
def vector(frame: Frame, arg: int, dtype: type) -> Array:
    """Input `arg` as an array of rank 1."""
    return carray(pointer(data(frame, arg, 0), dtype), (size(frame, arg, 0, 0),))


@jit
def shard_vector(frame: Frame, arg: int, position: int, dtype: type) -> Array:
    """Tensor `position` of list input `arg` as an array of rank 1."""
    return carray(pointer(data(frame, arg, position), dtype), (size(frame, arg, position, 0),))


@jit
def matrix(frame: Frame, arg: int, position: int, dtype: type) -> Array:
    """Tensor `position` of input `arg` as an array of rank 2."""
    shape = (size(frame, arg, position, 0), size(frame, arg, position, 1))
    return carray(pointer(data(frame, arg, position), dtype), shape)


# --- outputs and scratch --------------------------------------------------------------------
#
# C API calls set the status, also when they succeed: after an error none may follow, or the error
# would be lost.


@jit
def _hold(frame: Frame, tensor: int) -> int:
    """Makes the frame the owner of `tensor`; returns the address of its elements."""
    check(frame)
    count = frame.tensor_count
    if count == frame.tensor_capacity:
        tf_delete_tensor(tensor)
        fail(frame, INTERNAL, "the kernel allocates more than its frame holds")
    elif tensor != 0:
        store(frame, first_tensor(frame) + count, tensor)
        frame.tensor_count = count + 1
    if failed(frame) or tensor == 0:
        return int64(0)
    return tf_tensor_data(tensor)


@jit
def _output_start(frame: Frame, arg: int) -> int:
    """Index of the first tensor of output `arg` among all outputs."""
    return load(frame, Frame.starts + frame.state.op_table.input_count + arg)


@jit
def _allocate(frame: Frame, index: int, rank: int, rows: int, columns: int, item: int) -> int:
    """A new tensor for an output; 0 if it cannot be allocated."""
    if failed(frame):
        return int64(0)
    dims = stack_words(2)
    dims[0] = rows
    dims[1] = columns
    count = rows * columns if rank == 2 else rows
    is_small = 0 <= rows <= _MAX_BYTES and 0 <= columns <= _MAX_BYTES
    if not is_small or (columns > 0 and rows > _MAX_BYTES // (columns * item)):
        fail(frame, RESOURCE_EXHAUSTED, "no memory for [%lld, %lld] elements", rows, columns)
        return int64(0)
    # The element type of compiled code may be only what it sees of the output's own (uint16 of
    # half types).
    number = np.int32(index)
    tensor = tf_allocate_output(
        frame.context,
        number,
        tf_expected_output_datatype(frame.context, number),
        dims,
        np.int32(rank),
        count * item,
        frame.status,
    )
    check(frame)
    return tensor


@jit
def _output(frame: Frame, index: int, rank: int, rows: int, columns: int, item: int) -> int:
    tensor = _allocate(frame, index, rank, rows, columns, item)
    return _hold(frame, tensor) if tensor != 0 else int64(0)


@jit
def new_output(frame: Frame, index: int, rank: int, rows: int, columns: int, item: int) -> int:
    """The address of a new tensor [rows] or [rows, columns] for output `index` among all.

    The frame does not own it, so there may be any number of them.

    Args:
      item: bytes of an element.
    """
    tensor = _allocate(frame, index, rank, rows, columns, item)
    if tensor == 0:
        return int64(0)
    address = tf_tensor_data(tensor)
    tf_delete_tensor(tensor)  # the context holds the output
    return address


@jit
def shaped_output(frame: Frame, index: int, dims: Words, rank: int, item: int) -> int:
    """The address of a new tensor of any shape for output `index` among all, as of `new_output`."""
    count = int64(1)
    if failed(frame):
        return int64(0)
    for axis in range(rank):
        if dims[axis] > 0 and count > _MAX_BYTES // (dims[axis] * item):
            text = "no memory for output %lld, whose dimension %lld is %lld: it would be too large"
            fail(frame, RESOURCE_EXHAUSTED, text, index, axis, dims[axis])
            return int64(0)
        count *= dims[axis]
    number, status = np.int32(index), frame.status
    dtype = tf_expected_output_datatype(frame.context, number)
    output = tf_allocate_output(
        frame.context, number, dtype, dims, np.int32(rank), count * item, status
    )
    check(frame)
    if output == 0:
        return int64(0)
    address = tf_tensor_data(output)
    tf_delete_tensor(output)
    return address


@jit
def extended_output(frame: Frame, index: int, tensor: int, width: int, item: int) -> int:
    """The address of a new tensor of another's shape and one dimension more, as of `new_output`."""
    if failed(frame):
        return int64(0)
    rank = int64(tf_num_dims(tensor))
    dims = stack_words(rank + 1)
    for axis in range(rank):
        dims[axis] = tf_dim(tensor, np.int32(axis))
    dims[rank] = width
    return shaped_output(frame, index, dims, rank + 1, item)


@jit
def reused_output(frame: Frame, index: int, candidate: int, rows: int, columns: int) -> int:
    """The address of a matrix [rows, columns] for output `index` among all, as of `new_output`.

    It has the memory of input `candidate` among all, of the same shape and dtype, if that has no
    other consumers.
    """
    if failed(frame):
        return int64(0)
    dims, numbers = stack_words(2), stack_words(2)
    dims[0] = rows
    dims[1] = columns
    store_as(numbers, 0, np.int32(candidate), np.int32)
    status = frame.status
    tensor = tf_forward_or_allocate(
        frame.context, numbers, np.int32(1), np.int32(index), dims, np.int32(2), numbers + 8, status
    )
    check(frame)
    if tensor == 0:
        return int64(0)
    address = tf_tensor_data(tensor)
    tf_delete_tensor(tensor)
    return address


@jit
def output_vector(frame: Frame, arg: int, position: int, count: int, dtype: type) -> Array:
    """A new tensor [count] for output `arg`; empty if it cannot be allocated (see `failed`)."""
    index = _output_start(frame, arg) + position
    address = _output(frame, index, 1, count, 1, item_bytes(dtype))
    return carray(pointer(address, dtype), (count if address != 0 else 0,))


@jit
def output_matrix(
    frame: Frame, arg: int, position: int, rows: int, columns: int, dtype: type
) -> Array:
    """A new tensor [rows, columns] for output `arg`; no rows if it cannot be allocated."""
    # A matrix without columns has rows, though no address.
    index = _output_start(frame, arg) + position
    address = _output(frame, index, 2, rows, columns, item_bytes(dtype))
    return carray(pointer(address, dtype), (int64(0) if failed(frame) else rows, columns))


@jit
def forward_input(frame: Frame, output: int, arg: int) -> None:
    """Makes input `arg` itself output number `output`; nothing is copied."""
    if failed(frame):
        return
    tensor = _tensor(frame, frame.starts[arg])
    status = frame.status
    tf_set_output(frame.context, np.int32(_output_start(frame, output)), tensor, status)
    check(frame)


@jit
def _scratch(frame: Frame, count: int, dtype: type) -> int:
    return _temporary(frame, count, datatype(dtype), item_bytes(dtype), int64(0))


@jit
def _temporary(frame: Frame, count: int, datatype: int, item: int, attributes: int) -> int:
    """The address of a temporary tensor [count]; 0 if it cannot be allocated.

    Args:
      attributes: the address of a TF_AllocatorAttributes, or 0.
    """
    if failed(frame):
        return int64(0)
    if count > _MAX_BYTES // item:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for [%lld] elements", count)
        return int64(0)
    dims = stack_words(1)
    dims[0] = max(count, 1)
    ctx, status = frame.context, frame.status
    tensor = tf_allocate_temp(ctx, np.int32(datatype), dims, np.int32(1), attributes, status)
    return _hold(frame, tensor)


@jit
def scratch_bytes(frame: Frame, count: int) -> int:
    """The address of bytes for the length of the call, not initialised; 0 on failure."""
    return _scratch(frame, count, np.uint8)


@jit
def host_bytes(frame: Frame, count: int) -> int:
    """As `scratch_bytes`, in the memory of the host, also where the op runs on a GPU."""
    attributes = stack_words(2)
    attributes[0] = _ALLOCATOR_ATTRIBUTES_BYTES
    attributes[1] = 1
    return _temporary(frame, count, datatype(np.uint8), int64(1), attributes)


@jit
def scratch(frame: Frame, count: int, dtype: type) -> Array:
    """An array [count] for the length of the call, not initialised; empty on failure."""
    address = _scratch(frame, count, dtype)
    return carray(pointer(address, dtype), (count if address != 0 else 0,))


@jit
def scratch_matrix(frame: Frame, rows: int, columns: int, dtype: type) -> Array:
    """An array [rows, columns] for the length of the call; no rows on failure."""
    address = _scratch(frame, rows * columns, dtype)
    return carray(pointer(address, dtype), (int64(0) if failed(frame) else rows, columns))
