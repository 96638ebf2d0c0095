"""Goes over Examples as writers make them, guessing which feature comes next.

A feature comes where it came in the Example before: its name is compared with that of the feature
that came there, and with the one behind that, as one may be missing. Anything that writers do not
do is left to `exact`.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.guesses import find_entry, next_guess
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    HASHED,
    PADDED,
    Reader,
    Slot,
    Target,
)
from fusion.ops.examples.cpu_kernels.values import (
    copy_values,
    is_hashed,
    put_bucket,
    write_buckets,
    write_values,
)
from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    FLOATS,
    INTS,
    SECOND,
    STRINGS,
    ends,
    joined,
    low_bytes,
    packed_varints,
    short_length,
)
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.strings import put_string, string_of
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import half_at, put_half, put_word, word_at

#: The head of a Feature that is one list of one packed run or of one string, all of less
#: than 128 bytes: tags, and between them lengths that follow from the first.
HEAD_BYTES = 6
_HEAD_TAGS = FIRST << 32
_HEAD_LENGTHS = 1 << 8 | 1 << 24 | 1 << 40
_HEAD_LESS = 2 << 24 | 4 << 40
_HEAD = (1 << 48) - 1


@jit
def set_place(reader: Reader, number: int, start: int, count: int, is_packed: bool) -> None:
    """Notes where the values of a feature that is not FIXED lie."""
    place = reader.places[number]
    place.start = start
    place.count = 2 * count + (0 if is_packed else 1)


@jit
def row_of(reader: Reader, target: Target) -> int:
    """The address of the Example's row of a tensor."""
    return target.values + (reader.example - 1) * target.row_bytes


@jit
def _string_count(at: int, end: int) -> int:
    """How many strings a list has; -1 if it is unusual."""
    count = int64(0)
    while at < end:
        if byte(at) != FIRST:
            return int64(-1)
        size, at = short_length(at + 1, end)
        if at == 0 or size > end - at:
            return int64(-1)
        at += size
        count += 1
    return count


@jit
def _find_list(at: int, end: int, dtype: int) -> tuple[int, int]:
    """Where the values of an entry's Feature begin, and how many bytes they have; 0: unusual."""
    if byte(at) != SECOND:
        return int64(0), int64(0)
    size, at = short_length(at + 1, end)
    if at == 0 or at + size != end or size == 0:
        return int64(0), int64(0)
    return find_values(at, end, dtype)


@jit
def find_values(at: int, end: int, dtype: int) -> tuple[int, int]:
    """As `_find_list`, for a Feature, which is not empty."""
    if byte(at) != dtype:
        return int64(0), int64(0)
    size, at = short_length(at + 1, end)
    if at == 0 or at + size != end:
        return int64(0), int64(0)
    if dtype == STRINGS or size == 0:
        return at, size
    if byte(at) != FIRST:
        return int64(0), int64(0)
    size, at = short_length(at + 1, end)
    if at == 0 or at + size != end or size == 0:
        return int64(0), int64(0)
    return at, size


@jit
def count_values(dtype: int, at: int, end: int, readable: int) -> int:
    """How many values a packed list has, or one of strings; -1 if it is unusual."""
    if dtype == STRINGS:
        return _string_count(at, end)
    if dtype == FLOATS:
        return int64(-1) if (end - at) & 3 != 0 else (end - at) >> 2
    if at < end and byte(end - 1) >= 0x80:
        return int64(-1)
    return packed_varints(at, end, readable)


@inlined
def is_short_run(tag: int, dtype: int, at: int, size: int, readable: int) -> bool:
    """Whether a Feature behind a tag, of so many bytes behind its length, has the short head."""
    if not (at + 8 <= readable and 4 < size < 0x80):
        return False
    head = tag + _HEAD_TAGS - _HEAD_LESS + (dtype << 16) + size * _HEAD_LENGTHS
    return word_at(at) & _HEAD == head


@inlined
def _take_one(reader: Reader, slot: Slot, at: int, size: int, readable: int) -> bool:
    """Takes the only value of a short head's list, of so many bytes; False if it is unusual."""
    row = slot.values + (reader.example - 1) * slot.row_bytes
    if slot.dtype == INTS:
        if at + 8 > readable or size > 8:
            return False
        word = word_at(at)
        if ends(word) & low_bytes(size) != int64(0x80) << (8 * size - 8):
            return False
        put_word(row, joined(word, size))
        return True
    if slot.dtype == FLOATS:
        if size == 4:
            put_half(row, half_at(at))
        return size == 4
    if slot.place == HASHED:
        put_bucket(reader.job.targets[slot.number], row, at, size)
        return True
    return put_string(row, at, size, readable)


