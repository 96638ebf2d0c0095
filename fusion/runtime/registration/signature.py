"""The tensors that the kernel of a node is called with, in the node's state, in native code."""

from __future__ import annotations

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.registration.creation import Creation, KernelsRecord
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.tensorflow.attrs import ArgEntry, AttrValue
from fusion.runtime.tensorflow.layout import State

_MOST_INPUTS = 1 << 20


@jit
def dtype_words(creation: int) -> int:
    """The words that the dtypes of the inputs take: none where no kernel is kept."""
    record = load(creation, Creation.record)
    if load(record, KernelsRecord.is_kept) == 0:
        return int64(0)
    count = _total(creation, int64(0), load(record, KernelsRecord.input_count))
    if count > _MOST_INPUTS:  # TensorFlow counts them before, but not who asks for a kernel
        refuse(creation, INVALID_ARGUMENT, "no node has %lld inputs", count)
    return count


@jit
def write_signature(creation: int, state: int, start: int) -> None:
    """Writes numbers of tensors into a state, and the dtypes of inputs from word `start` on."""
    record = load(creation, Creation.record)
    inputs, outputs = (
        load(record, KernelsRecord.input_count),
        load(record, KernelsRecord.output_count),
    )
    store(state, State.input_count, _total(creation, int64(0), inputs))
    store(state, State.output_count, _total(creation, inputs, outputs))
    if load(record, KernelsRecord.is_kept) == 0:
        return
    store(state, State.dtypes_offset, start)
    for arg in range(inputs):
        entry = _entry(creation, int64(arg))
        for k in range(_count(creation, entry)):
            store(state, start, _dtype(creation, entry, int64(k)))
            start += 1


@jit
def _entry(creation: int, arg: int) -> int:
    args = load(load(creation, Creation.record), KernelsRecord.args)
    return args + 8 * ArgEntry.SIZE * arg


@jit
def _total(creation: int, first: int, count: int) -> int:
    """The number of tensors of some inputs or outputs."""
    total = int64(0)
    for arg in range(first, first + count):
        total += _count(creation, _entry(creation, int64(arg)))
    return total


@jit
def _count(creation: int, entry: int) -> int:
    if load(entry, ArgEntry.length_attr) >= 0:
        count = load(_value(creation, load(entry, ArgEntry.length_attr)), AttrValue.value)
        return max(count, int64(0))
    if load(entry, ArgEntry.is_mixed) != 0:
        return load(_value(creation, load(entry, ArgEntry.dtype_attr)), AttrValue.count)
    return int64(1)


@jit
def _dtype(creation: int, entry: int, index: int) -> int:
    if load(entry, ArgEntry.dtype_attr) < 0:
        return load(entry, ArgEntry.dtype)
    value = load(_value(creation, load(entry, ArgEntry.dtype_attr)), AttrValue.value)
    return load(value, index) if load(entry, ArgEntry.is_mixed) != 0 else value


@jit
def _value(creation: int, attr: int) -> int:
    """The address of the `AttrValue` of an attr."""
    return load(creation, Creation.values) + 8 * AttrValue.SIZE * attr
