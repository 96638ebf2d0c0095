"""The builder of the states of the op that gathers rows from a table store."""

from __future__ import annotations

from fusion.ops.stores.cpu.store_layout import StoreColumn, StoreConstants, StoreGatherState
from fusion.ops.stores.cpu_kernels.store import hash_of_text
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
)
from fusion.runtime.tensorflow.attrs import Text


def build_store_gather_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(StoreConstants, constants_of(creation))
    if constants == 0:
        return
    count = attr_word(creation, constants.num_tables)
    if not _check(creation, constants, count):
        return
    tables = as_record(Text, attr_word(creation, constants.tables))
    store_name = as_record(Text, attr_word(creation, constants.store))
    words = StoreGatherState.SIZE + count * StoreColumn.SIZE
    texts = _words_of(store_name)
    for index in range(count):
        texts += _words_of(tables[index])
    state = as_record(StoreGatherState, begin_state(creation, words + texts))
    if state == 0:
        return
    state.names = constants.names
    state.column_count = count
    state.store = 8 * words
    state.store_length = store_name.length
    words += _put(state, words, store_name)
    for index in range(count):
        name = tables[index]
        length = name.length
        column = state.columns[index]
        column.name = 8 * words
        column.name_length = length
        column.name_hash = hash_of_text(name.address, length)
        dim = attr_item(creation, constants.dims, int64(index))
        column.dim = dim
        words += _put(state, words, name)


@jit
def _words_of(text: Text) -> int:
    """The words that a text takes, with a zero behind."""
    return text.length // 8 + 1


@jit
def _put(state: int, words: int, text: Text) -> int:
    """Writes a text into a state of zeros; returns the words that it takes."""
    c_memcpy(state + 8 * words, text.address, text.length)
    return _words_of(text)


@jit
def _check(creation: Creation, constants: StoreConstants, count: int) -> bool:
    """Whether lists have an item for each table, and dimensions are positive."""
    dims = constants.dims
    named = attr_count(creation, constants.tables)
    if attr_count(creation, dims) != count or named != count:
        text = "tables and dims have %lld and %lld items for %lld tensors of keys"
        refuse(creation, INVALID_ARGUMENT, text, named, attr_count(creation, dims), count)
        return False
    for index in range(count):
        if attr_item(creation, dims, int64(index)) < 1:
            text = "dims must be at least 1, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, attr_item(creation, dims, int64(index)))
            return False
    return creation.has_failed == 0
