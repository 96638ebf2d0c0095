"""Functions that all builders of states share: the head of a state, and what it points to."""

from __future__ import annotations

from numba import types

from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memset, load
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.registration.creation import (
    CONSTANTS,
    FIRST_ROW_KERNEL,
    LAUNCHER,
    MAX_MISSING,
    POOL,
    Creation,
    KernelsRecord,
)
from fusion.runtime.registration.name_texts import name_bytes, write_names
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, refuse
from fusion.runtime.registration.signature import dtype_words, write_signature
from fusion.runtime.tensorflow.attrs import INT, TYPE
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import VariableAccess
from fusion.runtime.threads.layout import Pool


@jit
def attr_word(creation: Creation, attr: int) -> int:
    """The value of an attr that is no list."""
    return creation.values[attr].value


@jit
def attr_count(creation: Creation, attr: int) -> int:
    """The number of elements of an attr."""
    return creation.values[attr].count


@jit
def attr_item(creation: Creation, attr: int, index: int) -> int:
    """An element of an attr that is a list."""
    return load(attr_word(creation, attr), index)


@jit
def begin_state(creation: Creation, words: int) -> Words:
    """A state of `words` words, its head and names written, the rest 0; 0 on failure."""
    _check_maxima(creation)
    record = creation.record
    names = record.names
    size = name_bytes(creation, names) if names >= 0 else int64(0)
    body, dtypes = _body(creation), words
    words += dtype_words(creation)
    if creation.has_failed != 0:
        return as_words(int64(0))
    state = as_record(State, c_malloc(8 * words + size))
    if state == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return as_words(state)
    c_memset(state, types.int32(0), 8 * words + size)
    creation.state = state
    state.kernel = body
    state.op_table = record.op_table
    if record.is_for_gpu != 0:
        state.launcher = record.launcher
        if record.launcher == 0:
            lack(creation, int64(LAUNCHER))
    write_signature(creation, state, dtypes)
    if size > 0:
        state.names_offset = words
        write_names(creation, names, as_words(state), words)
    return as_words(state)


def build_plain_state(creation: Creation) -> None:
    """The builder of ops without one of their own; their attrs are no lists."""
    plain_state(creation, int64(0))


@jit
def plain_state(creation: Creation, more: int) -> int:
    """Builds a state with `more` words after the attrs; 0 on failure."""
    record = creation.record
    attrs, count = record.attrs, record.attr_count
    state = begin_state(creation, State.SIZE + count + more)
    if state == 0:
        return state
    slot = State.SIZE
    for attr in range(count):
        if attrs[attr].kind != TYPE:
            state[slot] = attr_word(creation, attr)
            slot += 1
    return state


@jit
def _check_maxima(creation: Creation) -> None:
    """Refuses ints above the maximum of their attr, which TensorFlow does not check."""
    record = creation.record
    for attr in range(record.attr_count):
        entry = record.attrs[attr]
        if entry.kind != INT or entry.is_list != 0:
            continue
        maximum, number = entry.maximum, attr_word(creation, attr)
        if number > maximum:
            name = entry.name
            text = "%s must be at most %lld, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, name, maximum, number)


@jit
def _body(creation: Creation) -> int:
    """The address of the kernel of the node's dtypes."""
    record, index = creation.record, int64(0)
    for k in range(record.type_count):
        entry = record.types[k]
        count, numbers = entry.count, entry.numbers
        number, match = attr_word(creation, entry.attr), int64(-1)
        for position in range(count):
            if numbers[position] == number:
                match = position
        if match < 0:
            refuse(creation, INVALID_ARGUMENT, "there is no kernel for dtype %lld", number)
            return int64(0)
        index = index * count + match
    address = record.bodies[index]
    if address == 0:
        lack(creation, index)
    return address


@jit
def lack(creation: Creation, what: int) -> None:
    """Notes that something is missing, see `creation`."""
    count = creation.missing_count
    for k in range(count):
        if creation.missing[k] == what:
            return
    if count < MAX_MISSING:
        creation.missing[count] = what
        creation.missing_count = count + 1


@jit
def row_kernel(creation: Creation, index: int) -> int:
    """The address of a row kernel of the op."""
    kernels = creation.record.row_kernels
    address = kernels[index]
    if address == 0:
        lack(creation, FIRST_ROW_KERNEL + index)
    return address


@jit
def may_have_row_kernel(creation: Creation, index: int) -> bool:
    """Whether a row kernel of the op is compiled, or Python can compile it."""
    record = creation.record
    is_compiled = record.row_kernels[index] != 0
    return is_compiled or record.server != 0


@jit
def constants_of(creation: Creation) -> int:
    """The address of the data of the op's builder; 0 if it is missing so far."""
    address = atomic_load(creation.record, KernelsRecord.constants)
    if address == 0:
        lack(creation, int64(CONSTANTS))
    return address


@jit
def is_access(address: VariableAccess) -> bool:
    """Whether a `VariableAccess` has functions; one that was not found has none."""
    return address != 0 and address.handle_from_input != 0


@jit
def pool_of(creation: Creation) -> Pool:
    """The pool of threads; 0 if a kernel has to work alone."""
    pool = creation.record.pool
    if atomic_load(pool, Pool.is_ready) == 0:
        lack(creation, int64(POOL))
        return as_record(Pool, int64(0))
    return pool if pool.thread_count > 0 else as_record(Pool, int64(0))


@jit
def give_up(creation: Creation) -> None:
    """Releases a state that cannot be finished."""
    c_free(creation.state)
    creation.state = 0
