"""How a library of ops finds the functions that share variables; see `variable_access`."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, store, store_as
from fusion.runtime.native.pointers import as_record, stack_words
from fusion.runtime.native.text import byte, literal
from fusion.runtime.registration.library.record import AccessEntry
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, VariableAccess

_i32, _i64 = types.int32, types.int64
_c_dlopen = types.ExternalFunction("dlopen", _i64(_i64, _i32))
_c_dlsym = types.ExternalFunction("dlsym", _i64(_i64, _i64))

#: RTLD_LAZY | RTLD_NOLOAD of dlopen(3).
_LOADED = 1 | 4

#: The maximum length of a name, and the digits of a version.
_NAME_BYTES, _DIGITS = 512, 8

_FLOAT, _BFLOAT16 = 1, 14


@jit
def find_function(name: int) -> int:
    """The address of a function of TensorFlow by its name, which any of its libraries may have."""
    address = _c_dlsym(int64(0), name)
    for library in (
        literal("libtensorflow_cc.so.2"),
        literal("libtensorflow.so.2"),
        literal("libtensorflow_framework.so.2"),
    ):
        if address == 0:
            handle = _c_dlopen(library, _i32(_LOADED))
            if handle != 0:
                address = _c_dlsym(handle, name)
    return address


@jit
def find_accesses(entries: AccessEntry, count: int) -> None:
    """Fills the records of `AccessEntry`, except those for which a function is missing."""
    for k in range(count):
        entry = entries[k]
        offset = _dtype_offset(find_function(entry.describe_variable))
        if offset < 0:
            continue
        _find(entry, offset)


@jit
def _find(entry: AccessEntry, offset: int) -> None:
    addresses, count = stack_words(OBJECT_WORDS), entry.name_count
    for k in range(count):
        address = _find_versioned(entry, entry.names[k])
        if address == 0:
            return
        addresses[k] = address
    record = as_record(VariableAccess, entry.record)
    record.dtype_offset = offset
    for k in range(VariableAccess.SIZE - VariableAccess.dtype):
        store(record, VariableAccess.dtype + k, entry.dtype[k])
    for k in range(count - 1, -1, -1):
        derived = VariableAccess.SIZE + k - VariableAccess.dtype_offset
        field = k if k < VariableAccess.dtype_offset else derived
        store(record, field, addresses[k])


@jit
def _find_versioned(entry: AccessEntry, name: int) -> int:
    """The address of a function whose name may contain one of several versions of absl."""
    text, length, version_start = stack_words(_NAME_BYTES // 8), int64(0), int64(-1)
    while length < _NAME_BYTES - 1 and byte(name + length) != 0:
        store_as(text, length, np.uint8(byte(name + length)), np.uint8)
        if length >= 3 and _is_marker(name, length - 3):
            version_start = length + 1
        length += 1
    store_as(text, length, np.uint8(0), np.uint8)
    address = find_function(text)
    for k in range(entry.version_count if version_start >= 0 else 0):
        if address == 0:
            version = entry.versions[k]
            for digit in range(_DIGITS):
                store_as(text, version_start + digit, np.uint8(byte(version + digit)), np.uint8)
            address = find_function(text)
    return address


@jit
def _is_marker(name: int, start: int) -> bool:
    """Whether "lts_", which the digits of a version follow, is at an index of a C string."""
    same, marker = int64(0), literal("lts_")
    for k in range(4):
        same += int64(byte(name + start + k) == byte(marker + k))
    return same == 4


@jit
def _dtype_offset(describe: int) -> int:
    """The offset of the byte in a variable that is its dtype; -1 if there is none."""
    offset, count = int64(-1), int64(0)
    if describe == 0:
        return offset
    for k in range(8 * OBJECT_WORDS):
        if _describes(describe, int64(k), int64(_FLOAT), literal("float/")):
            offset, count = int64(k), count + 1
    if count != 1 or not _describes(describe, offset, int64(_BFLOAT16), literal("bfloat16/")):
        return int64(-1)
    return offset


@jit
def _describes(describe: int, offset: int, number: int, expected: int) -> bool:
    """Whether the text of a variable, all zeros but for one byte, begins with `expected`."""
    variable, text = stack_words(2 * OBJECT_WORDS), stack_words(OBJECT_WORDS)
    for k in range(2 * OBJECT_WORDS):
        variable[k] = 0
    store_as(variable, offset, np.uint8(number), np.uint8)
    call_at(describe, text, variable)
    start, k = text[0], int64(0)
    while byte(expected + k) != 0:
        if byte(start + k) != byte(expected + k):
            return False
        k += 1
    return True
