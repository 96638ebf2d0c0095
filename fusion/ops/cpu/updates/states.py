"""The builder of the states of FusedEmbeddingUpdate."""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import CodeCounts, CodeWords, Instruction
from fusion.ops.cpu.updates.code_checks import CodeCheck, check_code, word_of
from fusion.ops.cpu.updates.constants import UpdateConstants, UpdateDtype
from fusion.ops.cpu.updates.layout import Code, UpdateState
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, UNIMPLEMENTED, refuse
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
    check = stack_words(CodeCheck.SIZE)
    words = _check_program(creation, constants, check)
    if load(creation, Creation.has_failed) != 0:
        return
    state = begin_state(creation, UpdateState.SIZE + words + values + variables)
    if state != 0:
        _put_head(creation, constants, state, index)
        _put_code(load(check, CodeCheck.code), words, state)
        _put_lists(creation, constants, state, UpdateState.SIZE + words)
    if load(creation, Creation.has_failed) != 0:
        give_up(creation)


@jit
def _attr(creation: int, constants: int, field: int) -> int:
    return attr_word(creation, load(constants, field))


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
def _check_program(creation: int, constants: int, check: int) -> int:
    """Checks the attr `code`; the words of its instructions."""
    code = _attr(creation, constants, int64(UpdateConstants.code))
    for field, attr in (
        (CodeCheck.variable_count, UpdateConstants.num_variables),
        (CodeCheck.value_count, UpdateConstants.num_values),
        (CodeCheck.scalar_count, UpdateConstants.num_scalars),
        (CodeCheck.result_count, UpdateConstants.num_results),
        (CodeCheck.deduplicates, UpdateConstants.deduplicate),
    ):
        store(check, field, _attr(creation, constants, int64(attr)))
    store(check, CodeCheck.code, load(code, Text.address))
    return check_code(creation, check, load(code, Text.length))


@jit
def _put_head(creation: int, constants: int, state: int, index: int) -> None:
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


@jit
def _put_code(code: int, words: int, state: int) -> None:
    """Writes what a program does, and its instructions behind the state."""
    for field, word in (
        (UpdateState.is_sweep, CodeWords.is_sweep),
        (UpdateState.needs_rows, CodeWords.needs_rows),
        (UpdateState.may_skip, CodeWords.may_skip),
    ):
        store(state, field, word_of(code, word))
    offset = int64(UpdateState.SIZE)
    for field, counts in (
        (UpdateState.with_entries, CodeWords.with_entries),
        (UpdateState.without, CodeWords.without),
    ):
        count = word_of(code, counts + CodeCounts.instructions)
        store(state, field + Code.offset, offset)
        store(state, field + Code.instruction_count, count)
        store(state, field + Code.row_buffers, word_of(code, counts + CodeCounts.rows))
        store(state, field + Code.entry_buffers, word_of(code, counts + CodeCounts.entries))
        store(state, field + Code.scalar_buffers, word_of(code, counts + CodeCounts.scalars))
        offset += Instruction.SIZE * count
    for k in range(words):
        store(state, UpdateState.SIZE + k, word_of(code, CodeWords.SIZE + k))


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
