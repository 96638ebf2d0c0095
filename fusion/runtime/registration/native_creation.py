"""What TensorFlow calls to make the kernel of a node, in native code; see `creation`."""

from __future__ import annotations

from numba import types

from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import c_free, call_at, load, stack_words, store
from fusion.runtime.registration.attr_reader import free_attrs, read_attrs
from fusion.runtime.registration.creation import (
    BUILDER,
    Creation,
    KernelsRecord,
)
from fusion.runtime.registration.refusal import INTERNAL, refuse
from fusion.runtime.registration.unknown_attrs import refuse_unknown_attrs
from fusion.runtime.tensorflow.attrs import AttrValue
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_fail_construction,
    tf_get_code,
    tf_new_status,
    tf_set_status,
)

_OK = 0

#: A builder that begins so often lacks what is said to be there.
_MOST_ROUNDS = 1000

_i32 = types.int32


def create(record: int, construction: int, made: int) -> None:
    """Sets the word at `made` to the address of a node's state; to 0 where it fails.

    Args:
      record: the address of the `KernelsRecord` of its op.
      construction: the TF_OpKernelConstruction.
    """
    status, creation = tf_new_status(), stack_words(Creation.SIZE)
    count = load(record, KernelsRecord.attr_count)
    store(creation, Creation.record, record)
    store(creation, Creation.values, stack_words(AttrValue.SIZE * count + 1))
    store(creation, Creation.state, 0)
    store(creation, Creation.has_failed, 0)
    store(creation, Creation.missing_count, 0)
    read_attrs(creation, construction, status)
    if tf_get_code(status) == _OK:
        refuse_unknown_attrs(creation, construction, status)
    if tf_get_code(status) == _OK:
        if load(creation, Creation.has_failed) == 0:
            _build(creation)
        if load(creation, Creation.has_failed) != 0:
            code = _i32(load(creation, Creation.code))
            tf_set_status(status, code, creation + 8 * Creation.message)
    free_attrs(creation)
    if tf_get_code(status) != _OK:
        tf_fail_construction(construction, status)
    store(made, 0, load(creation, Creation.state))
    tf_delete_status(status)


@jit
def _build(creation: int) -> None:
    """Has the state built, and what is lacking provided until nothing is."""
    record = load(creation, Creation.record)
    for _ in range(_MOST_ROUNDS):
        store(creation, Creation.missing_count, 0)
        if load(record, KernelsRecord.builder) == 0:
            store(creation, Creation.missing_count, 1)
            store(creation, Creation.missing, BUILDER)
        else:
            call_at(load(record, KernelsRecord.builder), creation)
        if load(creation, Creation.has_failed) == 0 and (
            load(creation, Creation.missing_count) == 0
        ):
            return
        c_free(load(creation, Creation.state))
        store(creation, Creation.state, 0)
        if load(creation, Creation.has_failed) == 0:
            call_at(load(record, KernelsRecord.provide), creation)
        if load(creation, Creation.has_failed) != 0:
            return
    refuse(creation, INTERNAL, "kernels are still lacking that were loaded")
