"""ReadTableFile on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.ops.tables.cpu.pages import give_mapped
from fusion.runtime.limits.memory import fits_into_memory
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcpy, store_as
from fusion.runtime.native.strings import string_of
from fusion.runtime.native.system import (
    close_file,
    error_number,
    error_text,
    file_bytes,
    map_file,
    open_file,
    read_file,
    read_no_further,
)
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec

#: ENOENT and ENOMEM.
_NO_FILE, _NO_MEMORY = 2, 12

#: No file is larger: half of what a process can address.
_MAX_BYTES = 1 << 46


@jit
def _fail_system(frame: int, path: int) -> None:
    """Fails with the system's error for a file."""
    number = error_number()
    if number == _NO_FILE:
        op.fail(frame, op.NOT_FOUND, "file %s: %s", path, error_text())
    elif number == _NO_MEMORY:
        op.fail(frame, op.RESOURCE_EXHAUSTED, "file %s: %s", path, error_text())
    else:
        op.fail(frame, op.UNKNOWN, "file %s: %s", path, error_text())


@jit
def _has_size(frame: int, path: int, file: int, rows: int, width: int, size: int) -> bool:
    """Whether a file has so many bytes; fails otherwise."""
    file_size = file_bytes(file)
    if file_size < 0:
        _fail_system(frame, path)
    elif file_size != size:
        text = "file %s has %lld bytes, but a table of %lld rows of %lld elements has %lld"
        op.fail(frame, op.DATA_LOSS, text, path, file_size, rows, width, size)
    return file_size == size


@jit
def _content(frame: int, path: int, rows: int, width: int, size: int, in_memory: bool) -> int:
    """The address of the content of a file, mapped memory; 0 if there is none, or an error."""
    file, address = open_file(path), int64(0)
    if file < 0:
        _fail_system(frame, path)
        return address
    if _has_size(frame, path, file, rows, width, size) and size > 0:
        address = read_file(file, size) if in_memory else map_file(file, size)
        # It may have become shorter meanwhile.
        if address == 0 and _has_size(frame, path, file, rows, width, size):
            _fail_system(frame, path)
    close_file(file)
    return address


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    dtype, slot = DTYPES[types["T"]], spec.slots
    stored, item = dtype.stored_type, dtype.item_bytes

    @jit
    def read_table(frame: op.Frame, path: int) -> None:
        rows, width = op.attr(frame, slot.rows), op.attr(frame, slot.width)
        in_memory, size = op.attr(frame, slot.in_memory) != 0, rows * width * item
        address = _content(frame, path, rows, width, size, in_memory)
        if address != 0:
            # Reading ahead fills memory with many rows for one, sooner where there is room for
            # all, and in place of others where there is not.
            if not in_memory and not fits_into_memory(max(size, op.attr(frame, slot.mapped_bytes))):
                read_no_further(address, size)
            if not give_mapped(frame, int64(2), rows, width, address, size, True):
                op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for a tensor")
        elif not op.failed(frame):
            op.output_matrix(frame, int64(0), int64(0), rows, width, stored)

    def body(frame: op.Frame) -> None:
        rows, width = op.attr(frame, slot.rows), op.attr(frame, slot.width)
        if rows > _MAX_BYTES // item // width:
            too_large = "a table of %lld rows of %lld elements is too large"
            op.fail(frame, op.INVALID_ARGUMENT, too_large, rows, width)
            return
        text, size = string_of(op.data(frame, int64(0), int64(0)), int64(0))
        path = c_malloc(size + 1)
        if path == 0:
            op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for a path of %lld bytes", size)
            return
        c_memcpy(path, text, size)
        store_as(path, size, np.uint8(0), np.uint8)
        read_table(frame, path)
        c_free(path)

    return body
