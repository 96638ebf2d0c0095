"""Writes the numbers and dtypes of a node's tensors into its state, in native code."""

from __future__ import annotations

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.tensorflow.attrs import ArgEntry, AttrValue
from fusion.runtime.tensorflow.layout import State

_MAX_INPUTS = 1 << 20


@jit
def dtype_words(creation: Creation) -> int:
    """The words that the dtypes of the inputs take: none unless kernels are cached."""
    record = creation.record
    if record.is_cached == 0:
        return int64(0)
    count = _total(creation, int64(0), record.input_count)
    if count > _MAX_INPUTS:  # TensorFlow counts them before; other callers may not
        refuse(creation, INVALID_ARGUMENT, "no node has %lld inputs", count)
    return count


@jit
def write_signature(creation: Creation, state: State, start: int) -> None:
    """Writes numbers of tensors into a state, and the dtypes of inputs from word `start` on."""
    record = creation.record
    inputs, outputs = record.input_count, record.output_count
    state.input_count = _total(creation, int64(0), inputs)
    state.output_count = _total(creation, inputs, outputs)
    if record.is_cached == 0:
        return
    state.dtypes_offset = start
    for arg in range(inputs):
        entry = as_record(ArgEntry, _entry(creation, int64(arg)))
        for k in range(_count(creation, entry)):
            store(state, start, _dtype(creation, entry, int64(k)))
            start += 1


@jit
def _entry(creation: Creation, arg: int) -> int:
    args = creation.record.args
    return args + 8 * ArgEntry.SIZE * arg


@jit
def _total(creation: Creation, first: int, count: int) -> int:
    """The number of tensors of some inputs or outputs."""
    total = int64(0)
    for arg in range(first, first + count):
        total += _count(creation, as_record(ArgEntry, _entry(creation, int64(arg))))
    return total


@jit
def _count(creation: Creation, entry: ArgEntry) -> int:
    if entry.length_attr >= 0:
        count = as_record(AttrValue, _value(creation, entry.length_attr)).value
        return max(count, int64(0))
    if entry.is_mixed != 0:
        return as_record(AttrValue, _value(creation, entry.dtype_attr)).count
    return int64(1)


@jit
def _dtype(creation: Creation, entry: ArgEntry, index: int) -> int:
    if entry.dtype_attr < 0:
        return entry.dtype
    value = as_words(as_record(AttrValue, _value(creation, entry.dtype_attr)).value)
    return value[index] if entry.is_mixed != 0 else value


@jit
def _value(creation: Creation, attr: int) -> int:
    """The address of the `AttrValue` of an attr."""
    return creation.values + 8 * AttrValue.SIZE * attr
