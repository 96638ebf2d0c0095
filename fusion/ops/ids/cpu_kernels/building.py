"""How the vocabularies of an index are filled."""

from __future__ import annotations

import numpy as np

from fusion.ops.ids.cpu_kernels.layout import INT32, KeyList, Text, Vocabulary
from fusion.ops.ids.cpu_kernels.vocabulary import (
    EMPTY,
    HEAD_BYTES,
    PAIR,
    RECORD,
    find_number,
    find_text,
    heads,
    take_text,
)
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load, load_as
from fusion.runtime.native.pointers import as_words, stack_record
from fusion.runtime.native.strings import string_of

_LOWEST = -(2**63)


@jit
def slot_count(pairs: int) -> int:
    """How many slots so many keys have: a power of two, and at least a third of them are empty."""
    count = int64(2)
    while 2 * count < 3 * (pairs + 1):
        count *= 2
    return count


@jit
def long_bytes(keys: KeyList) -> int:
    """The bytes of texts that do not fit their records."""
    total = int64(0)
    for k in range(-1, keys.count):
        size = _text(keys, k)[1]
        total += size if size > HEAD_BYTES else int64(0)
    return total


@jit
def _text(keys: KeyList, k: int) -> tuple[int, int]:
    """The address and the size of a key; -1 is the mask, without one it has no bytes."""
    if k >= 0:
        return string_of(keys.keys, k)
    return string_of(keys.mask, int64(0)) if keys.mask != 0 else (int64(0), int64(0))


@jit
def _value(keys: KeyList, k: int) -> int:
    return keys.values[k] if k >= 0 else keys.mask_value


@jit
def _number(keys: KeyList, k: int) -> int:
    at, place = (keys.keys, k) if k >= 0 else (keys.mask, int64(0))
    return int64(load_as(at, place, np.int32)) if keys.source == INT32 else load(at, place)


@jit
def add_texts(index: Words, vocabulary: Vocabulary, keys: KeyList) -> None:
    """Fills a vocabulary of texts: of equal ones the first counts."""
    slots, used, text = index + 8 * vocabulary.slots, int64(0), stack_record(Text)
    for slot in range(vocabulary.slot_mask + 1):
        as_words(slots + 8 * RECORD * slot)[1] = EMPTY
    for k in range(-1 if keys.mask != 0 else 0, keys.count):
        strings, place = (keys.keys, int64(k)) if k >= 0 else (keys.mask, int64(0))
        take_text(text, strings, place)
        at, size = text.at, text.size
        low, high = heads(text)
        slot = find_text(index, vocabulary, low, high, at, size)
        record = as_words(slots + 8 * RECORD * slot)
        if record[1] != EMPTY:
            continue
        record[0] = _value(keys, int64(k))
        record[1] = size
        record[2] = low
        record[3] = high
        if size > HEAD_BYTES:
            record[3] = used
            c_memcpy(index + 8 * vocabulary.bytes + used, at, size)
            used += size


@jit
def _no_key(keys: KeyList) -> int:
    """A number that is no key."""
    number, is_key = int64(_LOWEST), True
    while is_key:
        is_key = False
        for k in range(-1 if keys.mask != 0 else 0, keys.count):
            is_key = is_key or _number(keys, int64(k)) == number
        if is_key:
            number += 1
    return number


@jit
def add_numbers(index: Words, vocabulary: Vocabulary, keys: KeyList) -> None:
    """Fills a vocabulary of integers: of equal ones the first counts."""
    slots = as_words(index + 8 * vocabulary.slots)
    vocabulary.empty = _no_key(keys)
    for slot in range(vocabulary.slot_mask + 1):
        slots[PAIR * slot] = vocabulary.empty
    for k in range(-1 if keys.mask != 0 else 0, keys.count):
        number = _number(keys, int64(k))
        slot = find_number(index, vocabulary, number)
        if slots[PAIR * slot] == vocabulary.empty:
            slots[PAIR * slot] = number
            slots[PAIR * slot + 1] = _value(keys, int64(k))
