"""The attrs of a node as TensorFlow has them, read into `AttrValue` records in native code."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import (
    c_free,
    c_malloc,
    c_memcmp,
    load,
    load_as,
    stack_words,
    store,
    store_as,
)
from fusion.runtime.registration.creation import Creation, KernelsRecord
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
def read_attrs(creation: int, construction: int, status: int) -> None:
    """Reads all attrs; where that fails the status or the creation says why."""
    record = load(creation, Creation.record)
    values, count = load(creation, Creation.values), load(record, KernelsRecord.attr_count)
    for k in range(AttrValue.SIZE * count):
        store(values, k, 0)
    for k in range(count):
        entry = load(record, KernelsRecord.attrs) + 8 * AttrEntry.SIZE * k
        value = values + 8 * AttrValue.SIZE * k
        _read(creation, entry, construction, status, value)
        if tf_get_code(status) != 0 or load(creation, Creation.has_failed) != 0:
            return


@jit
def free_attrs(creation: int) -> None:
    """Releases what values lead to."""
    record, values = load(creation, Creation.record), load(creation, Creation.values)
    for k in range(load(record, KernelsRecord.attr_count)):
        c_free(load(values, AttrValue.SIZE * k + AttrValue.memory))


@jit
def _read(creation: int, entry: int, construction: int, status: int, value: int) -> None:
    name, kind = load(entry, AttrEntry.name), load(entry, AttrEntry.kind)
    is_list = load(entry, AttrEntry.is_list) != 0
    if tf_has_attr(construction, name, status) == 0:
        if load(entry, AttrEntry.has_default) == 0:
            refuse(creation, INVALID_ARGUMENT, "there is no attr %s", name)
        elif is_list or (kind == STRING and load(entry, AttrEntry.allowed_count) == 0):
            _put_memory(creation, value, int64(Text.SIZE), int64(0 if is_list else 1))
        else:
            store(value, AttrValue.value, load(entry, AttrEntry.default))
            store(value, AttrValue.count, 1)
        return
    if kind == STRING:
        _read_strings(creation, entry, construction, status, value)
    elif is_list:
        _read_list(creation, entry, construction, status, value)
    else:
        store(value, AttrValue.count, 1)
        _read_one(kind, name, construction, status, value)


@jit
def _read_one(kind: int, name: int, construction: int, status: int, value: int) -> None:
    """Reads an attr that is a number."""
    word = stack_words(1)
    store(word, 0, 0)
    if kind == INT:
        tf_get_attr_int64(construction, name, word, status)
    elif kind == FLOAT:
        tf_get_attr_float(construction, name, word, status)
        store_as(word, int64(0), np.float64(load_as(word, int64(0), np.float32)), np.float64)
    elif kind == BOOL:
        tf_get_attr_bool(construction, name, word, status)
    else:
        tf_get_attr_type(construction, name, word, status)
    store(value, AttrValue.value, load(word, 0))


@jit
def _length(creation: int, name: int, construction: int, status: int, total: int) -> int:
    """The number of elements of a list; sets the word at `total` to the bytes of its strings."""
    sizes = stack_words(1)
    store(sizes, 0, 0)
    tf_get_attr_size(construction, name, sizes, sizes + 4, status)
    store(total, 0, int64(max(load_as(sizes, int64(1), np.int32), _i32(0))))
    return int64(max(load_as(sizes, int64(0), np.int32), _i32(0)))


@jit
def _put_memory(creation: int, value: int, words: int, count: int) -> int:
    """Lets a value have a list of so many elements, and memory of so many words; 0 without."""
    memory = c_malloc(8 * max(words, int64(1)))
    if memory == 0:
        refuse(creation, INTERNAL, "there is no memory for attrs")
        return memory
    for k in range(min(words, int64(Text.SIZE))):
        store(memory, k, 0)
    store(value, AttrValue.memory, memory)
    store(value, AttrValue.value, memory)
    store(value, AttrValue.count, count)
    return memory


@jit
def _read_list(creation: int, entry: int, construction: int, status: int, value: int) -> None:
    """Reads a list of numbers; those of less than a word are widened, the last first."""
    name, kind, total = load(entry, AttrEntry.name), load(entry, AttrEntry.kind), stack_words(1)
    count = _length(creation, name, construction, status, total)
    memory = _put_memory(creation, value, count, count)
    if memory == 0 or count == 0 or tf_get_code(status) != 0:
        return
    most = _i32(count)
    if kind == INT:
        tf_get_attr_int64s(construction, name, memory, most, status)
    elif kind == FLOAT:
        tf_get_attr_floats(construction, name, memory, most, status)
        for k in range(count - 1, -1, -1):
            store_as(memory, k, np.float64(load_as(memory, k, np.float32)), np.float64)
    elif kind == BOOL:
        tf_get_attr_bools(construction, name, memory, most, status)
        for k in range(count - 1, -1, -1):
            store(memory, k, int64(load_as(memory, k, np.uint8)))
    else:
        tf_get_attr_types(construction, name, memory, most, status)
        for k in range(count - 1, -1, -1):
            store(memory, k, int64(load_as(memory, k, np.int32)))


@jit
def _read_strings(creation: int, entry: int, construction: int, status: int, value: int) -> None:
    """Reads a string, or a list of them."""
    name, total = load(entry, AttrEntry.name), stack_words(1)
    is_list = load(entry, AttrEntry.is_list) != 0
    count = _length(creation, name, construction, status, total)
    if not is_list:
        count = int64(1)
    # `Text` of each, their addresses and lengths as TensorFlow gives them, then the bytes.
    words = (Text.SIZE + 2) * count + (load(total, 0) + 7) // 8
    memory = _put_memory(creation, value, words, count)
    if memory == 0 or count == 0 or tf_get_code(status) != 0:
        return
    addresses = memory + 8 * Text.SIZE * count
    lengths, content = addresses + 8 * count, addresses + 16 * count
    if is_list:
        size, most = load(total, 0), _i32(count)
        tf_get_attr_strings(construction, name, addresses, lengths, most, content, size, status)
    else:
        store(addresses, 0, content)
        store(lengths, 0, load(total, 0))
        tf_get_attr_string(construction, name, content, load(total, 0), status)
    if tf_get_code(status) != 0:
        return
    for k in range(count):
        store(memory, Text.SIZE * k + Text.address, load(addresses, k))
        store(memory, Text.SIZE * k + Text.length, load(lengths, k))
    if load(entry, AttrEntry.allowed_count) > 0:
        _replace_by_indices(creation, entry, value, count, is_list)


@jit
def _replace_by_indices(creation: int, entry: int, value: int, count: int, is_list: bool) -> None:
    """Lets a value be, in place of strings, their indices among those that are allowed."""
    memory = load(value, AttrValue.memory)
    for k in range(count):
        text = memory + 8 * Text.SIZE * k
        index = _index_of(entry, load(text, Text.address), load(text, Text.length))
        if index < 0:
            refuse(
                creation,
                INVALID_ARGUMENT,
                "%s has a value that it may not have",
                load(entry, AttrEntry.name),
            )
            return
        store(memory, k, index)
    if not is_list:
        store(value, AttrValue.value, load(memory, 0))


@jit
def _index_of(entry: int, address: int, length: int) -> int:
    """The index of a text among those that an attr may be, -1 if it is none."""
    for k in range(load(entry, AttrEntry.allowed_count)):
        text = load(entry, AttrEntry.allowed) + 8 * Text.SIZE * k
        if load(text, Text.length) == length and (
            c_memcmp(load(text, Text.address), address, length) == 0
        ):
            return k
    return int64(-1)
