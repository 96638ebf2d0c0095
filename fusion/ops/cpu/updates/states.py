"""The builder of the states of FusedEmbeddingUpdate."""

from __future__ import annotations

from fusion.ops.cpu.updates.constants import UpdateConstants, UpdateDtype
from fusion.ops.cpu.updates.layout import Code, UpdateState
from fusion.ops.cpu.updates.lowering import lower
from fusion.ops.cpu.updates.program import MESSAGE_BYTES, OK, Lowering, most_words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, load, stack_words, store
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    refuse,
)
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    give_up,
    is_access,
    pool_of,
    row_kernel,
)
from fusion.runtime.tensorflow.attrs import Text
from fusion.runtime.tensorflow.dtypes import COMPUTED, DTYPES
from fusion.runtime.tensorflow.variable_access import UpdateAccess

_DTYPE_COUNT = len(COMPUTED)
_most_words = jit(most_words)
_IDS = tuple((DTYPES[name].enum, DTYPES[name].code) for name in ("int32", "int64"))


def build_update_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    variables = _attr(creation, constants, int64(UpdateConstants.num_variables))
    values = _attr(creation, constants, int64(UpdateConstants.num_values))
    _check_lists(creation, constants, variables, values)
    index = _dtype_index(creation, constants)
    if load(creation, Creation.has_failed) != 0:
        return
    lowering, size = stack_words(Lowering.SIZE), _program_bytes(creation, constants)
    capacity = _most_words(size)
    words = c_malloc(8 * capacity)
    if words == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return
    _lower(creation, constants, lowering, words, capacity)
    if load(creation, Creation.has_failed) == 0:
        count = load(lowering, Lowering.word_count)
        state = begin_state(creation, UpdateState.SIZE + count + values + variables)
        if state != 0:
            _put_head(creation, constants, lowering, state, index)
            for k in range(count):
                store(state, UpdateState.SIZE + k, load(words, k))
            _put_lists(creation, constants, state, UpdateState.SIZE + count)
    c_free(words)
    if load(creation, Creation.has_failed) != 0:
        give_up(creation)


@jit
def _attr(creation: int, constants: int, field: int) -> int:
    return attr_word(creation, load(constants, field))


@jit
def _program_bytes(creation: int, constants: int) -> int:
    return load(_attr(creation, constants, int64(UpdateConstants.program)), Text.length)


@jit
def _check_lists(creation: int, constants: int, variables: int, values: int) -> None:
    offsets = load(constants, UpdateConstants.offsets)
    count, text = attr_count(creation, offsets), "offsets has %lld items, not %lld"
    if count != values:
        refuse(creation, INVALID_ARGUMENT, text, count, values)
        return
    flags = attr_count(creation, load(constants, UpdateConstants.sparse))
    if flags != variables:
        text = "sparse has %lld items, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, flags, variables)
        return
    for k in range(count):
        if attr_item(creation, offsets, k) < -1:
            text = "offsets must not be below -1, but offsets[%lld] is %lld"
            refuse(creation, INVALID_ARGUMENT, text, k, attr_item(creation, offsets, k))
            return


@jit
def _dtype_index(creation: int, constants: int) -> int:
    """The index of the variables' dtype."""
    number = _attr(creation, constants, int64(UpdateConstants.T))
    for k in range(_DTYPE_COUNT):
        typed = constants + 8 * (UpdateConstants.dtypes + UpdateDtype.SIZE * k)
        if load(typed, UpdateDtype.dtype) == number and is_access(load(typed, UpdateDtype.access)):
            return int64(k)
    text = "TensorFlow does not export how variables of DataType %lld are updated"
    refuse(creation, UNIMPLEMENTED, text, number)
    return int64(0)


