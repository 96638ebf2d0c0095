"""The builder of the states of the op that gathers rows from a table store."""

from __future__ import annotations

from fusion.cpu_ops.hot_rows.store import hash_of_text
from fusion.ops.cpu.tables.store_layout import StoreColumn, StoreConstants, StoreGatherState
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load, store
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


def build_store_gather_state(creation: int) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = constants_of(creation)
    if constants == 0:
        return
    count = attr_word(creation, load(constants, StoreConstants.num_tables))
    if not _check(creation, constants, count):
        return
    tables = attr_word(creation, load(constants, StoreConstants.tables))
    store_name = attr_word(creation, load(constants, StoreConstants.store))
    words = StoreGatherState.SIZE + count * StoreColumn.SIZE
    texts = _words_of(store_name)
    for index in range(count):
        texts += _words_of(tables + 8 * Text.SIZE * index)
    state = begin_state(creation, words + texts)
    if state == 0:
        return
    store(state, StoreGatherState.names, load(constants, StoreConstants.names))
    store(state, StoreGatherState.column_count, count)
    store(state, StoreGatherState.store, 8 * words)
    store(state, StoreGatherState.store_length, load(store_name, Text.length))
    words += _put(state, words, store_name)
    for index in range(count):
        name = tables + 8 * Text.SIZE * index
        length = load(name, Text.length)
        column = state + 8 * (StoreGatherState.columns + StoreColumn.SIZE * index)
        store(column, StoreColumn.name, 8 * words)
        store(column, StoreColumn.name_length, length)
        store(column, StoreColumn.name_hash, hash_of_text(load(name, Text.address), length))
        dim = attr_item(creation, load(constants, StoreConstants.dims), int64(index))
        store(column, StoreColumn.dim, dim)
        words += _put(state, words, name)


@jit
def _words_of(text: int) -> int:
    """The words that a text takes, with a zero behind."""
    return load(text, Text.length) // 8 + 1


@jit
def _put(state: int, words: int, text: int) -> int:
    """Writes a text into a state of zeros; returns the words that it takes."""
    c_memcpy(state + 8 * words, load(text, Text.address), load(text, Text.length))
    return _words_of(text)


@jit
def _check(creation: int, constants: int, count: int) -> bool:
    """Whether lists have an item for each table, and dimensions are positive."""
    dims = load(constants, StoreConstants.dims)
    named = attr_count(creation, load(constants, StoreConstants.tables))
    if attr_count(creation, dims) != count or named != count:
        text = "tables and dims have %lld and %lld items for %lld tensors of keys"
        refuse(creation, INVALID_ARGUMENT, text, named, attr_count(creation, dims), count)
        return False
    for index in range(count):
        if attr_item(creation, dims, int64(index)) < 1:
            text = "dims must be at least 1, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, attr_item(creation, dims, int64(index)))
            return False
    return load(creation, Creation.has_failed) == 0
