"""Outputs of zeros, of which the system provides the pages when they are used.

TensorFlow's allocators are not made for what is larger than memory: with oneDNN there is one that
never gives more than the machine has, all in all. So memory is mapped here, and TensorFlow told
that it is the tensor's own. Else a variable would be copied before its first update.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.layout import Address, Fields, Int64, Layout, fields
from fusion.runtime.native.frame import check, new_output
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.layout import Frame
from fusion.runtime.native.memory import c_memset, load, load_as, stack_words, store, store_as
from fusion.runtime.native.text import literal
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_expected_output_datatype,
    tf_new_tensor,
    tf_set_output,
    tf_tensor_maybe_move,
)

_i32, _i64 = types.int32, types.int64
_mmap = types.ExternalFunction("mmap", _i64(_i64, _i64, _i32, _i32, _i32, _i64))
_munmap = types.ExternalFunction("munmap", _i32(_i64, _i64))
_madvise = types.ExternalFunction("madvise", _i32(_i64, _i64, _i32))
_mincore = types.ExternalFunction("mincore", _i32(_i64, _i64, _i64))
_dlsym = types.ExternalFunction("dlsym", _i64(_i64, _i64))

#: Of a large page, from which on memory is mapped, and of a small one.
_LARGE_PAGE, _PAGE = 1 << 21, 1 << 12

#: The most that is mapped at once: half of what a process can address.
_MOST_BYTES = 1 << 46

#: PROT_READ | PROT_WRITE; MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE (Linux, x86-64 and arm64).
_READ_WRITE, _ON_DEMAND = 3, 0x4022

#: MADV_DONTNEED and MADV_HUGEPAGE (Linux, asm-generic/mman-common.h).
_DROP, _HUGE = 4, 14


class _TensorInterface(Layout):
    """What a TF_Tensor points to: TensorInterface of tensorflow/c/tf_tensor_internal.h."""

    functions: Address
    shape: Fields = fields(3)
    buffer: Address  # `_ManagedBuffer`


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
def zeros_output(frame: int, rank: int, rows: int, columns: int, item: int) -> int:
    """The address of zeros [rows] or [rows, columns], of `item` bytes each, as the only output.

    0 if they cannot be had.
    """
    if _is_large(rows, columns, item):
        address = _mapped_output(frame, rank, rows, columns, rows * columns * item)
        if address != 0:
            return address
    address = new_output(frame, int64(0), rank, rows, columns, item)
    if address != 0:
        _make_zeros(address, rows * columns * item)
    return address


@jit
def _is_large(rows: int, columns: int, item: int) -> bool:
    """Whether elements take more than a large page, and not more than can be mapped."""
    if rows < 1 or columns < 1 or rows > _MOST_BYTES or columns > _MOST_BYTES:
        return False
    return rows <= _MOST_BYTES // (columns * item) and rows * columns * item > _LARGE_PAGE


@jit
def _mapped_output(frame: int, rank: int, rows: int, columns: int, size: int) -> int:
    """The address of mapped memory as the output; 0 if the system or TensorFlow refuses it."""
    address = _map(size)
    if address == 0:
        return int64(0)
    context, status = load(frame, Frame.context), load(frame, Frame.status)
    dims = stack_words(2)
    store(dims, 0, rows)
    store(dims, 1, columns)
    datatype = tf_expected_output_datatype(context, np.int32(0))
    # munmap(2) finds what it needs in the first two arguments.
    free = _dlsym(int64(0), literal("munmap"))
    tensor = tf_new_tensor(datatype, dims, np.int32(rank), address, size, free, address)
    if tensor == 0:
        _munmap(address, size)
        return int64(0)
    owner = _owner(tensor, address, size, free)
    if owner == 0:
        tf_delete_tensor(tensor)
        return int64(0)
    tf_set_output(context, np.int32(0), owner, status)
    tf_delete_tensor(owner)  # the context holds the output
    check(frame)
    return address


@jit
def _map(size: int) -> int:
    """The address of mapped memory, which begins with a large page; 0 if there is none.

    Large pages are only faster: lookups are all over the memory, and there are more small ones than
    the processor remembers.
    """
    mapped = (size + _PAGE - 1) // _PAGE * _PAGE
    nowhere, flags = int64(0), types.int32(_ON_DEMAND)
    start = _mmap(
        nowhere, mapped + _LARGE_PAGE, types.int32(_READ_WRITE), flags, types.int32(-1), nowhere
    )
    if start == -1:
        return int64(0)
    address = (start + _LARGE_PAGE - 1) // _LARGE_PAGE * _LARGE_PAGE
    if address > start:
        _munmap(start, address - start)
    _munmap(address + mapped, start + _LARGE_PAGE - address)
    _madvise(address, mapped, types.int32(_HUGE))
    return address


@jit
def _owner(tensor: int, data: int, size: int, deallocator: int) -> int:
    """The tensor as the owner of its memory; 0, and the tensor as it was, if that is not possible.

    TF_NewTensor has no argument for it. The object is looked into, and believed if it has all that
    it was made of where it is looked for; TF_TensorMaybeMove tells whether it is the owner now.
    """
    interface = load(tensor, 0)
    if not _is_readable(interface, 8 * _TensorInterface.SIZE):
        return int64(0)
    buffer = load(interface, _TensorInterface.buffer)
    if not _is_readable(buffer, 8 * _ManagedBuffer.SIZE):
        return int64(0)
    flag = buffer + 8 * _ManagedBuffer.owns_memory
    known = load(buffer, _ManagedBuffer.data) == data
    known = known and load(buffer, _ManagedBuffer.size) == size
    known = known and load(buffer, _ManagedBuffer.deallocator) == deallocator
    known = known and load(buffer, _ManagedBuffer.argument) == data
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
    if address < _PAGE or address % 8 != 0:
        return False
    first, pages = address // _PAGE * _PAGE, stack_words(1)
    return _mincore(first, address + size - first, pages) == 0


@jit
def _make_zeros(address: int, size: int) -> None:
    """Makes memory zeros, if it can without use of any of it but the ends.

    Pages that were dropped are zeros when they are used again. What cannot be dropped (locked
    memory) is written.
    """
    first = (address + _LARGE_PAGE - 1) // _LARGE_PAGE * _LARGE_PAGE
    end = (address + size) // _LARGE_PAGE * _LARGE_PAGE
    if first >= end or _madvise(first, end - first, types.int32(_DROP)) != 0:
        c_memset(address, types.int32(0), size)
        return
    _madvise(first, end - first, types.int32(_HUGE))
    c_memset(address, types.int32(0), first - address)
    c_memset(end, types.int32(0), int64(address + size - end))
