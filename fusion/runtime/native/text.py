"""Text in compiled code: literals, and messages that are put together from them.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion.runtime.layout import Address, Int64, Layout
from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store, store_as

_i64 = types.int64

#: Of a text from elsewhere so many bytes at most are in a message; dots follow where it is longer.
SHOWN_BYTES = 200

#: Of the memory for a number in decimal.
_NUMBER_WORDS = 3

_TAB, _LINE_FEED, _RETURN, _SPACE, _END_OF_ASCII = 9, 10, 13, 32, 127
_DOUBLE_QUOTE, _QUOTE, _BACKSLASH = map(ord, "\"'\\")
_N, _R, _T, _X = map(ord, "nrtx")


class Message(Layout):
    """A C string that is put together in memory, and cut off where that ends."""

    start: Address
    size: Int64  # bytes of the memory, with the 0 at the end; at least 1
    length: Int64


@intrinsic(prefer_literal=True)
def literal(typingctx: Any, text: Any) -> Any:
    """The address of a literal as a C string."""
    if not isinstance(text, types.StringLiteral):
        return None
    content = bytearray(text.literal_value.encode() + b"\0")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        constant = cgutils.create_constant_array(ir.IntType(8), content)
        variable = cgutils.global_constant(builder.module, "literal", constant)
        return builder.ptrtoint(variable, ir.IntType(64))

    return _i64(text), codegen


@jit
def byte(address: int) -> int:
    """The byte at an address."""
    return int64(load_as(address, 0, np.uint8))


@jit
def begin(message: int, start: int, size: int) -> None:
    """Makes an empty `Message` in memory of so many bytes."""
    store(message, Message.start, start)
    store(message, Message.size, size)
    store(message, Message.length, 0)
    store_as(start, 0, np.uint8(0), np.uint8)


@jit
def count_bytes(start: int, end: int, value: int) -> int:
    """How many bytes of a text have a value."""
    count = 0
    for at in range(start, end):
        count += int64(byte(at) == value)
    return count


@jit
def append_byte(message: int, value: int) -> None:
    """Appends a byte to a message; where its memory ends nothing happens."""
    length = load(message, Message.length)
    if length + 1 < load(message, Message.size):
        at = load(message, Message.start) + length
        store_as(at, 0, np.uint8(value), np.uint8)
        store_as(at, 1, np.uint8(0), np.uint8)
        store(message, Message.length, length + 1)


@jit
def append_literal(message: int, text: int) -> None:
    """Appends a C string, see `literal`."""
    while byte(text) != 0:
        append_byte(message, byte(text))
        text += 1


@jit
def append_number(message: int, number: int) -> None:
    """Appends a number in decimal."""
    digits = stack_words(_NUMBER_WORDS)
    _write_decimal(number, digits)
    append_literal(message, digits)


@instruction(types.void(_i64, _i64))
def _write_decimal(builder: Any, number: Any, address: Any) -> None:
    """Writes a number as a C string."""
    buffer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    size = ir.Constant(ir.IntType(64), 8 * _NUMBER_WORDS)
    cgutils.snprintf(builder, buffer, size, "%lld", number)


@jit
def append_text(message: int, start: int, length: int) -> None:
    """Appends a text of printable bytes as it is."""
    for at in range(start, start + min(length, SHOWN_BYTES)):
        append_byte(message, byte(at))
    if length > SHOWN_BYTES:
        append_literal(message, literal("..."))


@jit
def append_quoted(message: int, start: int, length: int) -> None:
    """Appends a text of any bytes in quotes, as `repr` has bytes after the b."""
    end, quote = start + min(length, SHOWN_BYTES), _QUOTE
    if count_bytes(start, end, _QUOTE) > 0 and count_bytes(start, end, _DOUBLE_QUOTE) == 0:
        quote = _DOUBLE_QUOTE
    append_byte(message, quote)
    for at in range(start, end):
        value = byte(at)
        is_quote = value == quote
        if is_quote or value == _BACKSLASH:
            append_byte(message, _BACKSLASH)
        if _SPACE <= value < _END_OF_ASCII:
            append_byte(message, value)
        else:
            _append_escape(message, value)
    append_byte(message, quote)
    if length > SHOWN_BYTES:
        append_literal(message, literal("..."))


@jit
def _append_escape(message: int, value: int) -> None:
    append_byte(message, _BACKSLASH)
    if value == _TAB:
        append_byte(message, _T)
    elif value == _LINE_FEED:
        append_byte(message, _N)
    elif value == _RETURN:
        append_byte(message, _R)
    else:
        digits = literal("0123456789abcdef")
        append_byte(message, _X)
        append_byte(message, byte(digits + (value >> 4)))
        append_byte(message, byte(digits + (value & 15)))


#: The kinds of a TF_TString (tensorflow's tsl/platform/ctstring_internal.h), in the lowest two bits
#: of its first byte, and the bits of a size behind them.
_SMALL, _LARGE, _OFFSET, _VIEW = range(4)


@jit
def string_at(data: int) -> tuple[int, int]:
    """The address of the bytes of a string, the element of a tensor at an address, and how many."""
    kind = load(data, 0) & 3
    if kind == _SMALL:
        return data + 1, (load(data, 0) & 0xFF) >> 2
    size = (load(data, 0) & 0xFFFFFFFF) >> 2 if kind == _OFFSET else load(data, 0) >> 2
    if kind == _OFFSET:
        return data + (load(data, 0) >> 32), size
    return load(data, 2) if kind == _LARGE else load(data, 1), size
