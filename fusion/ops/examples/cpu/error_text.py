"""What messages of TensorFlow's parsers are made of."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import Feature
from fusion.ops.examples.cpu_kernels.wire import FLOATS, INTS
from fusion.runtime.native.jit import jit
from fusion.runtime.native.strings import string_of
from fusion.runtime.native.text import (
    Message,
    append_byte,
    append_literal,
    append_number,
    byte,
    literal,
)


@jit
def append_bytes(message: Message, start: int, size: int) -> None:
    """Appends all bytes of a text."""
    for at in range(start, start + size):
        append_byte(message, byte(at))


@jit
def append_escaped(message: Message, start: int, size: int) -> None:
    """Appends any bytes as text: a message ends with a zero, and Python takes it as UTF-8."""
    for at in range(start, start + size):
        item = byte(at)
        if 0 < item < 0x80:
            append_byte(message, item)
        else:
            append_literal(message, literal("\\x"))
            _append_digit(message, item >> 4)
            _append_digit(message, item & 15)


@jit
def _append_digit(message: Message, number: int) -> None:
    """Appends a hexadecimal digit."""
    append_byte(message, number + (ord("0") if number < 10 else ord("a") - 10))


@jit
def append_dtype(message: Message, tag: int) -> None:
    """Appends TensorFlow's name of the dtype of a list."""
    if tag == INTS:
        append_literal(message, literal("int64"))
    elif tag == FLOATS:
        append_literal(message, literal("float"))
    else:
        append_literal(message, literal("string"))


@jit
def append_shape(message: Message, feature: Feature, first: int) -> None:
    """Appends the shape of a feature, from a dimension on."""
    append_byte(message, ord("["))
    for axis in range(first, feature.rank):
        if axis > first:
            append_byte(message, ord(","))
        if feature.dims[axis] < 0:
            append_byte(message, ord("?"))
        else:
            append_number(message, feature.dims[axis])
    append_byte(message, ord("]"))


@jit
def append_example(message: Message, names: int, number: int) -> None:
    """Appends what an Example is called.

    Args:
      names: the address of the names of Examples, elements of a tensor; 0 if they have none.
      number: of the Example, from 0 on.
    """
    if names == 0:
        append_literal(message, literal("<unknown>"))
    else:
        start, size = string_of(names, number)
        append_bytes(message, start, size)
