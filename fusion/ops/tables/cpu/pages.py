"""Outputs of zeros whose pages the system provides when they are used.

TensorFlow's allocators are not made for what is larger than memory: with oneDNN there is one that
never gives more than the machine has, all in all. So memory is mapped here, and the tensor is
marked as its owner. Else TensorFlow would copy a variable before its first update.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.layout import Address, Fields, Int64, Layout, Words, fields
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memset, load_as, store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.system import (
    LARGE_PAGE,
    PAGE,
    are_mapped,
    drop_pages,
    map_memory,
    unmap,
    unmapper,
    use_large_pages,
)
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_expected_output_datatype,
    tf_new_tensor,
    tf_set_output,
    tf_tensor_maybe_move,
)

#: The most that is mapped at once: half of what a process can address.
_MAX_BYTES = 1 << 46


class _TensorInterface(Layout):
    """What a TF_Tensor points to: TensorInterface of tensorflow/c/tf_tensor_internal.h."""

    functions: Address
    shape: Fields = fields(3)
    buffer: _ManagedBuffer


class _ManagedBuffer(Layout):
    """TF_ManagedBuffer of the same file."""

    functions: Address
    references: Int64
    data: Address
    size: Int64
    deallocator: Address  # called with data, size and argument
    argument: Int64
    owns_memory: Int64  # its first byte; the others are anything


@jit
def zeros_output(frame: op.Frame, rank: int, rows: int, columns: int, item: int) -> int:
    """The address of zeros [rows] or [rows, columns], of `item` bytes each, as the only output.

    0 if they cannot be had.
    """
    if _is_large(rows, columns, item):
        address = _mapped_output(frame, rank, rows, columns, rows * columns * item)
        if address != 0:
            return address
    address = op.new_output(frame, int64(0), rank, rows, columns, item)
    if address != 0:
        _make_zeros(address, rows * columns * item)
    return address


@jit
def _is_large(rows: int, columns: int, item: int) -> bool:
    """Whether elements take more than a large page, and not more than can be mapped."""
    if rows < 1 or columns < 1 or rows > _MAX_BYTES or columns > _MAX_BYTES:
        return False
    return rows <= _MAX_BYTES // (columns * item) and rows * columns * item > LARGE_PAGE


@jit
def _mapped_output(frame: op.Frame, rank: int, rows: int, columns: int, size: int) -> int:
    """The address of mapped memory as the output; 0 if the system or TensorFlow refuses it."""
    address = map_memory(size)
    if address == 0 or not give_mapped(frame, rank, rows, columns, address, size, False):
        return int64(0)
    return address


@jit
def give_mapped(
    frame: op.Frame, rank: int, rows: int, columns: int, address: int, size: int, even_shared: bool
) -> bool:
    """Makes mapped memory the only output, or gives it back to the system.

    Args:
      rank, rows, columns: of the output, [rows] or [rows, columns].
      address, size: of the memory.
      even_shared: whether the output may be a tensor that does not own it, which a variable copies
        before its first update or gather.

    Returns:
      Whether it is the output.
    """
    context, status = frame.context, frame.status
    dims = stack_words(2)
    dims[0] = rows
    dims[1] = columns
    datatype = tf_expected_output_datatype(context, np.int32(0))
    free = unmapper()
    tensor = as_words(tf_new_tensor(datatype, dims, np.int32(rank), address, size, free, address))
    if tensor == 0:
        unmap(address, size)
        return False
    owner = _owner(tensor, address, size, free)
    if owner == 0 and not even_shared:
        tf_delete_tensor(tensor)
        return False
    owner = tensor if owner == 0 else owner
    tf_set_output(context, np.int32(0), owner, status)
    tf_delete_tensor(owner)  # the context holds the output
    op.check(frame)
    return True


@jit
def _owner(tensor: Words, data: int, size: int, deallocator: int) -> int:
    """The tensor as the owner of its memory; 0, and the tensor as it was, if that is not possible.

    TF_NewTensor has no argument for it. The object is looked into, and believed if it has all that
    it was made of where it is looked for; TF_TensorMaybeMove checks whether it is the owner now.
    """
    interface = as_record(_TensorInterface, tensor[0])
    if not _is_readable(interface, 8 * _TensorInterface.SIZE):
        return int64(0)
    buffer = interface.buffer
    if not _is_readable(buffer, 8 * _ManagedBuffer.SIZE):
        return int64(0)
    flag = buffer + 8 * _ManagedBuffer.owns_memory
    known = buffer.data == data
    known = known and buffer.size == size
    known = known and buffer.deallocator == deallocator
    known = known and buffer.argument == data
    if not known or load_as(flag, 0, np.uint8) != 0:
        return int64(0)
    store_as(flag, 0, np.uint8(1), np.uint8)
    owner = tf_tensor_maybe_move(tensor)
    if owner == 0:
        store_as(flag, 0, np.uint8(0), np.uint8)
    return owner


@jit
def _is_readable(address: int, size: int) -> bool:
    """Whether memory of words is mapped, of two pages at most."""
    if address < PAGE or address % 8 != 0:
        return False
    first, pages = address // PAGE * PAGE, stack_words(1)
    return are_mapped(first, address + size - first, pages)


@jit
def _make_zeros(address: int, size: int) -> None:
    """Makes memory zeros, if it can without use of any of it but the ends.

    Pages that were dropped are zeros when they are used again. What cannot be dropped (locked
    memory) is written.
    """
    first = (address + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE
    end = (address + size) // LARGE_PAGE * LARGE_PAGE
    if first >= end or not drop_pages(first, end - first):
        c_memset(address, types.int32(0), size)
        return
    use_large_pages(first, end - first)
    c_memset(address, types.int32(0), first - address)
    c_memset(end, types.int32(0), int64(address + size - end))
