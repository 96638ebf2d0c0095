"""The builder of the states of the op that hashes values."""

from __future__ import annotations

from fusion.ops.ids.cpu.ids_layout import IdsConstants, IdsState
from fusion.ops.ids.cpu_kernels.layout import INT32, INT64, TEXTS, IdsColumn
from fusion.ops.ids.cpu_kernels.words import Word, signed, unsigned
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words
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
from fusion.runtime.tensorflow.dtypes import DTYPES

_INT32, _INT64 = (DTYPES[name].enum for name in ("int32", "int64"))

#: Words of a key.
_KEY = 2
_ALL = 2**64 - 1


@jit
def _are_lists_whole(creation: Creation, constants: IdsConstants, count: int) -> bool:
    """Whether lists have an item for each column, and there are buckets."""
    is_whole = attr_count(creation, constants.dtypes) == count
    is_whole = is_whole and attr_count(creation, constants.hashes) == count
    is_whole = is_whole and attr_count(creation, constants.num_buckets) == count
    keys = attr_count(creation, constants.keys)
    if not is_whole or (keys != 0 and keys != _KEY * count):
        text = "lists of attrs must have an item for each of %lld columns, and keys two or none"
        refuse(creation, INVALID_ARGUMENT, text, count)
        return False
    for index in range(count):
        buckets = attr_item(creation, constants.num_buckets, int64(index))
        if buckets < 1:
            text = "num_buckets must be at least 1, not %lld"
            refuse(creation, INVALID_ARGUMENT, text, buckets)
            return False
    return True


@jit
def _set_column(
    creation: Creation, constants: IdsConstants, column: IdsColumn, index: int
) -> None:
    dtype = attr_item(creation, constants.dtypes, index)
    column.source = INT32 if dtype == _INT32 else INT64 if dtype == _INT64 else TEXTS
    column.hash = attr_item(creation, constants.hashes, index)
    column.buckets = attr_item(creation, constants.num_buckets, index)
    column.reciprocal = signed(Word(_ALL) // unsigned(column.buckets))
    for k in range(_KEY if attr_count(creation, constants.keys) != 0 else 0):
        column.key[k] = attr_item(creation, constants.keys, _KEY * index + k)


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
    state = as_record(IdsState, begin_state(creation, keys + _KEY * count))
    if state == 0:
        return
    state.pool = pool
    state.column_count = count
    for index in range(count):
        column = state.columns[index]
        column.key = as_words(state + 8 * (keys + _KEY * index))
        _set_column(creation, constants, column, int64(index))
