"""What TensorFlow's parser does with any bytes, and what it says of those that are wrong.

An Example is read as protocol buffers are: a length that is too large ends where what it is in
ends, and Examples one behind the other are one. Of a feature's entries the last counts. Of several
that are wrong the last of all is named: TensorFlow takes entries from the end.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import (
    ABSENT,
    BAD_FEATURE,
    BROKEN_STRIDE,
    FIXED,
    MALFORMED,
    NO_MEMORY,
    OK,
    OTHER_DTYPE,
    OTHER_SIZE,
    PADDED,
    UNSUPPORTED,
    Feature,
    Reader,
)
from fusion.ops.examples.cpu_kernels.lists import int_list, skipped, unpacked_floats
from fusion.ops.examples.cpu_kernels.names import find_name, first_words
from fusion.ops.examples.cpu_kernels.scan import fill_absent, row_of, set_place
from fusion.ops.examples.cpu_kernels.values import is_hashed, write_buckets, write_values
from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    FLOATS,
    INTS,
    LOW_HALF,
    SECOND,
    STRINGS,
    any_varint,
    part_end,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.strings import STRING_BYTES, clear_string
from fusion.runtime.native.text import byte


@jit
def _note_entry(reader: Reader, number: int, index: int, start: int, end: int) -> bool:
    """Notes the entry of a feature; False if its Feature is of no known dtype."""
    if start < end and byte(start) not in (STRINGS, FLOATS, INTS):
        return False
    form = reader.job.names.features[number].form
    if start == end and (form in (FIXED, PADDED) or reader.job.is_single != 0):
        return True  # as if it were not there
    finding = reader.findings[number]
    finding.index = index
    finding.start = start
    finding.end = end
    return True


@jit
def _take_entry(reader: Reader, at: int, end: int, index: int) -> bool:
    """Notes an entry if its feature is asked for; False if it is malformed."""
    key, key_size = int64(0), int64(0)
    value, value_size = int64(0), int64(0)
    for _ in range(2):
        tag, at = any_varint(at, end)
        tag &= int64(LOW_HALF)
        if at == 0 or tag not in (FIRST, SECOND):
            return False
        size, at = any_varint(at, end)
        size &= int64(LOW_HALF)
        if at == 0 or size > end - at:
            return False
        if tag == FIRST:
            key, key_size = at, size
        else:
            value, value_size = at, size
        at += size
    if at != end:
        return False
    head, more = first_words(key, key_size, key + key_size, key)
    number = find_name(reader.job.names, head, more, key_size, key)
    if number >= 0 and not _note_entry(reader, number, index, value, value + value_size):
        reader.unsupported = index
    return True


@jit
def _take_entries(reader: Reader, at: int, end: int) -> bool:
    """Notes which entries count; False if the Example is malformed."""
    index = int64(0)
    while at < end:
        if byte(at) != FIRST:
            at = skipped(at, end)
            if at == 0:
                return False
            continue
        size, at = any_varint(at + 1, end)
        if at == 0:
            return False
        part = part_end(at, size, end)
        while at < part:
            if byte(at) != FIRST:
                return False
            size, at = any_varint(at + 1, part)
            if at == 0:
                return False
            entry = part_end(at, size, part)
            if not _take_entry(reader, at, entry, index):
                return False
            at = entry
            index += 1
    return True


@jit
def _float_list(at: int, end: int, limit: int) -> tuple[int, int, bool]:
    """As `int_list`, without the position; packed values beyond a limit need not be there."""
    if at == end:
        return at, int64(0), True
    if byte(at) == FIRST:
        size, at = any_varint(at + 1, end)
        if at == 0:
            return at, int64(-1), True
        end = part_end(at, size, end)
        count = (size & int64(LOW_HALF)) >> 2
        return at, (count if 4 * min(count, limit) <= end - at else int64(-1)), True
    return at, unpacked_floats(at, end), False


@jit
def _string_list(at: int, end: int, limit: int) -> tuple[int, int, bool]:
    """As `_float_list`; more strings than a limit are malformed."""
    start, count = at, int64(0)
    while at < end:
        if byte(at) != FIRST:
            return start, int64(-1), False
        size, at = any_varint(at + 1, end)
        size &= int64(LOW_HALF)
        if at == 0 or size > end - at or count == limit:
            return start, int64(-1), False
        at += size
        count += 1
    return start, count, True


@jit
def _take_finding(reader: Reader, number: int) -> int:
    """Takes the values of the entry that counts; what is wrong with it. Sets `reader.detail`."""
    feature, finding = reader.job.names.features[number], reader.findings[number]
    at, end = finding.start, finding.end
    dtype, limit = feature.dtype, int64(LOW_HALF)
    if at == end:
        set_place(reader, feature.place, at, int64(0), True)
        return OK
    reader.detail = byte(at)
    if byte(at) != dtype:
        return OTHER_DTYPE
    size, at = any_varint(at + 1, end)
    if at == 0:
        return BAD_FEATURE
    end = part_end(at, size, end)
    if feature.form == FIXED:
        limit = feature.count
    if dtype == INTS:
        at, count, is_packed, _ = int_list(at, end)
    elif dtype == FLOATS:
        at, count, is_packed = _float_list(at, end, limit)
    else:
        at, count, is_packed = _string_list(at, end, limit)
    if count < 0:
        return BAD_FEATURE
    reader.detail = count
    if feature.form == FIXED:
        return _write_row(reader, number, at, count, is_packed)
    if feature.form == PADDED and count % feature.count != 0:
        return BROKEN_STRIDE
    set_place(reader, feature.place, at, count, is_packed)
    return OK


@jit
def _write_row(reader: Reader, number: int, at: int, count: int, is_packed: bool) -> int:
    """Writes the values of a FIXED feature; what is wrong with them."""
    feature = reader.job.names.features[number]
    if count != feature.count:
        return OTHER_SIZE
    row = row_of(reader, reader.job.targets[number])
    end = reader.findings[number].end
    if is_hashed(feature.dtype, feature.item_bytes):
        write_buckets(reader.job.targets[number], at, count, row, end)
        return OK
    _clear_row(feature, row)
    return OK if write_values(feature.dtype, at, count, is_packed, row, end) else NO_MEMORY


@jit
def _clear_row(feature: Feature, row: int) -> None:
    """Makes strings empty that were written before something unusual was found."""
    if feature.dtype == STRINGS and feature.item_bytes == STRING_BYTES:
        for k in range(feature.count):
            clear_string(row + STRING_BYTES * k)


@jit
def _set_error(reader: Reader, code: int, number: int) -> None:
    reader.code = code
    reader.feature = number


@jit
def _take_findings(reader: Reader) -> None:
    """Takes what is asked for, and notes the error in the last entry that has one."""
    names = reader.job.names
    last, detail = reader.unsupported, int64(0)
    if last >= 0:
        _set_error(reader, UNSUPPORTED, int64(0))
    for number in range(names.count):
        index = reader.findings[number].index
        if index >= 0:
            code = _take_finding(reader, number)
            if code != OK and index > last:
                _set_error(reader, code, number)
                last, detail = index, reader.detail
    reader.detail = detail
    for number in range(names.count):
        if reader.findings[number].index >= 0:
            continue
        feature = names.features[number]
        if feature.form != FIXED:
            set_place(reader, feature.place, int64(0), int64(0), True)
            continue
        _clear_row(feature, row_of(reader, reader.job.targets[number]))
        if not fill_absent(reader, number) and reader.code == OK:
            is_required = reader.job.targets[number].default == 0
            _set_error(reader, ABSENT if is_required else NO_MEMORY, number)


@jit
def parse_exactly(reader: Reader) -> bool:
    """Takes what is asked for of the reader's Example; False if an error is noted."""
    job = reader.job
    for number in range(job.names.count):
        reader.findings[number].index = -1
    reader.code = OK
    reader.unsupported = -1
    example = job.examples[reader.example - 1]
    if not _take_entries(reader, example.start, example.start + example.size):
        _set_error(reader, MALFORMED, int64(0))
        return False
    _take_findings(reader)
    return reader.code == OK
