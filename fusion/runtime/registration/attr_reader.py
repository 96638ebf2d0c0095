"""Reads the attrs of a node from TensorFlow into `AttrValue` records, in native code."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcmp, load, load_as, store, store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INTERNAL, INVALID_ARGUMENT, refuse
from fusion.runtime.tensorflow.attrs import BOOL, FLOAT, INT, STRING, AttrEntry, AttrValue, Text
from fusion.runtime.tensorflow.c_api import (
    tf_get_attr_bool,
    tf_get_attr_bools,
    tf_get_attr_float,
    tf_get_attr_floats,
    tf_get_attr_int64,
    tf_get_attr_int64s,
    tf_get_attr_size,
    tf_get_attr_string,
    tf_get_attr_strings,
    tf_get_attr_type,
    tf_get_attr_types,
    tf_get_code,
    tf_has_attr,
)

_i32 = types.int32


@jit
def read_attrs(creation: Creation, construction: int, status: int) -> None:
    """Reads all attrs; on failure the status or the creation has the error."""
    record = creation.record
    values, count = creation.values, record.attr_count
    for k in range(AttrValue.SIZE * count):
        store(values, k, 0)
    for k in range(count):
        entry = record.attrs[k]
        value = values[k]
        _read(creation, entry, construction, status, value)
        if tf_get_code(status) != 0 or creation.has_failed != 0:
            return


@jit
def free_attrs(creation: Creation) -> None:
    """Releases the memory of the values."""
    record, values = creation.record, creation.values
    for k in range(record.attr_count):
        c_free(values[k].memory)


@jit
def _read(
    creation: int, entry: AttrEntry, construction: int, status: int, value: AttrValue
) -> None:
    name, kind = entry.name, entry.kind
    is_list = entry.is_list != 0
    if tf_has_attr(construction, name, status) == 0:
        if entry.has_default == 0:
            refuse(creation, INVALID_ARGUMENT, "there is no attr %s", name)
        elif is_list or (kind == STRING and entry.allowed_count == 0):
            _put_memory(creation, value, int64(Text.SIZE), int64(0 if is_list else 1))
        else:
            value.value = entry.default
            value.count = 1
        return
    if kind == STRING:
        _read_strings(creation, entry, construction, status, value)
    elif is_list:
        _read_list(creation, entry, construction, status, value)
    else:
        value.count = 1
        _read_one(kind, name, construction, status, value)


@jit
def _read_one(kind: int, name: int, construction: int, status: int, value: AttrValue) -> None:
    """Reads an attr that is a number."""
    word = stack_words(1)
    word[0] = 0
    if kind == INT:
        tf_get_attr_int64(construction, name, word, status)
    elif kind == FLOAT:
        tf_get_attr_float(construction, name, word, status)
        store_as(word, int64(0), np.float64(load_as(word, int64(0), np.float32)), np.float64)
    elif kind == BOOL:
        tf_get_attr_bool(construction, name, word, status)
    else:
        tf_get_attr_type(construction, name, word, status)
    value.value = word[0]


@jit
def _length(creation: int, name: int, construction: int, status: int, total: Words) -> int:
    """The number of elements of a list; sets the word at `total` to the bytes of its strings."""
    sizes = stack_words(1)
    sizes[0] = 0
    tf_get_attr_size(construction, name, sizes, sizes + 4, status)
    total[0] = int64(max(load_as(sizes, int64(1), np.int32), _i32(0)))
    return int64(max(load_as(sizes, int64(0), np.int32), _i32(0)))


@jit
def _put_memory(creation: int, value: AttrValue, words: int, count: int) -> Words:
    """Gives a value `count` elements and memory of `words` words; returns it, 0 on failure."""
    memory = as_words(c_malloc(8 * max(words, int64(1))))
    if memory == 0:
        refuse(creation, INTERNAL, "there is no memory for attrs")
        return memory
    for k in range(min(words, int64(Text.SIZE))):
        memory[k] = 0
    value.memory = memory
    value.value = memory
    value.count = count
    return memory


@jit
def _read_list(
    creation: int, entry: AttrEntry, construction: int, status: int, value: AttrValue
) -> None:
    """Reads a list of numbers; small ones are widened to words, from last to first."""
    name, kind, total = entry.name, entry.kind, stack_words(1)
    count = _length(creation, name, construction, status, total)
    memory = _put_memory(creation, value, count, count)
    if memory == 0 or count == 0 or tf_get_code(status) != 0:
        return
    capacity = _i32(count)
    if kind == INT:
        tf_get_attr_int64s(construction, name, memory, capacity, status)
    elif kind == FLOAT:
        tf_get_attr_floats(construction, name, memory, capacity, status)
        for k in range(count - 1, -1, -1):
            store_as(memory, k, np.float64(load_as(memory, k, np.float32)), np.float64)
    elif kind == BOOL:
        tf_get_attr_bools(construction, name, memory, capacity, status)
        for k in range(count - 1, -1, -1):
            memory[k] = int64(load_as(memory, k, np.uint8))
    else:
        tf_get_attr_types(construction, name, memory, capacity, status)
        for k in range(count - 1, -1, -1):
            memory[k] = int64(load_as(memory, k, np.int32))


@jit
def _read_strings(
    creation: int, entry: AttrEntry, construction: int, status: int, value: AttrValue
) -> None:
    """Reads a string, or a list of them."""
    name, total = entry.name, stack_words(1)
    is_list = entry.is_list != 0
    count = _length(creation, name, construction, status, total)
    if not is_list:
        count = int64(1)
    # `Text` of each, their addresses and lengths as TensorFlow gives them, then the bytes.
    words = (Text.SIZE + 2) * count + (total[0] + 7) // 8
    memory = as_record(Text, _put_memory(creation, value, words, count))
    if memory == 0 or count == 0 or tf_get_code(status) != 0:
        return
    addresses = as_words(memory + 8 * Text.SIZE * count)
    lengths, content = as_words(addresses + 8 * count), addresses + 16 * count
    if is_list:
        size, capacity = total[0], _i32(count)
        tf_get_attr_strings(construction, name, addresses, lengths, capacity, content, size, status)
    else:
        addresses[0] = content
        lengths[0] = total[0]
        tf_get_attr_string(construction, name, content, total[0], status)
    if tf_get_code(status) != 0:
        return
    for k in range(count):
        memory[k].address = addresses[k]
        memory[k].length = lengths[k]
    if entry.allowed_count > 0:
        _replace_by_indices(creation, entry, value, count, is_list)


@jit
def _replace_by_indices(
    creation: int, entry: AttrEntry, value: AttrValue, count: int, is_list: bool
) -> None:
    """Replaces the strings of a value by their indices among the allowed ones."""
    memory = as_record(Text, value.memory)
    for k in range(count):
        text = memory[k]
        index = _index_of(entry, text.address, text.length)
        if index < 0:
            refuse(creation, INVALID_ARGUMENT, "%s has a value that it may not have", entry.name)
            return
        store(memory, k, index)
    if not is_list:
        value.value = load(memory, 0)


@jit
def _index_of(entry: AttrEntry, address: int, length: int) -> int:
    """The index of a text among the allowed values of an attr, -1 if it is none of them."""
    for k in range(entry.allowed_count):
        text = entry.allowed[k]
        if text.length == length and (c_memcmp(text.address, address, length) == 0):
            return k
    return int64(-1)
