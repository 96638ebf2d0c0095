"""The wire format of protocol buffers: bytes, words and varints at addresses of any alignment.

Positions are addresses; 0 for one means that there are not the bytes that there should be.
"""

from __future__ import annotations

import numpy as np

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import low_zeros, ones, shifted_right, word_at

#: The tag of a field with a length: of number 1, and of the value of an entry of a map.
FIRST, SECOND = 0x0A, 0x12
#: The tags of an element of a list that is not packed.
VARINT_ELEMENT, FLOAT_ELEMENT = 0x08, 0x0D
#: The bytes of such a float, with its tag.
UNPACKED_FLOAT = 5
#: The tags of the lists of a Feature, by which dtypes are called here.
STRINGS, FLOATS, INTS = 0x0A, 0x12, 0x1A

#: Lengths and tags are the lower 32 bits of a varint.
LOW_HALF = 0xFFFFFFFF

#: A varint has at most so many bytes.
_MAX_VARINT = 10

#: The top bit of each byte: another byte of the varint follows.
_FOLLOWED = int(np.uint64(0x8080808080808080).astype(np.int64))
_ALL = -1


@jit
def low_bytes(count: int) -> int:
    """A word whose lowest 1 to 8 bytes are ones."""
    return shifted_right(int64(_ALL), 64 - 8 * count)


@jit
def joined(word: int, count: int) -> int:
    """The value of a varint that is the lowest 1 to 8 bytes of a word."""
    word &= low_bytes(count) & int64(0x7F7F7F7F7F7F7F7F)
    word = (word & int64(0x007F007F007F007F)) | ((word & int64(0x7F007F007F007F00)) >> 1)
    word = (word & int64(0x00003FFF00003FFF)) | ((word & int64(0x3FFF00003FFF0000)) >> 2)
    return (word & int64(0x000000000FFFFFFF)) | ((word & int64(0x0FFFFFFF00000000)) >> 4)


@jit
def ends(word: int) -> int:
    """A word with the top bit of each byte that ends a varint."""
    return ~word & int64(_FOLLOWED)


@jit
def any_varint(at: int, end: int) -> tuple[int, int]:
    """The varint at a position, of up to 10 bytes, and the position behind it."""
    value, shift = int64(0), int64(0)
    while at < end and shift < 7 * _MAX_VARINT:
        item = byte(at)
        at += 1
        if shift < 64:
            value |= (item & 0x7F) << shift
        shift += 7
        if item < 0x80:
            return value, at
    return value, int64(0)


@jit
def varint(at: int, end: int, readable: int) -> tuple[int, int]:
    """As `any_varint`; bytes up to `readable` may be read, beyond `end` too."""
    if at + 8 <= readable:
        word = word_at(at)
        last = ends(word)
        if last != 0:
            count = (low_zeros(last) >> 3) + 1
            return joined(word, count), (at + count if at + count <= end else int64(0))
    return any_varint(at, end)


@jit
def short_length(at: int, end: int) -> tuple[int, int]:
    """A length of less than 2**31, and the position behind it; 0 if there is none."""
    if at + 1 < end:
        first = byte(at)
        if first < 0x80:
            return first, at + 1
        second = byte(at + 1)
        if second < 0x80:
            return (first & 0x7F) | (second << 7), at + 2
    value, at = any_varint(at, end)
    return value, (at if 0 <= value < int64(1 << 31) else int64(0))


@jit
def part_end(at: int, size: int, end: int) -> int:
    """Where a part of so many bytes ends that lies in another: never behind that.

    A length is the 32 lower bits of a varint; one that is negative as an int limits nothing.
    """
    size &= int64(LOW_HALF)
    return min(at + size, end) if size < int64(1 << 31) else end


@jit
def packed_varints(at: int, end: int, readable: int) -> int:
    """How many varints end in some bytes."""
    count = int64(0)
    while at + 8 <= end:
        count += ones(ends(word_at(at)))
        at += 8
    if at == end:
        return count
    if at + 8 <= readable:
        return count + ones(ends(word_at(at)) & low_bytes(end - at))
    while at < end:
        if byte(at) < 0x80:
            count += 1
        at += 1
    return count
