"""The function that TensorFlow calls to make the kernel of a node; see `creation`.

Python provides what the state of the kernel is missing.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, call_at, store
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_records
from fusion.runtime.registration.attr_reader import free_attrs, read_attrs
from fusion.runtime.registration.creation import BUILDER, MAX_MISSING, Creation, KernelsRecord
from fusion.runtime.registration.refusal import INTERNAL, RESOURCE_EXHAUSTED, refuse
from fusion.runtime.registration.unknown_attrs import refuse_unknown_attrs
from fusion.runtime.tensorflow.attrs import AttrValue
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_fail_construction,
    tf_get_code,
    tf_new_status,
    tf_set_status,
)
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord

_OK, _DEADLINE_EXCEEDED = 0, 4

#: The maximum number of times that a builder starts again.
_MAX_ROUNDS = 1000

_i32 = types.int32


def create(record: KernelsRecord, construction: int, result: int) -> None:
    """Sets the word at `result` to the address of a node's state, or to 0 on failure.

    Args:
      record: the address of the `KernelsRecord` of its op.
      construction: the TF_OpKernelConstruction.
    """
    status, creation = tf_new_status(), stack_record(Creation)
    count = record.attr_count
    creation.record = record
    creation.values = stack_records(AttrValue, count + 1)
    creation.state = 0
    creation.has_failed = 0
    creation.missing_count = 0
    read_attrs(creation, construction, status)
    if tf_get_code(status) == _OK:
        refuse_unknown_attrs(creation, construction, status)
    if tf_get_code(status) == _OK:
        if creation.has_failed == 0:
            _build(creation)
        if creation.has_failed != 0:
            code = _i32(creation.code)
            tf_set_status(status, code, creation.message)
    free_attrs(creation)
    if tf_get_code(status) != _OK:
        tf_fail_construction(construction, status)
    store(result, 0, creation.state)
    tf_delete_status(status)


@jit
def _build(creation: Creation) -> None:
    """Runs the builder and provides what is missing, until nothing is."""
    record = creation.record
    for _ in range(_MAX_ROUNDS):
        creation.missing_count = 0
        if record.builder == 0:
            creation.missing_count = 1
            creation.missing[0] = BUILDER
        else:
            call_at(record.builder, creation)
        if creation.has_failed == 0 and (creation.missing_count == 0):
            return
        c_free(creation.state)
        creation.state = 0
        if creation.has_failed == 0:
            call_at(record.provide, creation)
        if creation.has_failed != 0:
            return
    refuse(creation, INTERNAL, "kernels are still lacking that were loaded")


def ask_python(creation: Creation) -> None:
    """Has Python provide all that is missing; refuses the node if it cannot."""
    server = creation.record.server
    count = min(creation.missing_count, int64(MAX_MISSING))
    number = server.number
    request = as_record(RequestRecord, new_request(number, creation.missing, 8 * count))
    if request == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return
    patience = server.patience_ns
    if not upcall(server.upcalls, request, patience):
        refuse(creation, _DEADLINE_EXCEEDED, "%s", server.too_late)
        return
    code, text = request.code, request.result
    if text == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
    elif code != _OK:
        refuse(creation, code, "%s", text)
    free_request(as_words(request))
