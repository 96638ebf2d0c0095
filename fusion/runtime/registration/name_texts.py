r"""The names of columns in a kernel's state, for its messages, written in native code.

For each column a word says where in the state its text is, in bytes; then the texts follow, C
strings: "" or " (name)", to follow a column's number. A model may be untrusted:
bytes that are no UTF-8, control and format characters, separators and characters for private use
are escaped as in Python's literals, e.g. "\n", "\x1b" or "\u202e", and long names shortened.
"""

from __future__ import annotations

import numpy as np

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcpy, store_as
from fusion.runtime.native.pointers import as_record, stack_words
from fusion.runtime.native.text import byte
from fusion.runtime.registration.creation import Creation
from fusion.runtime.tensorflow.attrs import Text

#: The maximum length of a name in a message; more would push out the rest of the message.
_MAX_NAME_BYTES = 240

#: The maximum number of bytes that a byte is escaped as.
_MAX_ESCAPED = 10

#: The bytes around a name, its end included, and between the halves of a long one.
_AROUND, _DOTS = 4, 3


@jit
def name_bytes(creation: Creation, attr: int) -> int:
    """The maximum number of bytes that the names of an attr take; 0 if there are none."""
    count = _name_count(creation, attr)
    size = 8 * count
    for k in range(count):
        length = as_record(Text, _name(creation, attr, k)).length
        size += min(_MAX_ESCAPED * length, int64(_MAX_NAME_BYTES + _DOTS)) + _AROUND
    return (size + 7) // 8 * 8


@jit
def write_names(creation: Creation, attr: int, state: Words, start: int) -> None:
    """Writes the names of an attr into a state of zeros, from word `start` on."""
    count = _name_count(creation, attr)
    offset = 8 * (start + count)
    for k in range(count):
        state[start + k] = offset
        offset += _write(as_record(Text, _name(creation, attr, k)), state + offset)


@jit
def _name_count(creation: Creation, attr: int) -> int:
    """The number of names; 0 if there is only one and it is empty."""
    values = creation.values[attr]
    entries = creation.record.attrs
    count = values.count
    is_list = entries[attr].is_list != 0
    if not is_list and as_record(Text, _name(creation, attr, int64(0))).length == 0:
        return int64(0)
    return count


@jit
def _name(creation: Creation, attr: int, index: int) -> int:
    """The address of the `Text` of a name."""
    values = creation.values[attr]
    return values.value + 8 * Text.SIZE * index


@jit
def _write(name: Text, out: int) -> int:
    """Writes a name as messages have it; returns its bytes, the end included."""
    address, length = name.address, name.length
    scratch = c_malloc(_MAX_ESCAPED * length + 1)
    if length == 0 or scratch == 0:
        c_free(scratch)
        return int64(1)
    size = _escape(address, length, scratch)
    _put(scratch, size, 0)
    _put(out, int64(0), 32)
    _put(out, int64(1), 40)
    end = int64(2)
    if size <= _MAX_NAME_BYTES:
        c_memcpy(out + end, scratch, size)
        end += size
    else:
        # Names differ at their ends, if not at their beginnings.
        half = int64(_MAX_NAME_BYTES // 2)
        head, tail = half, size - half
        while _is_continued(scratch, head):
            head -= 1
        while _is_continued(scratch, tail):
            tail += 1
        c_memcpy(out + end, scratch, head)
        end += head
        for _ in range(_DOTS):
            _put(out, end, 46)
            end += 1
        c_memcpy(out + end, scratch + tail, size - tail)
        end += size - tail
    _put(out, end, 41)
    c_free(scratch)
    return end + 2


@jit
def _put(out: int, index: int, byte: int) -> None:
    store_as(out, index, np.uint8(byte), np.uint8)


@jit
def _is_continued(address: int, index: int) -> bool:
    """Whether a byte continues a letter."""
    return byte(address + index) & 0xC0 == 0x80


@jit
def _escape(address: int, length: int, out: int) -> int:
    """Writes a text with unprintable characters escaped; returns the bytes."""
    index, end, size = int64(0), int64(0), stack_words(1)
    while index < length:
        letter = _decode(address, index, length, size)
        step = size[0]
        if letter < 0:
            end = _put_escape(out, end, 120, byte(address + index), int64(2))
        elif _is_printed(letter):
            c_memcpy(out + end, address + index, step)
            end += step
        elif _mnemonic(letter) != 0:
            _put(out, end, 92)
            _put(out, end + 1, _mnemonic(letter))
            end += 2
        elif letter < 0x100:
            end = _put_escape(out, end, 120, letter, int64(2))
        elif letter < 0x10000:
            end = _put_escape(out, end, 117, letter, int64(4))
        else:
            end = _put_escape(out, end, 85, letter, int64(8))
        index += step
    return end


@jit
def _mnemonic(letter: int) -> int:
    """The letter that follows the backslash in the escape of a control character, 0 for none."""
    if letter == 9:
        return int64(116)
    if letter == 10:
        return int64(110)
    return int64(114) if letter == 13 else int64(0)


@jit
def _put_escape(out: int, end: int, letter: int, number: int, digits: int) -> int:
    """Writes a backslash, a letter and a hexadecimal number; returns the new end."""
    _put(out, end, 92)
    _put(out, end + 1, letter)
    for k in range(digits):
        digit = number >> 4 * (digits - 1 - k) & 15
        _put(out, end + 2 + k, digit + (48 if digit < 10 else 87))
    return end + 2 + digits


@jit
def _decode(address: int, index: int, length: int, size: Words) -> int:
    """The letter at an index of UTF-8, or -1 if there is none; sets the word to its bytes.

    The format is that of RFC 3629.
    """
    first = byte(address + index)
    size[0] = 1
    if first < 0x80:
        return first
    more = int64(1) if first < 0xE0 else (int64(2) if first < 0xF0 else int64(3))
    if first < 0xC2 or first > 0xF4 or index + more >= length:
        return int64(-1)
    letter = first & (0x3F >> more)
    for k in range(more):
        if not _is_continued(address, index + 1 + k):
            return int64(-1)
        letter = letter << 6 | byte(address + index + 1 + k) & 0x3F
    min_letter = int64(0x80) if more == 1 else (int64(0x800) if more == 2 else int64(0x10000))
    if letter < min_letter or letter > 0x10FFFF or 0xD800 <= letter < 0xE000:
        return int64(-1)
    size[0] = more + 1
    return letter


@jit
def _is_printed(letter: int) -> bool:
    """Whether a letter is neither a control or format character nor a separator but the space.

    Of Unicode's characters those are taken that do anything to a terminal or a line.
    """
    if letter < 0x20 or 0x7F <= letter <= 0xA0 or letter in (0xAD, 0x61C, 0x1680, 0x180E):
        return False
    if 0x2000 <= letter <= 0x200F or 0x2028 <= letter <= 0x202F or 0x205F <= letter <= 0x206F:
        return False
    is_private = 0xE000 <= letter < 0xF900 or letter >= 0xE0000
    return not is_private and letter not in (0x3000, 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB, 0xFFFE, 0xFFFF)
