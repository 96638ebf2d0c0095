"""The entry point of a library of ops: it registers its ops and kernels with TensorFlow.

A failure cannot be returned to the caller that loads it; a line on the standard error reports it.
Later, if the state of a kernel is missing something, it provides what it can; see `creation`.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.atomic import atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcmp, call_at, load, store_as
from fusion.runtime.native.pointers import as_record, stack_record, stack_words
from fusion.runtime.native.text import Message, append_literal, begin, byte, literal
from fusion.runtime.registration.creation import (
    CONSTANTS,
    FIRST_ROW_KERNEL,
    POOL,
    Creation,
    KernelsRecord,
)
from fusion.runtime.registration.library.access import find_accesses, find_function
from fusion.runtime.registration.library.record import AccessEntry, LibraryRecord
from fusion.runtime.registration.native_registry import register_all
from fusion.runtime.registration.refusal import UNIMPLEMENTED, refuse
from fusion.runtime.registration.registry import OpRecord, Registry
from fusion.runtime.registration.unknown_attrs import varint
from fusion.runtime.tensorflow.c_api import tf_delete_buffer
from fusion.runtime.tensorflow.layout import Buffer
from fusion.runtime.threads import native_start

_i32, _i64 = types.int32, types.int64
_c_register_atfork = types.ExternalFunction("__register_atfork", _i32(_i64, _i64, _i64, _i64))
_c_write = types.ExternalFunction("write", _i64(_i32, _i64, _i64))

_STANDARD_ERROR = 2
_MESSAGE_BYTES = 1536

#: How an op of the registry compares with the library's op of that name.
_ABSENT, _SAME, _DIFFERENT = range(3)

#: The tags of `OpList.op` and `OpDef.name` in TensorFlow's op_def.proto.
_FIRST_FIELD = 0x0A


def load_library(library: LibraryRecord, level: int) -> None:
    """Registers the kernels for this processor with TensorFlow, unless others are registered.

    Args:
      library: the address of the `LibraryRecord`.
      level: of the processor, see `LEVELS`.
    """
    message = stack_record(Message)
    text = stack_words(_MESSAGE_BYTES // 8)
    begin(message, text, _MESSAGE_BYTES)
    append_literal(message, literal("fusion ops "))
    append_literal(message, library.version)
    append_literal(message, literal(": "))
    length = message.length
    registry = library.registry
    setting = native_start.threads_setting()
    if setting != 0 and native_start.positive_number(setting) == 0:
        append_literal(message, literal("FUSION_NUM_THREADS is not a positive number, and ignored"))
        _say(message)
        message.length = length
    if not _take_level(library, level):
        append_literal(message, literal("not registered, for this processor has less than all of "))
        append_literal(message, library.level_names)
        _say(message)
        return
    # Before there are threads, so that no child of a fork can miss it.
    forget = library.forget_threads
    _c_register_atfork(int64(0), int64(0), forget, library)
    state = _state_of_registry(registry)
    if state == _SAME:
        append_literal(message, literal("registered before, nothing is left to do"))
        _say(message)
    elif state == _DIFFERENT:
        append_literal(message, literal("not registered, for those of another version are there"))
        _say(message)
    else:
        register_all(registry)
        if registry.code != 0:
            append_literal(message, literal("not registered: "))
            append_literal(message, registry.message)
            _say(message)


@jit
def _say(message: Message) -> None:
    """Writes a line on the standard error."""
    length = message.length
    start = message.start
    store_as(start, length, np.uint8(10), np.uint8)
    _c_write(_i32(_STANDARD_ERROR), start, length + 1)


@jit
def _take_level(library: LibraryRecord, level: int) -> bool:
    """Applies the fixups for the processor; returns whether there are kernels for it."""
    for k in range(library.level_count):
        record = library.levels[k]
        if record.level <= level:
            for index in range(record.fixup_count):
                fixup = record.fixups[index]
                fixup.target[0] = fixup.word
            return True
    return False


@jit
def _state_of_registry(registry: Registry) -> int:
    """Whether the ops of the library are registered, and are the same."""
    get_list = find_function(literal("TF_GetAllOpList"))
    if get_list == 0:  # a program that can run no graph, or one that will have the library first
        return int64(_ABSENT)
    buffer = as_record(Buffer, call_at(get_list))
    registered_count, count = int64(0), registry.op_count
    is_different = False
    for k in range(count):
        op = registry.ops[k]
        state = _state_of_op(op, buffer.data, buffer.length)
        registered_count += int64(state != _ABSENT)
        is_different = is_different or state == _DIFFERENT
    tf_delete_buffer(buffer)
    if registered_count == 0:
        return int64(_ABSENT)
    return int64(_DIFFERENT if is_different or registered_count < count else _SAME)


@jit
def _state_of_op(op: OpRecord, ops: int, length: int) -> int:
    """Whether a serialized `OpList` has an op, and the same one."""
    at, name = stack_words(1), op.name
    at[0] = 0
    while at[0] < length:
        if byte(ops + at[0]) != _FIRST_FIELD:
            return int64(_ABSENT)
        at[0] = at[0] + 1
        size = varint(ops, at)
        start = at[0]
        at[0] = start + size
        if _is_named(ops + start, size, name):
            expected = op.content_bytes
            is_same = size == expected and (c_memcmp(ops + start, op.content, size) == 0)
            return int64(_SAME if is_same else _DIFFERENT)
    return int64(_ABSENT)


@jit
def _is_named(content: int, size: int, name: int) -> bool:
    """Whether a serialized `OpDef` has a name, a C string."""
    if size < 2 or byte(content) != _FIRST_FIELD:
        return False
    at = stack_words(1)
    at[0] = 1
    length = varint(content, at)
    start = at[0]
    if start + length > size:
        return False
    for k in range(length):
        if byte(name + k) == 0 or byte(name + k) != byte(content + start + k):
            return False
    return byte(name + length) == 0


def provide(creation: Creation) -> None:
    """Provides the threads, and the functions of TensorFlow that share variables.

    A kernel that is not in the library is refused.
    """
    record = creation.record
    for k in range(creation.missing_count):
        what = creation.missing[k]
        if what == POOL:
            native_start.start(record.pool, native_start.thread_count(int64(0)))
        elif what == CONSTANTS:
            entries, count = KernelsRecord.accesses, KernelsRecord.access_count
            find_accesses(as_record(AccessEntry, load(record, entries)), load(record, count))
            atomic_store(record, KernelsRecord.constants, record.pending)
        elif what >= FIRST_ROW_KERNEL:
            text = "the library of ops was built without row kernel %lld, which this node needs"
            refuse(creation, UNIMPLEMENTED, text, what - FIRST_ROW_KERNEL)
        else:
            text = "the library of ops was built without the kernel for the dtypes of this node"
            refuse(creation, UNIMPLEMENTED, text)
