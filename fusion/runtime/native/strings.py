"""Strings in tensors, as TensorFlow has them (tsl/platform/ctstring_internal.h), in compiled code.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcpy
from fusion.runtime.native.pointers import as_words
from fusion.runtime.native.unaligned import put_byte, put_word, shifted_right, word_at

#: The bytes of an element of a tensor of strings.
STRING_BYTES = 24

#: So many bytes of a string are in the element itself.
_MAX_SMALL = 22

#: The kinds of a TF_TString (tensorflow's tsl/platform/ctstring_internal.h), in the lowest two bits
#: of its first byte, which the bits of a size follow.
_SMALL, _LARGE, _OFFSET, _VIEW = range(4)


@jit
def string_at(data: Words) -> tuple[int, int]:
    """The address and the number of the bytes of a string, an element of a tensor."""
    string_type = data[0] & 3
    if string_type == _SMALL:
        return data + 1, (data[0] & 0xFF) >> 2
    size = (data[0] & 0xFFFFFFFF) >> 2 if string_type == _OFFSET else data[0] >> 2
    if string_type == _OFFSET:
        return data + (data[0] >> 32), size
    return data[2] if string_type == _LARGE else data[1], size


@jit
def is_read_by_words(data: Words) -> bool:
    """Whether 16 bytes may be read where those of a string begin, however short it is."""
    return data[0] & 3 == _SMALL or data[0] & 3 == _LARGE


@jit
def string_of(strings: int, index: int) -> tuple[int, int]:
    """The address of the bytes of an element of a tensor at an address, and how many."""
    return string_at(as_words(strings + STRING_BYTES * index))


@jit
def put_string(out: int, at: int, size: int, readable: int) -> bool:
    """Sets an element that is empty; whether there is memory for it.

    Args:
      readable: up to where bytes may be read.
    """
    if size <= _MAX_SMALL:
        if at + 24 <= readable:
            low, middle, high = word_at(at), word_at(at + 8), word_at(at + 16)
            put_word(out, (low << 8) | (size << 2))
            put_word(out + 8, (middle << 8) | shifted_right(low, int64(56)))
            put_word(out + 16, (high << 8) | shifted_right(middle, int64(56)))
        else:
            put_byte(out, size << 2)
            c_memcpy(out + 1, at, size)
        put_byte(out + 1 + size, int64(0))
        return True
    memory = c_malloc(size + 1)
    if memory == 0:
        return False
    c_memcpy(memory, at, size)
    put_byte(memory + size, int64(0))
    words = as_words(out)
    words[0] = (size << 2) | _LARGE
    words[1] = size  # of the memory, without the zero at its end
    words[2] = memory
    return True


@jit
def clear_string(out: int) -> None:
    """Makes an element empty."""
    words = as_words(out)
    if words[0] & 3 == _LARGE:
        c_free(words[2])
    words[0] = 0


@jit
def copy_string(out: int, source: int) -> bool:
    """Sets an element that is empty to that of another tensor; whether there is memory for it."""
    start, size = string_at(as_words(source))
    return put_string(out, start, size, start + size)
