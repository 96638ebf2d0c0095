"""What TensorFlow calls to make the kernel of a node, in native code; see `creation`."""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_malloc, load, stack_words, store
from fusion.runtime.registration.creation import KernelsRecord, PreparedEntry, PreparedRecord
from fusion.runtime.tensorflow.c_api import (
    tf_delete_buffer,
    tf_delete_status,
    tf_fail_construction,
    tf_get_attr_int64,
    tf_get_code,
    tf_get_node_def,
    tf_has_attr,
    tf_new_status,
    tf_set_status,
)
from fusion.runtime.tensorflow.layout import Buffer
from fusion.runtime.upcalls.native import c_memcpy, free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord

_OK, _DEADLINE_EXCEEDED, _RESOURCE_EXHAUSTED = 0, 4, 8

_i32 = types.int32


def create(record: int, construction: int, made: int) -> None:
    """Sets the word at `made` to the address of a node's state; to 0 where it fails.

    Args:
      record: the address of the `KernelsRecord` of its op.
      construction: the TF_OpKernelConstruction.
    """
    status = tf_new_status()
    number = _number(record, construction, status)
    state = (
        _copy_of(load(record, KernelsRecord.prepared), record, number) if number != 0 else int64(0)
    )
    if state == 0:
        state = _ask(record, construction, status)
    store(made, 0, state)
    tf_delete_status(status)


@jit
def _number(record: int, construction: int, status: int) -> int:
    """The number of the node's prepared state, 0 if it has none."""
    value = stack_words(1)
    store(value, 0, int64(0))
    name = load(record, KernelsRecord.attr_name)
    if tf_has_attr(construction, name, status) != 0:
        tf_get_attr_int64(construction, name, value, status)
        if tf_get_code(status) != _OK:
            return int64(0)
    return load(value, 0)


@jit
def _copy_of(prepared: int, owner: int, number: int) -> int:
    """The address of a copy of a prepared state; 0 if there is none of that number and owner."""
    count = atomic_load(prepared, int64(PreparedRecord.count))
    entry = atomic_load(prepared, int64(PreparedRecord.entries))
    for _ in range(count):
        if (
            load(entry, PreparedEntry.number) == number
            and load(entry, PreparedEntry.owner) == owner
        ):
            state = c_malloc(load(entry, PreparedEntry.state_bytes))
            if state != 0:
                c_memcpy(
                    state, load(entry, PreparedEntry.state), load(entry, PreparedEntry.state_bytes)
                )
            return state
        entry += 8 * PreparedEntry.SIZE
    return int64(0)


@jit
def _ask(record: int, construction: int, status: int) -> int:
    """The address of a state that Python makes; 0 where it fails."""
    request = int64(0)
    buffer = tf_get_node_def(construction, status)
    if buffer != 0:
        data, length = load(buffer, Buffer.data), load(buffer, Buffer.length)
        request = new_request(load(record, KernelsRecord.server_number), data, length)
        tf_delete_buffer(buffer)
    if request == 0:
        _fail(
            construction, status, int64(_RESOURCE_EXHAUSTED), load(record, KernelsRecord.no_memory)
        )
        return int64(0)
    if not upcall(
        load(record, KernelsRecord.upcalls), request, load(record, KernelsRecord.patience_ns)
    ):
        _fail(construction, status, int64(_DEADLINE_EXCEEDED), load(record, KernelsRecord.too_late))
        return int64(0)
    state = int64(0)
    if load(request, RequestRecord.result) == 0:
        _fail(
            construction, status, int64(_RESOURCE_EXHAUSTED), load(record, KernelsRecord.no_memory)
        )
    elif load(request, RequestRecord.code) == _OK:
        state = load(request, RequestRecord.result)
        store(request, RequestRecord.result, int64(0))
    else:
        _fail(
            construction,
            status,
            load(request, RequestRecord.code),
            load(request, RequestRecord.result),
        )
    free_request(request)
    return state


@jit
def _fail(construction: int, status: int, code: int, message: int) -> None:
    tf_set_status(status, _i32(code), message)
    tf_fail_construction(construction, status)
