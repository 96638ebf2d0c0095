"""Features in SequenceExamples: of the context, and the rows of feature lists.

TensorFlow's parser of SequenceExamples is another one than that of Examples. It knows the dtype
that a list is to have, and goes on reading a FeatureList where the list of a row ends: what follows
the list in its Feature is read as the next row. It counts values before it reads them, and counts a
string that is cut off by the end of its list, which it then cannot read.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.lists import int_list, unpacked_floats
from fusion.ops.examples.cpu_kernels.scan import (
    HEAD_BYTES,
    count_values,
    find_values,
    is_short_run,
)
from fusion.ops.examples.cpu_kernels.values import write_values
from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    FLOAT_ELEMENT,
    FLOATS,
    INTS,
    LOW_HALF,
    STRINGS,
    any_varint,
    ends,
    joined,
    low_bytes,
    part_end,
)
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import ones, put_word, word_at

#: What is wrong, in place of how many values there are: the list is none of the dtype; there is no
#: row where one should begin.
OTHER_LIST, BROKEN_ROW = -1, -2

#: How values lie: one behind the other, or strings; with tags in between; and strings of which one
#: is cut off.
PACKED, UNPACKED, CUT = range(3)

Values = tuple[int, int, int, int]
"""Where values lie, how many there are or what is wrong, how they lie, and what comes behind."""


@jit
def _floats(at: int, end: int) -> Values:
    """A list of floats, from behind its length to its end."""
    wrong = int64(OTHER_LIST)
    if byte(at) != FIRST:
        is_float = byte(at) == FLOAT_ELEMENT
        return at, (unpacked_floats(at, end) if is_float else wrong), int64(UNPACKED), end
    size, at = any_varint(at + 1, end)
    if at == 0:
        return at, wrong, int64(PACKED), at
    end = part_end(at, size, end)
    return at, (wrong if (end - at) & 3 != 0 else (end - at) >> 2), int64(PACKED), end


@jit
def _strings(at: int, end: int) -> Values:
    """A list of strings, from behind its length to its end."""
    start, count, kind = at, int64(0), int64(PACKED)
    while at < end:
        if byte(at) != FIRST:
            return start, int64(OTHER_LIST), kind, at
        size, at = any_varint(at + 1, end)
        if at == 0:
            return start, int64(OTHER_LIST), kind, at
        size &= int64(LOW_HALF)
        if size > end - at:
            kind = int64(CUT)
        # One that is negative as an int is passed over.
        at = at if size >= int64(1 << 31) else min(at + size, end)
        count += 1
    return start, count, kind, end


@jit
def any_feature(dtype: int, at: int, end: int) -> Values:
    """The list that a Feature of any bytes begins with."""
    if at >= end or byte(at) != dtype:
        return at, int64(OTHER_LIST), int64(PACKED), at
    size, at = any_varint(at + 1, end)
    if at == 0:
        return at, int64(OTHER_LIST), int64(PACKED), at
    if size & int64(LOW_HALF) == 0:
        return at, int64(0), int64(PACKED), at
    end = part_end(at, size, end)
    if dtype == STRINGS:
        return _strings(at, end)
    if at == end:
        return at, int64(OTHER_LIST), int64(PACKED), at
    if dtype == FLOATS:
        return _floats(at, end)
    at, count, is_packed, behind = int_list(at, end)
    return at, count, int64(PACKED if is_packed else UNPACKED), behind


@jit
def feature_at(dtype: int, at: int, end: int, readable: int) -> Values:
    """As `any_feature`; bytes up to `readable` may be read, beyond `end` too.

    Integers of too many bytes may be among packed ones: they are found when they are written, or by
    `any_feature`, which is what looks at the list where `readable` is 0.
    """
    if at < end and readable != 0:
        start, size = find_values(at, end, dtype)
        if start != 0:
            count = count_values(dtype, start, start + size, readable)
            if count >= 0:
                return start, count, int64(PACKED), end
    return any_feature(dtype, at, end)


@jit
def any_row(dtype: int, at: int, end: int, readable: int) -> Values:
    """The row of a feature list that begins at a position; `readable` see `feature_at`."""
    wrong = int64(BROKEN_ROW)
    if byte(at) != FIRST:
        return at, wrong, int64(PACKED), at
    size, at = any_varint(at + 1, end)
    if at == 0:
        return at, wrong, int64(PACKED), at
    size &= int64(LOW_HALF)
    if size > 2:
        return feature_at(dtype, at, part_end(at, size, end), readable)
    if size == 0:
        return at, int64(0), int64(PACKED), at
    if size == 1:
        return at, wrong, int64(PACKED), at
    # An empty list; its length may have any number of bytes.
    if at >= end or byte(at) != dtype:
        return at, int64(OTHER_LIST), int64(PACKED), at
    size, at = any_varint(at + 1, end)
    is_empty = at != 0 and size & int64(LOW_HALF) == 0
    return at, int64(0 if is_empty else OTHER_LIST), int64(PACKED), at


@inlined
def _short_count(dtype: int, start: int, end: int, readable: int) -> int:
    """How many values a list of less than 128 bytes has; -1 if it is unusual."""
    size = end - start
    if dtype == INTS and size <= 8 and start + 8 <= readable:
        last = ends(word_at(start)) & low_bytes(size)
        return ones(last) if last & int64(0x80) << (8 * size - 8) != 0 else int64(-1)
    return count_values(dtype, start, end, readable)


@inlined
def short_feature(tag: int, dtype: int, at: int, size: int, readable: int) -> tuple[int, int]:
    """Where the values lie of a Feature with the short head, see `is_short_run`; 0 if it has none.

    Returns:
      Where they lie, and how many there are; -1 if they are unusual.
    """
    if not is_short_run(tag, dtype, at, size, readable):
        return int64(0), int64(-1)
    # Of strings the only one is with its tag and length.
    start = at + (HEAD_BYTES if dtype != STRINGS else HEAD_BYTES - 2)
    return start, _short_count(dtype, start, at + 2 + size, readable)


@inlined
def row_at(dtype: int, at: int, end: int, readable: int) -> Values:
    """The row of a feature list that begins at a position in front of its end."""
    if at + 8 <= readable:
        size = byte(at + 1)
        behind = at + 2 + size
        if behind <= end:
            start, count = short_feature(int64(FIRST), dtype, at, size, readable)
            if count >= 0:
                return start, count, int64(PACKED), behind
    return any_row(dtype, at, end, readable)


@inlined
def write_list(
    dtype: int, at: int, count: int, kind: int, behind: int, out: int, readable: int
) -> bool:
    """Writes so many values, see `Values` and `write_values`."""
    is_packed, size = kind == PACKED, behind - at
    if count == 1 and dtype == INTS and is_packed and size <= 8 and at + 8 <= readable:
        put_word(out, joined(word_at(at), size))
        return True
    return write_values(dtype, at, count, is_packed, out, readable)