@inlined
def _take_feature(reader: Reader, slot: Slot, at: int, end: int, readable: int) -> bool:
    """Takes an entry's Feature, which begins with its tag; False if it is unusual."""
    if slot.seen == reader.example:
        return False  # it comes twice
    slot.seen = reader.example
    size = end - at - 2
    is_one = slot.form == FIXED and slot.count == 1
    is_short = is_one and is_short_run(int64(SECOND), slot.dtype, at, size, readable)
    if is_short and _take_one(reader, slot, at + HEAD_BYTES, size - 4, readable):
        return True
    return _take_list(reader, slot, at, end, readable)


@jit
def _take_list(reader: Reader, slot: Slot, at: int, end: int, readable: int) -> bool:
    """As `_take_feature`, for a list of any length."""
    dtype, size = slot.dtype, end - at - 2
    if is_short_run(int64(SECOND), dtype, at, size, readable):
        # Of strings the first is with its tag and length.
        at += HEAD_BYTES if dtype != STRINGS else HEAD_BYTES - 2
    else:
        at, size = _find_list(at, end, dtype)
        if at == 0:
            return False
    count = count_values(dtype, at, end, readable)
    if slot.form == FIXED:
        if count != slot.count or count <= 0:
            return False
        row = slot.values + (reader.example - 1) * slot.row_bytes
        if slot.place == HASHED:
            write_buckets(reader.job.targets[slot.number], at, count, row, readable)
            return True
        return write_values(dtype, at, count, True, row, readable)
    if count < 0 or (slot.form == PADDED and count % slot.count != 0):
        return False
    set_place(reader, slot.place, at, count, True)
    return True


@jit
def _scan_entries(reader: Reader, at: int, end: int, readable: int) -> int:
    """Takes the entries of Features; how many were asked for, or -1 if one is unusual."""
    guess, taken = reader.guesses, int64(0)
    while at < end:
        at, size, entry_end = find_entry(at, end, readable)
        if at == 0:
            return int64(-1)
        guess = next_guess(reader, guess, at, size, readable)
        at += size
        if guess.slot != 0:
            if not _take_feature(reader, guess.slot, at, entry_end, readable):
                return int64(-1)
            taken += 1
        else:
            if byte(at) != SECOND:
                return int64(-1)
            size, at = short_length(at + 1, entry_end)
            if at == 0 or at + size != entry_end:
                return int64(-1)
        at = entry_end
    return taken


@jit
def _fill_absent(reader: Reader) -> bool:
    """Sets what has not come to its default; False if there is a feature without one."""
    for number in range(reader.job.names.count):
        slot = reader.slots[number]
        if slot.seen == reader.example:
            continue
        if slot.form != FIXED:
            set_place(reader, slot.place, int64(0), int64(0), True)
        elif not fill_absent(reader, number):
            return False
    return True


@jit
def fill_absent(reader: Reader, number: int) -> bool:
    """Sets the Example's row of a FIXED feature to its default; False: none, or no memory."""
    feature, target = reader.job.names.features[number], reader.job.targets[number]
    if target.default == 0:
        return False
    if is_hashed(feature.dtype, feature.item_bytes):
        at, size = string_of(target.default, int64(0))
        put_bucket(target, row_of(reader, target), at, size)
        return True
    return copy_values(feature.dtype, row_of(reader, target), feature.count, target.default)


@jit
def scan_example(reader: Reader) -> bool:
    """Takes what is asked for of the reader's Example; False if something is unusual."""
    job = reader.job
    example, taken = job.examples[reader.example - 1], int64(0)
    at, readable = example.start, example.start + example.size
    reader.start = at
    while at < readable:
        if byte(at) != FIRST:
            return False
        size, at = short_length(at + 1, readable)
        if at == 0 or at + size > readable:
            return False
        count = _scan_entries(reader, at, at + size, readable)
        if count < 0:
            return False
        taken += count
        at += size
    return taken == job.names.count or _fill_absent(reader)