@jit
def _lower(creation: int, constants: int, lowering: int, words: int, capacity: int) -> None:
    """Lowers the program."""
    program = _attr(creation, constants, int64(UpdateConstants.program))
    results = _attr(creation, constants, int64(UpdateConstants.num_results))
    deduplicates = _attr(creation, constants, int64(UpdateConstants.deduplicate))
    message = stack_words(MESSAGE_BYTES // 8)
    store(lowering, Lowering.text, load(program, Text.address))
    store(lowering, Lowering.text_bytes, load(program, Text.length))
    for field, attr in (
        (Lowering.variable_count, UpdateConstants.num_variables),
        (Lowering.value_count, UpdateConstants.num_values),
        (Lowering.scalar_count, UpdateConstants.num_scalars),
    ):
        store(lowering, field, _attr(creation, constants, int64(attr)))
    store(lowering, Lowering.result_count, results)
    store(lowering, Lowering.sums_values, deduplicates)
    store(lowering, Lowering.first_word, UpdateState.SIZE)
    store(lowering, Lowering.words, words)
    store(lowering, Lowering.word_capacity, capacity)
    store(lowering, Lowering.message, message)
    store(lowering, Lowering.message_bytes, MESSAGE_BYTES)
    lower(lowering)
    if load(lowering, Lowering.code) != OK:
        refuse(creation, load(lowering, Lowering.code), "%s", message)
    elif deduplicates != 0 and results != 0:
        refuse(creation, INVALID_ARGUMENT, "program must not have results with deduplicate")


@jit
def _put_head(creation: int, constants: int, lowering: int, state: int, index: int) -> None:
    typed = constants + 8 * (UpdateConstants.dtypes + UpdateDtype.SIZE * index)
    for k in range(UpdateAccess.SIZE):
        store(state, UpdateState.access + k, load(load(typed, UpdateDtype.access), k))
    store(state, UpdateState.pool, pool_of(creation))
    store(state, UpdateState.kernel_of_blocks, row_kernel(creation, index))
    store(state, UpdateState.item_bytes, load(typed, UpdateDtype.item_bytes))
    number = _attr(creation, constants, int64(UpdateConstants.Tid))
    for enum, code in _IDS:
        if enum == number:
            store(state, UpdateState.ids_dtype, int64(code))
    for field, attr in (
        (UpdateState.variable_count, UpdateConstants.num_variables),
        (UpdateState.value_count, UpdateConstants.num_values),
        (UpdateState.scalar_count, UpdateConstants.num_scalars),
        (UpdateState.result_count, UpdateConstants.num_results),
        (UpdateState.dim, UpdateConstants.dim),
        (UpdateState.deduplicates, UpdateConstants.deduplicate),
        (UpdateState.wraps_negative, UpdateConstants.wrap_negative),
    ):
        store(state, field, _attr(creation, constants, int64(attr)))
    for field, found in (
        (UpdateState.is_sweep, Lowering.is_sweep),
        (UpdateState.needs_rows, Lowering.needs_rows),
        (UpdateState.may_skip, Lowering.may_skip),
    ):
        store(state, field, load(lowering, found))
    for k in range(Code.SIZE):
        store(state, UpdateState.with_entries + k, load(lowering, Lowering.with_entries + k))
        store(state, UpdateState.without + k, load(lowering, Lowering.without + k))


@jit
def _put_lists(creation: int, constants: int, state: int, start: int) -> None:
    """Writes offsets and flags, from word `start` on."""
    offsets, sparse = (
        load(constants, UpdateConstants.offsets),
        load(constants, UpdateConstants.sparse),
    )
    store(state, UpdateState.offsets, start)
    for k in range(attr_count(creation, offsets)):
        store(state, start + k, attr_item(creation, offsets, k))
    start += attr_count(creation, offsets)
    store(state, UpdateState.sparse, start)
    count = int64(0)
    for k in range(attr_count(creation, sparse)):
        flag = attr_item(creation, sparse, k)
        store(state, start + k, flag)
        count += flag
    store(state, UpdateState.sparse_count, count)
