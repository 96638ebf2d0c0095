"""What all builders of states have in common: the head of a state, and what it leads to."""

from __future__ import annotations

from numba import types

from fusion.runtime.native.atomic import atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memset, load, store
from fusion.runtime.registration.creation import (
    CONSTANTS,
    FIRST_ROW_KERNEL,
    LAUNCHER,
    MOST_MISSING,
    POOL,
    Creation,
    KernelsRecord,
    TypeEntry,
)
from fusion.runtime.registration.name_texts import name_bytes, write_names
from fusion.runtime.registration.refusal import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    refuse,
)
from fusion.runtime.registration.signature import dtype_words, write_signature
from fusion.runtime.tensorflow.attrs import INT, AttrEntry, AttrValue
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import VariableAccess
from fusion.runtime.threads.layout import Pool


@jit
def attr_word(creation: int, attr: int) -> int:
    """The value of an attr that is no list."""
    return load(load(creation, Creation.values), AttrValue.SIZE * attr + AttrValue.value)


@jit
def attr_count(creation: int, attr: int) -> int:
    """The number of elements of an attr."""
    return load(load(creation, Creation.values), AttrValue.SIZE * attr + AttrValue.count)


@jit
def attr_item(creation: int, attr: int, index: int) -> int:
    """An element of an attr that is a list."""
    return load(attr_word(creation, attr), index)


@jit
def begin_state(creation: int, words: int) -> int:
    """A state of so many words, its head and names written, the rest 0; 0 if that fails."""
    _check_maxima(creation)
    record = load(creation, Creation.record)
    names = load(record, KernelsRecord.names)
    size = name_bytes(creation, names) if names >= 0 else int64(0)
    body, dtypes = _body(creation), words
    words += dtype_words(creation)
    if load(creation, Creation.has_failed) != 0:
        return int64(0)
    state = c_malloc(8 * words + size)
    if state == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return state
    c_memset(state, types.int32(0), 8 * words + size)
    store(creation, Creation.state, state)
    store(state, State.kernel, body)
    store(state, State.op_table, load(record, KernelsRecord.op_table))
    if load(record, KernelsRecord.is_for_gpu) != 0:
        store(state, State.launcher, load(record, KernelsRecord.launcher))
        if load(record, KernelsRecord.launcher) == 0:
            lack(creation, int64(LAUNCHER))
    write_signature(creation, state, dtypes)
    if size > 0:
        store(state, State.names_offset, words)
        write_names(creation, names, state, words)
    return state


@jit
def _check_maxima(creation: int) -> None:
    """Refuses ints that are larger than their attr allows, which TensorFlow does not look at."""
    record = load(creation, Creation.record)
    for attr in range(load(record, KernelsRecord.attr_count)):
        entry = load(record, KernelsRecord.attrs) + 8 * AttrEntry.SIZE * attr
        if load(entry, AttrEntry.kind) != INT or load(entry, AttrEntry.is_list) != 0:
            continue
        most, number = load(entry, AttrEntry.maximum), attr_word(creation, attr)
        if number > most:
            name = load(entry, AttrEntry.name)
            text = "%s must be at most %lld, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, name, most, number)


@jit
def _body(creation: int) -> int:
    """The address of the kernel of the node's dtypes."""
    record, index = load(creation, Creation.record), int64(0)
    for k in range(load(record, KernelsRecord.type_count)):
        entry = load(record, KernelsRecord.types) + 8 * TypeEntry.SIZE * k
        count, numbers = load(entry, TypeEntry.count), load(entry, TypeEntry.numbers)
        number, found = attr_word(creation, load(entry, TypeEntry.attr)), int64(-1)
        for place in range(count):
            if load(numbers, place) == number:
                found = place
        if found < 0:
            refuse(creation, INVALID_ARGUMENT, "there is no kernel for dtype %lld", number)
            return int64(0)
        index = index * count + found
    address = load(load(record, KernelsRecord.bodies), index)
    if address == 0:
        lack(creation, index)
    return address


@jit
def lack(creation: int, what: int) -> None:
    """Notes what is not there, see `creation`."""
    count = load(creation, Creation.missing_count)
    for k in range(count):
        if load(creation, Creation.missing + k) == what:
            return
    if count < MOST_MISSING:
        store(creation, Creation.missing + count, what)
        store(creation, Creation.missing_count, count + 1)


@jit
def row_kernel(creation: int, index: int) -> int:
    """The address of a row kernel of the op."""
    kernels = load(load(creation, Creation.record), KernelsRecord.row_kernels)
    address = load(kernels, index)
    if address == 0:
        lack(creation, FIRST_ROW_KERNEL + index)
    return address


@jit
def may_have_row_kernel(creation: int, index: int) -> bool:
    """Whether a row kernel of the op is there, or can be made; without Python none can."""
    record = load(creation, Creation.record)
    is_there = load(load(record, KernelsRecord.row_kernels), index) != 0
    return is_there or load(record, KernelsRecord.server) != 0


@jit
def constants_of(creation: int) -> int:
    """The address of what the op's builder needs to know; 0 if it is not there yet."""
    address = atomic_load(load(creation, Creation.record), KernelsRecord.constants)
    if address == 0:
        lack(creation, int64(CONSTANTS))
    return address


@jit
def is_access(address: int) -> bool:
    """Whether a `VariableAccess` is at an address; one that was not found has no functions."""
    return address != 0 and load(address, VariableAccess.handle_from_input) != 0


@jit
def pool_of(creation: int) -> int:
    """The address of the pool of threads; 0 where a kernel is to do all itself."""
    pool = load(load(creation, Creation.record), KernelsRecord.pool)
    if atomic_load(pool, Pool.is_ready) == 0:
        lack(creation, int64(POOL))
        return int64(0)
    return pool if load(pool, Pool.thread_count) > 0 else int64(0)


@jit
def give_up(creation: int) -> None:
    """Releases a state that cannot be finished."""
    c_free(load(creation, Creation.state))
    store(creation, Creation.state, 0)
