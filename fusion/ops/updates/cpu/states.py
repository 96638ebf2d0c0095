"""The builder of the states of FusedEmbeddingUpdate."""

from __future__ import annotations

from fusion.ops.updates.cpu.code_checks import CodeCheck, check_code, word_of
from fusion.ops.updates.cpu.constants import UpdateConstants
from fusion.ops.updates.cpu.layout import Code, UpdateState
from fusion.ops.updates.cpu_kernels.layout import CodeCounts, CodeWords, Instruction
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store
from fusion.runtime.native.pointers import as_record, as_words, stack_record
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
from fusion.runtime.tensorflow.variable_access import UpdateAccess, VariableAccess

_DTYPE_COUNT = len(COMPUTED)
_IDS = tuple((DTYPES[name].enum, DTYPES[name].code) for name in ("int32", "int64"))


def build_update_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(UpdateConstants, constants_of(creation))
    if constants == 0:
        return
    variables = _attr(creation, as_words(constants), int64(UpdateConstants.num_variables))
    values = _attr(creation, as_words(constants), int64(UpdateConstants.num_values))
    _check_lists(creation, constants, variables, values)
    index = _dtype_index(creation, constants)
    if creation.has_failed != 0:
        return
    check = stack_record(CodeCheck)
    words = _check_program(creation, as_words(constants), check)
    if creation.has_failed != 0:
        return
    state = as_record(
        UpdateState, begin_state(creation, UpdateState.SIZE + words + values + variables)
    )
    if state != 0:
        _put_head(creation, constants, state, index)
        _put_code(check.code, words, as_words(state))
        _put_lists(creation, constants, state, UpdateState.SIZE + words)
    if creation.has_failed != 0:
        give_up(creation)


@jit
def _attr(creation: Creation, constants: Words, field: int) -> int:
    return attr_word(creation, constants[field])


@jit
def _check_lists(
    creation: Creation, constants: UpdateConstants, variables: int, values: int
) -> None:
    offsets = constants.offsets
    count, text = attr_count(creation, offsets), "offsets has %lld items, not %lld"
    if count != values:
        refuse(creation, INVALID_ARGUMENT, text, count, values)
        return
    flags = attr_count(creation, constants.sparse)
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
def _dtype_index(creation: Creation, constants: UpdateConstants) -> int:
    """The index of the variables' dtype."""
    number = _attr(creation, as_words(constants), int64(UpdateConstants.T))
    for k in range(_DTYPE_COUNT):
        typed = constants.dtypes[k]
        if typed.dtype == number and is_access(as_record(VariableAccess, typed.access)):
            return int64(k)
    text = "TensorFlow does not export how variables of DataType %lld are updated"
    refuse(creation, UNIMPLEMENTED, text, number)
    return int64(0)


@jit
def _check_program(creation: Creation, constants: Words, check: CodeCheck) -> int:
    """Checks the attr `code`; the words of its instructions."""
    code = as_record(Text, _attr(creation, constants, int64(UpdateConstants.code)))
    for field, attr in (
        (CodeCheck.variable_count, UpdateConstants.num_variables),
        (CodeCheck.value_count, UpdateConstants.num_values),
        (CodeCheck.scalar_count, UpdateConstants.num_scalars),
        (CodeCheck.result_count, UpdateConstants.num_results),
        (CodeCheck.deduplicates, UpdateConstants.deduplicate),
    ):
        store(check, field, _attr(creation, constants, int64(attr)))
    check.code = as_record(CodeWords, code.address)
    return check_code(creation, check, code.length)


@jit
def _put_head(
    creation: Creation, constants: UpdateConstants, state: UpdateState, index: int
) -> None:
    typed = constants.dtypes[index]
    for k in range(UpdateAccess.SIZE):
        store(state.access, k, load(typed.access, k))
    state.pool = pool_of(creation)
    state.kernel_of_blocks = row_kernel(creation, index)
    state.item_bytes = typed.item_bytes
    number = _attr(creation, as_words(constants), int64(UpdateConstants.Tid))
    for enum, code in _IDS:
        if enum == number:
            state.ids_dtype = int64(code)
    for field, attr in (
        (UpdateState.variable_count, UpdateConstants.num_variables),
        (UpdateState.value_count, UpdateConstants.num_values),
        (UpdateState.scalar_count, UpdateConstants.num_scalars),
        (UpdateState.result_count, UpdateConstants.num_results),
        (UpdateState.dim, UpdateConstants.dim),
        (UpdateState.deduplicates, UpdateConstants.deduplicate),
        (UpdateState.wraps_negative, UpdateConstants.wrap_negative),
    ):
        store(state, field, _attr(creation, as_words(constants), int64(attr)))


@jit
def _put_code(code: int, words: int, state: Words) -> None:
    """Writes what a program does, and its instructions behind the state."""
    for field, word in (
        (UpdateState.is_sweep, CodeWords.is_sweep),
        (UpdateState.needs_rows, CodeWords.needs_rows),
        (UpdateState.may_skip, CodeWords.may_skip),
    ):
        state[field] = word_of(code, word)
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
def _put_lists(
    creation: Creation, constants: UpdateConstants, state: UpdateState, start: int
) -> None:
    """Writes offsets and flags, from word `start` on."""
    offsets, sparse = constants.offsets, constants.sparse
    state.offsets = start
    for k in range(attr_count(creation, offsets)):
        store(state, start + k, attr_item(creation, offsets, k))
    start += attr_count(creation, offsets)
    state.sparse = start
    count = int64(0)
    for k in range(attr_count(creation, sparse)):
        flag = attr_item(creation, sparse, k)
        store(state, start + k, flag)
        count += flag
    state.sparse_count = count
