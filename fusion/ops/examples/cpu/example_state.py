"""The builder of the states of the op that parses Examples."""

from __future__ import annotations

from fusion.ops.examples.cpu.example_layout import FIRST_DEFAULT, ParseConstants, ParseState
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    PADDED,
    RAGGED,
    SPARSE,
    Feature,
    Names,
)
from fusion.ops.examples.cpu_kernels.names import add_name, set_name
from fusion.ops.examples.cpu_kernels.wire import FLOATS, INTS, STRINGS
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.strings import STRING_BYTES
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import (
    attr_count,
    attr_item,
    attr_word,
    begin_state,
    constants_of,
    give_up,
    pool_of,
)
from fusion.runtime.tensorflow.attrs import Text
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import MAX_FEATURES

_FLOAT, _INT64, _INT32 = (DTYPES[name].enum for name in ("float32", "int64", "int32"))

#: No tensor has so many elements in a row.
_MAX_COUNT = 1 << 40

#: A tensor has at most 254 dimensions, of which one is the batch.
_MAX_RANK = 253


@jit
def _text_words(creation: Creation, keys: int) -> int:
    """The words that names take, each with zeros behind."""
    texts, words = as_record(Text, attr_word(creation, keys)), int64(0)
    for index in range(attr_count(creation, keys)):
        words += texts[index].length // 8 + 1
    return words


@jit
def _slot_count(features: int) -> int:
    """The slots of a table of names: a power of two, at least four for each."""
    slots = int64(16)
    while slots < 4 * features:
        slots *= 2
    return slots


@jit
def _has_items(creation: Creation, attr: int, count: int) -> bool:
    """Whether a list has so many items."""
    found = attr_count(creation, attr)
    if found != count:
        name = creation.record.attrs[attr].name
        refuse(creation, INVALID_ARGUMENT, "%s has %lld items, not %lld", name, found, count)
    return found == count


@jit
def _are_shapes_whole(creation: Creation, constants: ParseConstants, dense: int) -> bool:
    """Whether there are the sizes that ranks ask for, and a dtype of each default."""
    dims, defaults = int64(0), int64(0)
    for index in range(dense):
        number = int64(index)
        rank = attr_item(creation, constants.dense_ranks, number)
        if rank < 0 or rank > _MAX_RANK:
            text = "dense_ranks[%lld] = %lld is not in [0, %lld]"
            refuse(creation, INVALID_ARGUMENT, text, number, rank, int64(_MAX_RANK))
            return False
        dims += rank
        if attr_item(creation, constants.required, number) == 0:
            defaults += 1
    is_whole = _has_items(creation, constants.default_types, defaults)
    return is_whole and _has_items(creation, constants.dense_dims, dims)


@jit
def _are_lists_whole(creation: Creation, constants: ParseConstants) -> bool:
    """Whether lists have an item for each feature."""
    dense = attr_count(creation, constants.dense_keys)
    sparse = attr_count(creation, constants.sparse_keys)
    ragged = attr_count(creation, constants.ragged_keys)
    is_whole = _has_items(creation, constants.dense_types, dense)
    is_whole = is_whole and _has_items(creation, constants.dense_ranks, dense)
    is_whole = is_whole and _has_items(creation, constants.required, dense)
    is_whole = is_whole and _has_items(creation, constants.sparse_types, sparse)
    is_whole = is_whole and _has_items(creation, constants.ragged_types, ragged)
    is_whole = is_whole and _has_items(creation, constants.split_types, ragged)
    if not is_whole:
        return False
    count = attr_word(creation, constants.num_sparse)
    if count != sparse:
        text = "num_sparse is %lld, but sparse_keys has %lld items"
        refuse(creation, INVALID_ARGUMENT, text, count, sparse)
        return False
    if dense + sparse + ragged > MAX_FEATURES:
        text = "there are %lld keys, but at most %lld can be asked for"
        refuse(creation, INVALID_ARGUMENT, text, dense + sparse + ragged, int64(MAX_FEATURES))
        return False
    return _are_shapes_whole(creation, constants, dense)


@jit
def _set_dtype(feature: Feature, dtype: int) -> None:
    if dtype == _FLOAT:
        feature.dtype = FLOATS
        feature.item_bytes = 4
    elif dtype == _INT64:
        feature.dtype = INTS
        feature.item_bytes = 8
    else:
        feature.dtype = STRINGS
        feature.item_bytes = STRING_BYTES


