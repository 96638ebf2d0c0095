"""Vocabularies: hash tables of keys and values that lie in a tensor of words.

The slots of a block of values are fetched before any is compared: each is a miss in the caches if
the vocabulary is large.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.vectors import prefetch_line
from fusion.ops.ids.cpu_kernels.fingerprint import fingerprint
from fusion.ops.ids.cpu_kernels.layout import (
    INT32,
    MAGIC,
    TEXTS,
    IdsCall,
    IdsColumn,
    Index,
    Text,
    Vocabulary,
)
from fusion.ops.ids.cpu_kernels.words import signed
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.memory import load, load_as
from fusion.runtime.native.pointers import as_words
from fusion.runtime.native.strings import STRING_BYTES, is_read_by_words, string_of
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import folded_product, shifted_right, word_at

#: Words of the slot of a text, and of an integer.
RECORD = 4
PAIR = 2
#: As the size of a text: the slot is empty.
EMPTY = -1
#: So many bytes of a text are in its record.
HEAD_BYTES = 16
#: So many values are looked up together.
BLOCK = 32
#: The words of so many `Text`s, and what finding them takes.
TEXTS_WORDS, FIND_WORDS = Text.SIZE * BLOCK, 3 * BLOCK

_SALT, _FACTOR = 0x2D358DCCAA6C78A5, 0x1F3D5B79E5C6D7A3
_WORD_BYTES = 8


@inlined
def spread(number: int) -> int:
    """The hash of an integer."""
    return folded_product(number ^ int64(_SALT), int64(_FACTOR))


@inlined
def _up_to(word: int, size: int) -> int:
    """The lowest bytes of a word, as many as a text has; none if it has no more."""
    bits = 8 * (_WORD_BYTES - min(max(size, int64(1)), int64(_WORD_BYTES)))
    return shifted_right(word << bits, bits) if size > 0 else int64(0)


@jit
def _heads_by_bytes(at: int, size: int) -> tuple[int, int]:
    low, high = int64(0), int64(0)
    for k in range(min(size, int64(HEAD_BYTES))):
        if k < _WORD_BYTES:
            low |= byte(at + k) << (8 * k)
        else:
            high |= byte(at + k) << (8 * (k - _WORD_BYTES))
    return low, high


@inlined
def heads(text: Text) -> tuple[int, int]:
    """The first 16 bytes of a text, with zeros behind its end."""
    at, size = text.at, text.size
    if at + HEAD_BYTES <= text.readable:
        low, high = word_at(at), word_at(at + _WORD_BYTES)
        return _up_to(low, size), _up_to(high, size - _WORD_BYTES)
    return _heads_by_bytes(at, size)


@inlined
def take_text(text: Text, strings: int, k: int) -> None:
    """Sets a text to an element of a tensor of strings."""
    at, size = string_of(strings, k)
    may_read = size
    if is_read_by_words(as_words(strings + STRING_BYTES * k)):
        may_read = max(size, int64(HEAD_BYTES))
    text.at = at
    text.size = size
    text.readable = at + may_read


@inlined
def text_hash(low: int, high: int, at: int, size: int) -> int:
    """The hash of a text, of its first bytes and all of a longer one."""
    if size <= HEAD_BYTES:
        return folded_product(low ^ int64(_SALT), high ^ int64(_FACTOR) ^ (size << 57))
    return signed(fingerprint(at, size))


@jit
def _is_rest_same(index: Words, vocabulary: Vocabulary, place: int, at: int, size: int) -> bool:
    """Whether a long text is the one at a place behind the first word."""
    if place < 0 or place > vocabulary.byte_count - size:  # of words that are no index
        return False
    other = index + 8 * vocabulary.bytes + place
    for k in range(_WORD_BYTES, size - _WORD_BYTES, _WORD_BYTES):
        if word_at(at + k) != word_at(other + k):
            return False
    last = size - _WORD_BYTES
    return word_at(at + last) == word_at(other + last)


@inlined
def is_same(
    index: Words, vocabulary: Vocabulary, record: Words, low: int, high: int, at: int, size: int
) -> bool:
    """Whether a record is that of a text with these first bytes."""
    if (record[1] ^ size) | (record[2] ^ low) != 0:
        return False
    if size <= HEAD_BYTES:
        return record[3] == high
    return _is_rest_same(index, vocabulary, record[3], at, size)


@jit
def find_text(index: Words, vocabulary: Vocabulary, low: int, high: int, at: int, size: int) -> int:
    """The slot of a text with these first bytes, or else the empty one where it would be."""
    slots, mask = index + 8 * vocabulary.slots, vocabulary.slot_mask
    slot = text_hash(low, high, at, size) & mask
    for _ in range(mask + 1):
        record = as_words(slots + 8 * RECORD * slot)
        if record[1] == EMPTY or is_same(index, vocabulary, record, low, high, at, size):
            return slot
        slot = (slot + 1) & mask
    return slot


@jit
def find_number(index: Words, vocabulary: Vocabulary, number: int) -> int:
    """The slot of an integer, or else the empty one where it would be."""
    slots, mask = as_words(index + 8 * vocabulary.slots), vocabulary.slot_mask
    slot = spread(number) & mask
    for _ in range(mask + 1):
        key = slots[PAIR * slot]
        if key == number or key == vocabulary.empty:
            return slot
        slot = (slot + 1) & mask
    return slot


@jit
def is_whole(index: Index, words: int, number: int, column: IdsColumn) -> bool:
    """Whether a tensor of so many words is an index with a vocabulary for a column.

    Whatever else is in it, nothing outside of it is read then.
    """
    if words < Index.SIZE or index.magic != int64(MAGIC) or index.words != words:
        return False
    if not 0 <= number < index.count <= (words - Index.SIZE) // Vocabulary.SIZE:
        return False
    one = index.vocabularies[number]
    if (one.is_of_texts != 0) != (column.source == TEXTS):
        return False
    width = RECORD if column.source == TEXTS else PAIR
    mask = one.slot_mask
    fits = 0 <= mask < words and mask & (mask + 1) == 0 and 0 <= one.slots <= words
    fits = fits and width * (mask + 1) <= words - one.slots
    fits = fits and 0 <= one.bytes <= words and 0 <= one.byte_count <= 8 * words
    return fits and one.byte_count <= 8 * (words - one.bytes)


@jit
def find_texts(
    index: Words, vocabulary: Vocabulary, texts: Text, count: int, memory: Words, found: Words
) -> None:
    """Looks up to `BLOCK` texts up.

    Args:
      texts, count: the texts.
      memory: `FIND_WORDS` words.
      found: becomes what each has.
    """
    slots, mask, default = index + 8 * vocabulary.slots, vocabulary.slot_mask, vocabulary.default
    lows, highs = memory, as_words(memory + 8 * BLOCK)
    places = as_words(memory + 16 * BLOCK)
    for k in range(count):
        text = texts[k]
        low, high = heads(text)
        lows[k] = low
        highs[k] = high
        place = slots + 8 * RECORD * (text_hash(low, high, text.at, text.size) & mask)
        places[k] = place
        prefetch_line(place)
    for k in range(count):
        record, size, value = as_words(places[k]), texts[k].size, default
        is_found = ((record[1] ^ size) | (record[2] ^ lows[k]) | (record[3] ^ highs[k])) == 0
        if is_found and size <= HEAD_BYTES:
            value = record[0]
        elif record[1] != EMPTY:
            slot = find_text(index, vocabulary, lows[k], highs[k], texts[k].at, size)
            record = as_words(slots + 8 * RECORD * slot)
            value = record[0] if record[1] == size else default
        found[k] = value


@inlined
def number_at(column: IdsColumn, call: IdsCall, k: int) -> int:
    """A value of a column of integers."""
    if column.source == INT32:
        return int64(load_as(call.values, k, np.int32))
    return load(call.values, k)


@jit
def find_numbers(
    index: Words, vocabulary: Vocabulary, numbers: Words, count: int, found: Words
) -> None:
    """Looks up to `BLOCK` integers up.

    Args:
      numbers, count: the integers.
      found: becomes what each has.
    """
    slots, mask = index + 8 * vocabulary.slots, vocabulary.slot_mask
    empty, default = vocabulary.empty, vocabulary.default
    for k in range(count):
        place = slots + 8 * PAIR * (spread(numbers[k]) & mask)
        found[k] = place
        prefetch_line(place)
    for k in range(count):
        pair, number, value = as_words(found[k]), numbers[k], default
        if pair[0] != number and pair[0] != empty:
            pair = as_words(slots + 8 * PAIR * find_number(index, vocabulary, number))
        if pair[0] == number and number != empty:
            value = pair[1]
        found[k] = value
