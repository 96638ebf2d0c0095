"""The features of a map in the state of an op that parses: of an Example, or of a part of one."""

from __future__ import annotations

from fusion.ops.examples.cpu.example_layout import FIRST_DEFAULT, FeatureGroup, GroupConstants
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    HASHED,
    PADDED,
    RAGGED,
    SPARSE,
    Feature,
    Names,
)
from fusion.ops.examples.cpu_kernels.names import add_name, set_name
from fusion.ops.examples.cpu_kernels.wire import FLOATS, INTS, STRINGS
from fusion.ops.ids.cpu_kernels.words import Word, signed, unsigned
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.strings import STRING_BYTES
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import attr_count, attr_item, attr_word
from fusion.runtime.tensorflow.attrs import Text
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import MAX_FEATURES

_FLOAT, _INT64, _INT32 = (DTYPES[name].enum for name in ("float32", "int64", "int32"))
#: The number of TF_STRING.
_STRING = 7

#: The largest word.
_ALL = 2**64 - 1

#: No tensor has so many elements in a row.
_MAX_COUNT = 1 << 40

#: A tensor has at most 254 dimensions, of which one is the batch.
_MAX_RANK = 253


@jit
def feature_count(creation: Creation, constants: GroupConstants) -> int:
    """How many features are asked for."""
    dense = attr_count(creation, constants.dense_keys)
    others = attr_count(creation, constants.sparse_keys)
    return dense + others + attr_count(creation, constants.ragged_keys)


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
def group_words(creation: Creation, constants: GroupConstants) -> int:
    """The words of what features point to: dimensions, slots and names."""
    words = attr_count(creation, constants.dense_dims)
    words += _slot_count(feature_count(creation, constants))
    words += _text_words(creation, constants.dense_keys)
    words += _text_words(creation, constants.sparse_keys)
    return words + _text_words(creation, constants.ragged_keys)


@jit
def name_of(creation: Creation, attr: int) -> int:
    """The address of the name of an attr."""
    return creation.record.attrs[attr].name


@jit
def _has_items(creation: Creation, attr: int, count: int) -> bool:
    """Whether a list has so many items."""
    found = attr_count(creation, attr)
    if found != count:
        name = name_of(creation, attr)
        refuse(creation, INVALID_ARGUMENT, "%s has %lld items, not %lld", name, found, count)
    return found == count


@jit
def _is_count(creation: Creation, attr: int, keys: int) -> bool:
    """Whether a number is that of keys."""
    count, found = attr_word(creation, attr), attr_count(creation, keys)
    if count != found:
        text = "%s is %lld, but %s has %lld items"
        name, of = name_of(creation, attr), name_of(creation, keys)
        refuse(creation, INVALID_ARGUMENT, text, name, count, of, found)
    return count == found


@jit
def _are_shapes_whole(creation: Creation, constants: GroupConstants) -> bool:
    """Whether there are the sizes that ranks ask for, and a dtype of each default."""
    ranks, dims, defaults = constants.dense_ranks, int64(0), int64(0)
    for index in range(attr_count(creation, constants.dense_keys)):
        number = int64(index)
        rank = attr_item(creation, ranks, number)
        if rank < 0 or rank > _MAX_RANK:
            text, name = "%s[%lld] = %lld is not in [0, %lld]", name_of(creation, ranks)
            refuse(creation, INVALID_ARGUMENT, text, name, number, rank, int64(_MAX_RANK))
            return False
        dims += rank
        if attr_item(creation, constants.required, number) == 0:
            defaults += 1
    if constants.default_types >= 0 and not _has_items(creation, constants.default_types, defaults):
        return False
    return _has_items(creation, constants.dense_dims, dims)


