"""The builder of the states of the op that makes ids."""

from __future__ import annotations

from fusion.ops.ids.cpu.ids_layout import IdsConstants, IdsState
from fusion.ops.ids.cpu_kernels.layout import (
    DEFAULT,
    INT32,
    INT64,
    REMAINDER,
    TEXTS,
    IdsColumn,
)
from fusion.ops.ids.cpu_kernels.split_layout import Split
from fusion.ops.ids.cpu_kernels.splitting import ONES
from fusion.ops.ids.cpu_kernels.words import Word, signed, unsigned
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.text import byte
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    pool_of,
)
from fusion.runtime.tensorflow.attrs import Text
from fusion.runtime.tensorflow.dtypes import DTYPES

_INT32, _INT64 = (DTYPES[name].enum for name in ("int32", "int64"))

#: Words of a key.
_KEY = 2
_ALL = 2**64 - 1


@jit
def _is_list_whole(creation: Creation, attr: int, count: int) -> bool:
    """Whether a list has an item for each column, or none for any."""
    return attr_count(creation, attr) == count or attr_count(creation, attr) == 0


@jit
def _are_lists_whole(creation: Creation, constants: IdsConstants, count: int) -> bool:
    """Whether lists have an item for each column."""
    is_whole = attr_count(creation, constants.hashes) == count
    if constants.dtypes >= 0:
        is_whole = is_whole and attr_count(creation, constants.dtypes) == count
    else:
        for attr in (constants.delimiters, constants.parts, constants.forms):
            is_whole = is_whole and attr_count(creation, attr) == count
    is_whole = is_whole and attr_count(creation, constants.num_buckets) == count
    for attr in (constants.vocabularies, constants.replaced, constants.starts):
        is_whole = is_whole and _is_list_whole(creation, attr, count)
    keys = attr_count(creation, constants.keys)
    if not is_whole or (keys != 0 and keys != _KEY * count):
        text = "lists of attrs must have an item for each of %lld columns, and keys two or none"
        refuse(creation, INVALID_ARGUMENT, text, count)
        return False
    return True


@jit
def _item_or(creation: Creation, attr: int, index: int, default: int) -> int:
    """An item of a list, or a default if it has none."""
    return attr_item(creation, attr, index) if attr_count(creation, attr) != 0 else default


@jit
def source_of(dtype: int) -> int:
    """What values of a dtype are."""
    return INT32 if dtype == _INT32 else INT64 if dtype == _INT64 else TEXTS


@jit
def _check_column(creation: Creation, column: IdsColumn, index: int) -> None:
    if column.vocabulary < -1:
        text = "vocabularies[%lld] must be at least -1, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, index, column.vocabulary)
    least = int64(1 if column.vocabulary < 0 else 0)
    if column.buckets < least:
        text = "num_buckets must be at least %lld, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, least, column.buckets)
    if column.start < -1:
        text = "starts[%lld] must be at least -1, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, index, column.start)
    if column.hash == REMAINDER and column.source == TEXTS:
        text = "hashes[%lld] is remainder, which strings do not have"
        refuse(creation, INVALID_ARGUMENT, text, index)


@jit
def _set_column(creation: Creation, constants: IdsConstants, column: IdsColumn, index: int) -> None:
    column.source = int64(TEXTS)
    if constants.dtypes >= 0:
        column.source = source_of(attr_item(creation, constants.dtypes, index))
    column.hash = attr_item(creation, constants.hashes, index)
    column.buckets = attr_item(creation, constants.num_buckets, index)
    column.vocabulary = _item_or(creation, constants.vocabularies, index, int64(-1))
    column.replaced = _item_or(creation, constants.replaced, index, int64(DEFAULT))
    column.start = _item_or(creation, constants.starts, index, int64(0))
    _check_column(creation, column, index)
    if column.buckets > 0:
        column.reciprocal = signed(Word(_ALL) // unsigned(column.buckets))
    for k in range(_KEY if attr_count(creation, constants.keys) != 0 else 0):
        column.key[k] = attr_item(creation, constants.keys, _KEY * index + k)


@jit
def _check_index(creation: Creation, state: IdsState) -> None:
    needs = int64(0)
    for index in range(state.column_count):
        needs = max(needs, int64(1 if state.columns[index].vocabulary >= 0 else 0))
    if state.has_index != needs:
        text = "num_indices must be %lld, not %lld: vocabularies are in an index"
        refuse(creation, INVALID_ARGUMENT, text, needs, state.has_index)


@jit
def _split_words(creation: Creation, constants: IdsConstants, count: int) -> int:
    """The words that `splits` take, and delimiters with zeros behind."""
    words = int64(0)
    if constants.delimiters < 0:
        return words
    texts = as_record(Text, attr_word(creation, constants.delimiters))
    for index in range(count):
        words += Split.SIZE + texts[index].length // 8 + 1
    return words


@jit
def _set_splits(creation: Creation, constants: IdsConstants, state: IdsState, memory: int) -> None:
    """Sets how texts are split."""
    texts = as_record(Text, attr_word(creation, constants.delimiters))
    state.splits = as_record(Split, memory)
    place = memory + 8 * Split.SIZE * state.column_count
    for index in range(state.column_count):
        split, text = state.splits[index], texts[index]
        if text.length == 0:
            refuse(creation, INVALID_ARGUMENT, "delimiters[%lld] is empty", int64(index))
            return
        c_memcpy(place, text.address, text.length)
        split.delimiter = place
        split.size = text.length
        split.pattern = byte(place) * int64(ONES)
        split.parts = attr_item(creation, constants.parts, int64(index))
        split.form = attr_item(creation, constants.forms, int64(index))
        place += 8 * (text.length // 8 + 1)


def build_ids_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(IdsConstants, constants_of(creation))
    pool = pool_of(creation)
    if constants == 0:
        return
    count = attr_word(creation, constants.num_columns)
    if not _are_lists_whole(creation, constants, count):
        return
    keys = IdsState.SIZE + IdsColumn.SIZE * count
    splits = keys + _KEY * count
    more = _split_words(creation, constants, count)
    state = as_record(IdsState, begin_state(creation, splits + more))
    if state == 0:
        return
    state.pool = pool
    state.column_count = count
    state.has_index = attr_word(creation, constants.num_indices)
    for index in range(count):
        column = state.columns[index]
        column.key = as_words(state + 8 * (keys + _KEY * index))
        _set_column(creation, constants, column, int64(index))
    _check_index(creation, state)
    if more > 0:
        _set_splits(creation, constants, state, state + 8 * splits)
