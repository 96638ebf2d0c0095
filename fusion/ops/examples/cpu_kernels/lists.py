"""Fields and lists of any bytes, as TensorFlow's parsers read them."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    FLOAT_ELEMENT,
    LOW_HALF,
    UNPACKED_FLOAT,
    VARINT_ELEMENT,
    any_varint,
    part_end,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.text import byte

#: Wire types.
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


@jit
def skipped(at: int, end: int) -> int:
    """The position behind a field that an Example does not have; 0 if it is malformed."""
    tag, at = any_varint(at, end)
    if at == 0:
        return at
    kind = tag & 7
    if kind == _VARINT:
        _, at = any_varint(at, end)
        return at
    if kind == _SIZED:
        size, at = any_varint(at, end)
        size &= int64(LOW_HALF)
        # One that is negative as an int is passed over.
        return at if at == 0 or size >= int64(1 << 31) else min(at + size, end)
    if kind in (_FIXED64, _FIXED32):
        size = int64(8 if kind == _FIXED64 else 4)
        return at + size if at + size <= end else int64(0)
    return int64(0)


@jit
def int_list(at: int, end: int) -> tuple[int, int, bool, int]:
    """A list of integers, from behind its length to its end.

    Returns:
      Where values begin, how many there are (-1: malformed), whether they are packed, and the
      position behind what was read: what follows a packed run is not.
    """
    count = int64(0)
    if at == end:
        return at, count, True, at
    is_packed = byte(at) == FIRST
    if is_packed:
        size, at = any_varint(at + 1, end)
        if at == 0:
            return at, int64(-1), True, at
        end = part_end(at, size, end)
    elif byte(at) != VARINT_ELEMENT:
        return at, int64(-1), False, at
    start = at
    while at < end:
        if not is_packed:
            if byte(at) != VARINT_ELEMENT:
                return at, int64(-1), False, at
            at += 1
        _, at = any_varint(at, end)
        if at == 0:
            return at, int64(-1), is_packed, at
        count += 1
    return start, count, is_packed, end


@jit
def unpacked_floats(at: int, end: int) -> int:
    """How many floats a list has that is not packed; -1: it is malformed."""
    count = (end - at) // UNPACKED_FLOAT
    for k in range(count):
        if byte(at + UNPACKED_FLOAT * k) != FLOAT_ELEMENT:
            return int64(-1)
    return count if at + UNPACKED_FLOAT * count == end else int64(-1)
