"""Goes over Examples as writers make them, guessing which feature comes next.

A feature comes where it came in the Example before: its name is compared with that of the feature
that came there, and with the one behind that, as one may be missing. Anything that writers do not
do is left to `exact`.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    PADDED,
    Feature,
    Guess,
    Reader,
    Target,
)
from fusion.ops.examples.cpu_kernels.names import find_name, first_words, is_name
from fusion.ops.examples.cpu_kernels.values import copy_values, write_values
from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    FLOATS,
    SECOND,
    STRINGS,
    packed_varints,
    short_length,
    word_at,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record
from fusion.runtime.native.text import byte

#: The head of an entry's Feature that is one list of one packed run or of one string, all of less
#: than 128 bytes: tags, and between them lengths that follow from the first.
_HEAD_BYTES = 6
_HEAD_TAGS = SECOND | FIRST << 32
_HEAD_LENGTHS = 1 << 8 | 1 << 24 | 1 << 40
_HEAD_LESS = 2 << 24 | 4 << 40
_HEAD = (1 << 48) - 1


@jit
def set_place(reader: Reader, feature: Feature, start: int, count: int, is_packed: bool) -> None:
    """Notes where the values of a feature of the Example lie."""
    job = reader.job
    place = job.places[(reader.example - 1) * job.place_count + feature.place]
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


@jit
def _take_feature(reader: Reader, number: int, at: int, end: int, readable: int) -> bool:
    """Takes an entry's Feature, which begins with its tag; False if it is unusual."""
    feature = reader.job.names.features[number]
    if reader.seen[number] == reader.example:
        return False  # it comes twice
    reader.seen[number] = reader.example
    dtype, size, is_one = feature.dtype, end - at - 2, False
    if size < 0x80 and at + 8 <= readable and size > 4:
        head = _HEAD_TAGS - _HEAD_LESS + (dtype << 16) + size * _HEAD_LENGTHS
        is_one = word_at(at) & _HEAD == head
    if is_one:
        at += _HEAD_BYTES
        if dtype == STRINGS:
            at -= 2  # with its tag and length
    else:
        at, size = _find_list(at, end, dtype)
        if at == 0:
            return False
    count = int64(1) if is_one and dtype == STRINGS else _count_values(dtype, at, end, readable)
    if feature.form == FIXED:
        if count != feature.count or count <= 0:
            return False
        return write_values(
            dtype, at, count, True, row_of(reader, reader.job.targets[number]), readable
        )
    if count < 0 or (feature.form == PADDED and count % feature.count != 0):
        return False
    set_place(reader, feature, at, count, True)
    return True


@jit
def _new_guess(reader: Reader, head: int, more: int, size: int, at: int, number: int) -> Guess:
    """A new guess for a name; the one without a name if there are too many."""
    guess = reader.guesses[0]
    if reader.guess_count < reader.guess_limit:
        guess = reader.guesses[reader.guess_count]
        reader.guess_count = reader.guess_count + 1
        guess.head = head
        guess.more = more
        guess.size = size
        guess.address = at
        if number >= 0:
            reader.nodes[number] = guess
    guess.feature = number
    return guess


@jit
def _look_up(reader: Reader, last: Guess, head: int, more: int, size: int, at: int) -> Guess:
    """The guess that a name is, from now on the one behind another."""
    number = find_name(reader.job.names, head, more, size, at)
    if number >= 0 and reader.nodes[number] != 0:
        guess = as_record(Guess, reader.nodes[number])
    else:
        guess = _new_guess(reader, head, more, size, at, number)
        if guess != reader.guesses:
            guess.next = last.next
    if guess != reader.guesses:
        last.next = guess
    return guess


@jit
def _scan_entries(reader: Reader, at: int, end: int, readable: int) -> int:
    """Takes the entries of Features; how many were asked for, or -1 if one is unusual."""
    start = reader.job.examples[reader.example - 1].start
    last, taken = reader.guesses, int64(0)
    while at < end:
        if byte(at) != FIRST:
            return int64(-1)
        size, at = short_length(at + 1, end)
        entry_end = at + size
        if at == 0 or entry_end > end or size < 4 or byte(at) != FIRST:
            return int64(-1)
        size, at = short_length(at + 1, entry_end)
        if at == 0 or at + size + 2 > entry_end:
            return int64(-1)
        head, more = first_words(at, size, readable, start)
        guess = last.next
        if not is_name(guess, head, more, size, at):
            guess = guess.next
            if not is_name(guess, head, more, size, at):
                guess = _look_up(reader, last, head, more, size, at)
        last, number = guess, guess.feature
        at += size
        if number >= 0:
            if not _take_feature(reader, number, at, entry_end, readable):
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
    job = reader.job
    features = job.names.features
    for number in range(job.names.count):
        if reader.seen[number] != reader.example and not fill_absent(reader, number):
            return False
        if reader.seen[number] != reader.example and features[number].form != FIXED:
            set_place(reader, features[number], int64(0), int64(0), True)
    return True


@jit
def fill_absent(reader: Reader, number: int) -> bool:
    """Sets the Example's row of a FIXED feature to its default; False: none, or no memory."""
    feature, target = reader.job.names.features[number], reader.job.targets[number]
    if feature.form != FIXED:
        return True
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
