"""Goes over Examples as writers make them, guessing which feature comes next.

A feature comes where it came in the Example before: its name is compared with that of the feature
that came there, and with the one behind that, as one may be missing. Anything that writers do not
do is left to `exact`.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    PADDED,
    Guess,
    Name,
    Reader,
    Slot,
    Target,
)
from fusion.ops.examples.cpu_kernels.names import find_name, first_words, is_rest_same, mask_of
from fusion.ops.examples.cpu_kernels.values import copy_values, write_values
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
from fusion.runtime.native.pointers import as_record, stack_record
from fusion.runtime.native.strings import put_string
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import half_at, put_half, put_word, word_at

#: The head of an entry's Feature that is one list of one packed run or of one string, all of less
#: than 128 bytes: tags, and between them lengths that follow from the first.
_HEAD_BYTES = 6
_HEAD_TAGS = SECOND | FIRST << 32
_HEAD_LENGTHS = 1 << 8 | 1 << 24 | 1 << 40
_HEAD_LESS = 2 << 24 | 4 << 40
_HEAD = (1 << 48) - 1

#: The beginning of an entry of less than 128 bytes: tags, and in between lengths of 7 bits.
_ENTRY, _ENTRY_MASK = FIRST | FIRST << 16, 0x80FF80FF


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
    if at == 0 or at + size != end or size == 0 or byte(at) != dtype:
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
def _count_values(dtype: int, at: int, end: int, readable: int) -> int:
    """How many values a packed list has, or one of strings; -1 if it is unusual."""
    if dtype == STRINGS:
        return _string_count(at, end)
    if dtype == FLOATS:
        return int64(-1) if (end - at) & 3 != 0 else (end - at) >> 2
    if at < end and byte(end - 1) >= 0x80:
        return int64(-1)
    return packed_varints(at, end, readable)


@inlined
def _is_short_run(dtype: int, at: int, size: int, readable: int) -> bool:
    """Whether an entry's Feature, of so many bytes behind its length, has the short head."""
    if not (at + 8 <= readable and 4 < size < 0x80):
        return False
    head = _HEAD_TAGS - _HEAD_LESS + (dtype << 16) + size * _HEAD_LENGTHS
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
    return put_string(row, at, size, readable)


@inlined
def _take_feature(reader: Reader, slot: Slot, at: int, end: int, readable: int) -> bool:
    """Takes an entry's Feature, which begins with its tag; False if it is unusual."""
    if slot.seen == reader.example:
        return False  # it comes twice
    slot.seen = reader.example
    size = end - at - 2
    is_one = slot.form == FIXED and slot.count == 1
    is_short = is_one and _is_short_run(slot.dtype, at, size, readable)
    if is_short and _take_one(reader, slot, at + _HEAD_BYTES, size - 4, readable):
        return True
    return _take_list(reader, slot, at, end, readable)


@jit
def _take_list(reader: Reader, slot: Slot, at: int, end: int, readable: int) -> bool:
    """As `_take_feature`, for a list of any length."""
    dtype, size = slot.dtype, end - at - 2
    if _is_short_run(dtype, at, size, readable):
        # Of strings the first is with its tag and length.
        at += _HEAD_BYTES if dtype != STRINGS else _HEAD_BYTES - 2
    else:
        at, size = _find_list(at, end, dtype)
        if at == 0:
            return False
    count = _count_values(dtype, at, end, readable)
    if slot.form == FIXED:
        if count != slot.count or count <= 0:
            return False
        row = slot.values + (reader.example - 1) * slot.row_bytes
        return write_values(dtype, at, count, True, row, readable)
    if count < 0 or (slot.form == PADDED and count % slot.count != 0):
        return False
    set_place(reader, slot.place, at, count, True)
    return True