@jit
def is_group_whole(creation: Creation, constants: GroupConstants) -> bool:
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
    is_whole = is_whole and _is_count(creation, constants.num_sparse, constants.sparse_keys)
    if is_whole and constants.num_dense >= 0:
        is_whole = _is_count(creation, constants.num_dense, constants.dense_keys)
    if is_whole and constants.dense_buckets >= 0:
        is_whole = _has_items(creation, constants.sparse_buckets, sparse)
        is_whole = is_whole and _has_items(creation, constants.dense_buckets, dense)
        is_whole = is_whole and _has_items(creation, constants.ragged_buckets, ragged)
        is_whole = is_whole and _has_items(creation, constants.dense_outputs, dense)
        is_whole = is_whole and _has_items(creation, constants.dense_columns, dense)
    if not is_whole:
        return False
    if dense + sparse + ragged > MAX_FEATURES:
        text = "there are %lld keys, but at most %lld can be asked for"
        refuse(creation, INVALID_ARGUMENT, text, dense + sparse + ragged, int64(MAX_FEATURES))
        return False
    return _are_shapes_whole(creation, constants)


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
def _set_buckets(creation: Creation, attr: int, feature: Feature, number: int) -> bool:
    """Has the strings of a feature hashed, if they are to be; whether that may be."""
    buckets = attr_item(creation, attr, number) if attr >= 0 else int64(0)
    if buckets == 0:
        return True
    is_row = feature.form != PADDED and feature.count == 1
    if buckets < 0 or feature.dtype != INTS or not is_row:
        text = "%s[%lld] is %lld: only one int64 of a row, or a list of them, is a hash"
        refuse(creation, INVALID_ARGUMENT, text, name_of(creation, attr), number, buckets)
        return False
    feature.dtype = STRINGS
    feature.buckets = buckets
    feature.reciprocal = signed(Word(_ALL) // unsigned(buckets))
    return True


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
def _set_shape(
    creation: Creation, constants: GroupConstants, feature: Feature, first: int, number: int
) -> bool:
    """Sets the shape of a dense feature from so many dims on; whether it may have that."""
    attr, count, is_empty = constants.dense_dims, int64(1), False
    dims, keys = name_of(creation, attr), name_of(creation, constants.dense_keys)
    feature.form = FIXED
    for axis in range(feature.rank):
        size = attr_item(creation, attr, first + axis)
        feature.dims[axis] = size
        if size < 0 and axis == 0:
            feature.form = PADDED
        elif size < 0:
            text = "%s of %s[%lld]: a size of %lld, and it is not the first"
            refuse(creation, INVALID_ARGUMENT, text, dims, keys, number, size)
            return False
        elif size > _MAX_COUNT // count:
            text = "%s of %s[%lld]: %lld is too large a size"
            refuse(creation, INVALID_ARGUMENT, text, dims, keys, number, size)
            return False
        else:
            is_empty = is_empty or size == 0
            count *= max(size, int64(1))
    feature.count = int64(0) if is_empty else count
    if feature.form == PADDED and is_empty:
        text = "%s of %s[%lld]: strides of 0 values, and rows that are filled up"
        refuse(creation, INVALID_ARGUMENT, text, dims, keys, number)
        return False
    return True


@jit
def _set_default(
    creation: Creation, constants: GroupConstants, feature: Feature, number: int, defaults: int
) -> int:
    """Sets the default of a dense feature behind so many others; how many there are then, or -1."""
    keys = name_of(creation, constants.dense_keys)
    if feature.is_required != 0:
        if feature.form == PADDED:
            text = "%s[%lld] is true, but rows of %s[%lld] are filled up"
            name = name_of(creation, constants.required)
            refuse(creation, INVALID_ARGUMENT, text, name, number, keys, number)
            return int64(-1)
        return defaults
    dtype = attr_item(creation, constants.default_types, defaults)
    wanted = _STRING if feature.buckets > 0 else attr_item(creation, constants.dense_types, number)
    if dtype != wanted:
        text = "%s[%lld] is not the dtype of %s[%lld]"
        name = name_of(creation, constants.default_types)
        refuse(creation, INVALID_ARGUMENT, text, name, defaults, keys, number)
        return int64(-1)
    feature.default_input = FIRST_DEFAULT + defaults
    return defaults + 1


@jit
def _has_rows(creation: Creation, constants: GroupConstants, feature: Feature, number: int) -> bool:
    """Whether the shape of a dense feature list begins with its rows."""
    if feature.form != PADDED:
        text = "%s of %s[%lld]: the size of a list must be -1"
        dims, keys = name_of(creation, constants.dense_dims), constants.dense_keys
        refuse(creation, INVALID_ARGUMENT, text, dims, name_of(creation, keys), number)
    return feature.form == PADDED


@jit
def _set_dense(
    creation: Creation, constants: GroupConstants, group: FeatureGroup, dims: Words
) -> bool:
    """Sets the dense features; whether their shapes and defaults may be."""
    first, places, defaults = int64(0), group.place_count, int64(0)
    for index in range(group.dense_count):
        feature = group.names.features[index]
        number = int64(index)
        _set_dtype(feature, attr_item(creation, constants.dense_types, number))
        feature.rank = attr_item(creation, constants.dense_ranks, number)
        feature.dims = as_words(dims + 8 * first)
        if not _set_shape(creation, constants, feature, first, number):
            return False
        if not _set_buckets(creation, constants.dense_buckets, feature, number):
            return False
        first += feature.rank
        if feature.buckets > 0:
            feature.place = HASHED
        feature.output = group.first_output + 3 * group.sparse_count + index
        feature.is_required = attr_item(creation, constants.required, number)
        feature.default_input = -1
        if group.is_of_lists != 0:
            if not _has_rows(creation, constants, feature, number):
                return False
        else:
            defaults = _set_default(creation, constants, feature, number, defaults)
            if defaults < 0:
                return False
        if feature.form == PADDED:
            feature.place = places
            places += 1
    group.place_count = places
    group.default_count = defaults
    return constants.dense_outputs < 0 or _set_outputs(creation, constants, group)


@jit
def _set_outputs(creation: Creation, constants: GroupConstants, group: FeatureGroup) -> bool:
    """Sets which dense features are side by side; whether they may be."""
    features, attr, count = group.names.features, constants.dense_outputs, int64(0)
    for index in range(group.dense_count):
        feature, number = features[index], attr_item(creation, attr, int64(index))
        if number < 0 or number > count:
            text = "%s[%lld] = %lld: outputs of dense features are numbered in their order"
            refuse(creation, INVALID_ARGUMENT, text, name_of(creation, attr), int64(index), number)
            return False
        row = features[number]
        if number == count:
            row.starts = index
            row.total = 0
            count += 1
        feature.output = group.first_output + 3 * group.sparse_count + number
        feature.first = row.starts
        feature.column = attr_item(creation, constants.dense_columns, int64(index))
        feature.offset = feature.item_bytes * feature.column
        row.total = row.total + feature.count
    group.output_count = count
    return _has_items(creation, constants.value_types, count) and _are_rows(
        creation, constants, group
    )


@jit
def _is_beside_others(features: Feature, count: int, index: int) -> bool:
    """Whether one feature of its output ends where this one begins, if a row does not."""
    feature, found = features[index], int64(0)
    if feature.column == 0 and feature.first == index and features[index].total == feature.count:
        return True
    for k in range(count):
        other = features[k]
        if other.output == feature.output and k != index:
            if other.column == feature.column:
                return False
            found += int64(1 if other.column + other.count == feature.column else 0)
    return found == int64(0 if feature.column == 0 else 1)


@jit
def _are_rows(creation: Creation, constants: GroupConstants, group: FeatureGroup) -> bool:
    """Whether features that are side by side are of one dtype and length; sets that of rows."""
    features, outputs, types = (
        group.names.features,
        constants.dense_outputs,
        constants.value_types,
    )
    for index in range(group.dense_count):
        feature, number = features[index], attr_item(creation, outputs, int64(index))
        total = features[number].total
        if attr_item(creation, types, number) != attr_item(
            creation, constants.dense_types, int64(index)
        ):
            text = "%s[%lld] is not the dtype of a feature in it"
            refuse(creation, INVALID_ARGUMENT, text, name_of(creation, types), number)
            return False
        if not _is_beside_others(features, group.dense_count, int64(index)):
            text = "%s[%lld] = %lld: features of an output are not side by side"
            name = name_of(creation, constants.dense_columns)
            refuse(creation, INVALID_ARGUMENT, text, name, int64(index), feature.column)
            return False
        if total == feature.count and feature.first == index:
            continue
        if feature.form != FIXED or feature.count == 0:
            text = "%s[%lld]: it has no values, or is filled up, and has no output of its own"
            refuse(creation, INVALID_ARGUMENT, text, name_of(creation, outputs), int64(index))
            return False
        feature.row_values = total
    return True


@jit
def _set_others(creation: Creation, constants: GroupConstants, group: FeatureGroup) -> bool:
    """Sets sparse and ragged features; whether they may be hashed as they are to be."""
    sparse, dense = group.sparse_count, group.dense_count
    # Dense lists have two outputs.
    outputs = group.output_count if constants.dense_outputs >= 0 else dense
    ragged_output = group.first_output + 3 * sparse + outputs * (1 + group.is_of_lists)
    for index in range(sparse + group.ragged_count):
        feature = group.names.features[dense + index]
        is_sparse, number = index < sparse, index - sparse
        feature.place = group.place_count
        group.place_count = group.place_count + 1
        feature.default_input = -1
        feature.count = 1
        if is_sparse:
            _set_dtype(feature, attr_item(creation, constants.sparse_types, int64(index)))
            feature.form = SPARSE
            feature.output = group.first_output + sparse + index
            attr, number = constants.sparse_buckets, int64(index)
        else:
            _set_dtype(feature, attr_item(creation, constants.ragged_types, number))
            feature.form = RAGGED
            feature.output = ragged_output + number
            is_half = attr_item(creation, constants.split_types, number) == _INT32
            feature.split_bytes = 4 if is_half else 8
            attr = constants.ragged_buckets
        if not _set_buckets(creation, attr, feature, number):
            return False
    return True


@jit
def _add_names(creation: Creation, constants: GroupConstants, names: Names) -> bool:
    """Adds all names to the table; False if two features have one."""
    number = int64(0)
    for attr in (constants.dense_keys, constants.sparse_keys, constants.ragged_keys):
        for index in range(attr_count(creation, attr)):
            if not add_name(names, number):
                name = name_of(creation, attr)
                text = "%s[%lld] is a key that another feature has, too"
                refuse(creation, INVALID_ARGUMENT, text, name, int64(index))
                return False
            number += 1
    return True


@jit
def set_group(
    creation: Creation, constants: GroupConstants, group: FeatureGroup, features: int, words: int
) -> bool:
    """Sets a group, whose `first_output` and `is_of_lists` are there; whether attrs are right.

    Args:
      features: where a `Feature` for each key is to be.
      words: where what they point to is to be, see `group_words`.
    """
    names, dims = group.names, attr_count(creation, constants.dense_dims)
    group.sparse_count = attr_count(creation, constants.sparse_keys)
    group.dense_count = attr_count(creation, constants.dense_keys)
    group.ragged_count = attr_count(creation, constants.ragged_keys)
    names.features = as_record(Feature, features)
    names.count = feature_count(creation, constants)
    slots = _slot_count(names.count)
    names.mask = slots - 1
    names.slots = as_words(words + 8 * dims)
    sparse = names.features[group.dense_count]
    ragged = names.features[group.dense_count + group.sparse_count]
    text = _set_names(creation, constants.dense_keys, names.features, words + 8 * (dims + slots))
    text = _set_names(creation, constants.sparse_keys, sparse, text)
    _set_names(creation, constants.ragged_keys, ragged, text)
    if not _set_dense(creation, constants, group, as_words(words)):
        return False
    if not _set_others(creation, constants, group):
        return False
    return _add_names(creation, constants, names)
