"""The wire format of protocol buffers, as far as damage to it needs: where the fields lie."""

from __future__ import annotations

from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """A field with a length: `content[start:end]` is all of it, `content[body:end]` its value."""

    number: int
    start: int
    length: int
    body: int
    end: int


def varint(value: int) -> bytes:
    """Returns the bytes of an unsigned number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number: int, body: bytes) -> bytes:
    """Returns a field that holds `body`."""
    return varint(number << 3 | LENGTH) + varint(len(body)) + body


def fields(content: bytes, start: int = 0, end: int | None = None) -> list[Field] | None:
    """Returns the fields with a length in `content[start:end]`; None if it is no message."""
    stop = len(content) if end is None else end
    found, position = [], start
    while position < stop:
        begin = position
        tag, position = _number(content, position, stop)
        number, kind = tag >> 3, tag & 7
        if number == 0 or position > stop:
            return None
        length_at = position
        if kind == LENGTH:
            size, body = _number(content, position, stop)
            position = body + size
            found.append(Field(number, begin, length_at, body, position))
        elif kind == VARINT:
            _, position = _number(content, position, stop)
        elif kind in (FIXED64, FIXED32):
            position += 8 if kind == FIXED64 else 4
        else:
            return None
    return found if position == stop else None


def _number(content: bytes, position: int, stop: int) -> tuple[int, int]:
    """Returns the number at `position` and what is behind it: behind `stop` if there is none."""
    value = shift = 0
    while position < stop and shift < 64:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, stop + 1