@jit
def _set_names(creation: Creation, keys: int, features: Feature, text: int) -> int:
    """Copies the names of features; where the next may be."""
    texts = as_record(Text, attr_word(creation, keys))
    for index in range(attr_count(creation, keys)):
        name = texts[index]
        c_memcpy(text, name.address, name.length)
        set_name(features[index], text, name.length)
        text += 8 * (name.length // 8 + 1)
    return text


@jit
def _set_shape(creation: Creation, feature: Feature, attr: int, first: int, number: int) -> bool:
    """Sets the shape of a dense feature from so many dims on; whether it may have that."""
    count, is_empty = int64(1), False
    feature.form = FIXED
    for axis in range(feature.rank):
        size = attr_item(creation, attr, first + axis)
        feature.dims[axis] = size
        if size < 0 and axis == 0:
            feature.form = PADDED
        elif size < 0:
            text = "dense_dims of dense_keys[%lld]: a size of %lld, and it is not the first"
            refuse(creation, INVALID_ARGUMENT, text, number, size)
            return False
        elif size > _MAX_COUNT // count:
            text = "dense_dims of dense_keys[%lld]: %lld is too large a size"
            refuse(creation, INVALID_ARGUMENT, text, number, size)
            return False
        else:
            is_empty = is_empty or size == 0
            count *= max(size, int64(1))
    feature.count = int64(0) if is_empty else count
    if feature.form == PADDED and is_empty:
        text = "dense_dims of dense_keys[%lld]: strides of 0 values, and rows that are filled up"
        refuse(creation, INVALID_ARGUMENT, text, number)
        return False
    return True


@jit
def _set_default(
    creation: Creation, constants: ParseConstants, feature: Feature, number: int, defaults: int
) -> int:
    """Sets the default of a dense feature behind so many others; how many there are then, or -1."""
    feature.default_input = -1
    if attr_item(creation, constants.required, number) != 0:
        if feature.form == PADDED:
            text = "required[%lld] is true, but rows of dense_keys[%lld] are filled up"
            refuse(creation, INVALID_ARGUMENT, text, number, number)
            return int64(-1)
        return defaults
    dtype = attr_item(creation, constants.default_types, defaults)
    if dtype != attr_item(creation, constants.dense_types, number):
        text = "dense_defaults[%lld] and dense_keys[%lld], its feature, have other dtypes"
        refuse(creation, INVALID_ARGUMENT, text, defaults, number)
        return int64(-1)
    feature.default_input = FIRST_DEFAULT + defaults
    return defaults + 1


@jit
def _set_dense(
    creation: Creation, constants: ParseConstants, state: ParseState, dims: Words
) -> bool:
    """Sets the dense features; whether their shapes and defaults may be."""
    first, places, defaults = int64(0), state.place_count, int64(0)
    for index in range(state.dense_count):
        feature = state.names.features[index]
        number = int64(index)
        _set_dtype(feature, attr_item(creation, constants.dense_types, number))
        feature.rank = attr_item(creation, constants.dense_ranks, number)
        feature.dims = as_words(dims + 8 * first)
        if not _set_shape(creation, feature, constants.dense_dims, first, number):
            return False
        first += feature.rank
        feature.output = 3 * state.sparse_count + index
        defaults = _set_default(creation, constants, feature, number, defaults)
        if defaults < 0:
            return False
        if feature.form == PADDED:
            feature.place = places
            places += 1
            if feature.default_input < 0:
                text = "dense_dims of key %lld: rows are filled up, which needs a default"
                refuse(creation, INVALID_ARGUMENT, text, number)
                return False
    state.place_count = places
    state.default_count = defaults
    return True


@jit
def _set_others(creation: Creation, constants: ParseConstants, state: ParseState) -> None:
    """Sets sparse and ragged features."""
    sparse, dense = state.sparse_count, state.dense_count
    for index in range(sparse + state.ragged_count):
        feature = state.names.features[dense + index]
        is_sparse, number = index < sparse, index - sparse
        feature.place = state.place_count
        state.place_count = state.place_count + 1
        feature.default_input = -1
        feature.count = 1
        if is_sparse:
            _set_dtype(feature, attr_item(creation, constants.sparse_types, int64(index)))
            feature.form = SPARSE
            feature.output = sparse + index
        else:
            _set_dtype(feature, attr_item(creation, constants.ragged_types, number))
            feature.form = RAGGED
            feature.output = 3 * sparse + dense + number
            is_half = attr_item(creation, constants.split_types, number) == _INT32
            feature.split_bytes = 4 if is_half else 8


@jit
def _add_names(creation: Creation, constants: ParseConstants, names: Names) -> bool:
    """Adds all names to the table; False if two features have one."""
    number = int64(0)
    for attr in (constants.dense_keys, constants.sparse_keys, constants.ragged_keys):
        for index in range(attr_count(creation, attr)):
            if not add_name(names, number):
                name = creation.record.attrs[attr].name
                text = "%s[%lld] is a key that another feature has, too"
                refuse(creation, INVALID_ARGUMENT, text, name, int64(index))
                return False
            number += 1
    return True


def build_parse_state(creation: Creation) -> None:
    """The builder, see `fusion.runtime.registration.creation`."""
    constants = as_record(ParseConstants, constants_of(creation))
    pool = pool_of(creation)
    if constants == 0 or not _are_lists_whole(creation, constants):
        return
    sparse = attr_count(creation, constants.sparse_keys)
    dense = attr_count(creation, constants.dense_keys)
    ragged = attr_count(creation, constants.ragged_keys)
    count, dims = sparse + dense + ragged, attr_count(creation, constants.dense_dims)
    slots, words = _slot_count(count), int64(ParseState.SIZE) + Feature.SIZE * count
    texts = words + dims + slots
    total = texts + _text_words(creation, constants.dense_keys)
    total += _text_words(creation, constants.sparse_keys)
    total += _text_words(creation, constants.ragged_keys)
    state = as_record(ParseState, begin_state(creation, total))
    if state == 0:
        return
    state.pool = pool
    state.sparse_count = sparse
    state.dense_count = dense
    state.ragged_count = ragged
    names = state.names
    names.features = as_record(Feature, state + 8 * ParseState.SIZE)
    names.count = count
    names.mask = slots - 1
    names.slots = as_words(state + 8 * (words + dims))
    text = _set_names(creation, constants.dense_keys, names.features, state + 8 * texts)
    text = _set_names(creation, constants.sparse_keys, names.features[dense], text)
    _set_names(creation, constants.ragged_keys, names.features[dense + sparse], text)
    is_right = _set_dense(creation, constants, state, as_words(state + 8 * words))
    if is_right:
        _set_others(creation, constants, state)
    is_right = is_right and _add_names(creation, constants, names)
    if not is_right:
        give_up(creation)
