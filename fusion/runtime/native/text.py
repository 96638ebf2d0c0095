"""Text in compiled code: literals, and messages that are composed of them.

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
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as

_i64 = types.int64

#: The maximum number of bytes of a foreign text in a message; dots follow if it is longer.
SHOWN_BYTES = 200


class Message(Layout):
    """A C string that is composed in a buffer, and cut off at the end of it."""

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
def begin(message: Message, start: int, size: int) -> None:
    """Makes an empty `Message` in a buffer of `size` bytes."""
    message.start = start
    message.size = size
    message.length = 0
    store_as(start, 0, np.uint8(0), np.uint8)


@jit
def append_byte(message: Message, value: int) -> None:
    """Appends a byte to a message, unless its buffer is full."""
    length = message.length
    if length + 1 < message.size:
        at = message.start + length
        store_as(at, 0, np.uint8(value), np.uint8)
        store_as(at, 1, np.uint8(0), np.uint8)
        message.length = length + 1


@jit
def append_literal(message: Message, text: int) -> None:
    """Appends a C string, see `literal`."""
    while byte(text) != 0:
        append_byte(message, byte(text))
        text += 1


@jit
def append_text(message: Message, start: int, length: int) -> None:
    """Appends a text of printable bytes as it is."""
    for at in range(start, start + min(length, SHOWN_BYTES)):
        append_byte(message, byte(at))
    if length > SHOWN_BYTES:
        append_literal(message, literal("..."))


@jit
def append_number(message: Message, number: int) -> None:
    """Appends a number that is not negative."""
    power = int64(1)
    while number // power >= 10:
        power *= 10
    while power > 0:
        append_byte(message, 48 + number // power % 10)
        power //= 10