@jit
def _new_guess(reader: Reader, name: Name, slot: Slot) -> Guess:
    """A new guess for a name; the one without a name if there are too many."""
    guess = reader.guesses[0]
    if reader.guess_count < reader.guess_limit:
        guess = reader.guesses[reader.guess_count]
        reader.guess_count = reader.guess_count + 1
        guess.head = name.head
        guess.more = name.more
        guess.size = name.size
        guess.address = name.address
        guess.head_mask = mask_of(name.size)
        guess.more_mask = mask_of(name.size - 8)
        if slot != 0:
            reader.nodes[slot.number] = guess
    guess.slot = slot
    return guess


@jit
def _look_up(reader: Reader, last: Guess, at: int, size: int, readable: int) -> Guess:
    """The guess that a name is, from now on the one behind another."""
    start, name = reader.job.examples[reader.example - 1].start, stack_record(Name)
    head, more = first_words(at, size, readable, start)
    name.head = head
    name.more = more
    name.size = size
    name.address = at
    number = find_name(reader.job.names, head, more, size, at)
    if number >= 0 and reader.nodes[number] != 0:
        guess = as_record(Guess, reader.nodes[number])
    else:
        slot = as_record(Slot, int64(0)) if number < 0 else reader.slots[number]
        guess = _new_guess(reader, name, slot)
        if guess != reader.guesses:
            guess.next = last.next
    if guess != reader.guesses:
        last.next = guess
    return guess


@inlined
def _is_guessed(guess: Guess, at: int, size: int) -> bool:
    """Whether a name is that of a guess; 16 bytes may be read."""
    head = (word_at(at) ^ guess.head) & guess.head_mask
    more = (word_at(at + 8) ^ guess.more) & guess.more_mask
    if head | more | (size ^ guess.size) != 0:
        return False
    return size <= 16 or is_rest_same(at, guess.address, size)


@inlined
def _next_guess(reader: Reader, last: Guess, at: int, size: int, readable: int) -> Guess:
    """The guess that the name behind another is."""
    if at + 16 <= readable:
        guess = last.next
        if _is_guessed(guess, at, size):
            return guess
        guess = guess.next
        if _is_guessed(guess, at, size):
            return guess
    return _look_up(reader, last, at, size, readable)


@inlined
def _find_name(at: int, end: int, readable: int) -> tuple[int, int, int]:
    """Where the name of an entry begins, its size, and where the entry ends; 0: unusual."""
    if at + 8 <= readable:
        word = word_at(at)
        if word & _ENTRY_MASK == _ENTRY:
            size, name_size = (word >> 8) & 0x7F, (word >> 24) & 0x7F
            entry_end = at + 2 + size
            if entry_end > end or name_size + 4 > size:
                return int64(0), int64(0), int64(0)
            return at + 4, name_size, entry_end
    return _find_any_name(at, end)


@jit
def _find_any_name(at: int, end: int) -> tuple[int, int, int]:
    """As `_find_name`, for an entry of any size."""
    if byte(at) != FIRST:
        return int64(0), int64(0), int64(0)
    size, at = short_length(at + 1, end)
    entry_end = at + size
    if at == 0 or entry_end > end or size < 4 or byte(at) != FIRST:
        return int64(0), int64(0), int64(0)
    size, at = short_length(at + 1, entry_end)
    if at == 0 or at + size + 2 > entry_end:
        return int64(0), int64(0), int64(0)
    return at, size, entry_end


@jit
def _scan_entries(reader: Reader, at: int, end: int, readable: int) -> int:
    """Takes the entries of Features; how many were asked for, or -1 if one is unusual."""
    guess, taken = reader.guesses, int64(0)
    while at < end:
        at, size, entry_end = _find_name(at, end, readable)
        if at == 0:
            return int64(-1)
        guess = _next_guess(reader, guess, at, size, readable)
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
    return copy_values(feature.dtype, row_of(reader, target), feature.count, target.default)


@jit
def scan_example(reader: Reader) -> bool:
    """Takes what is asked for of the reader's Example; False if something is unusual."""
    job = reader.job
    example, taken = job.examples[reader.example - 1], int64(0)
    at, readable = example.start, example.start + example.size
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
