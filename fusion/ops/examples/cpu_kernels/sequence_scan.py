"""Finds what SequenceExamples have of the features that are asked for, and counts values.

A SequenceExample has the entries of its context in fields of number 1, and those of feature lists
in fields of number 2, each a map. Unlike those of Examples, entries have a key and then a value. Of
the entries of a key the last counts, also an empty one.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.feature_lists import (
    CUT,
    PACKED,
    feature_at,
    row_at,
    short_feature,
)
from fusion.ops.examples.cpu_kernels.guesses import find_entry, next_guess
from fusion.ops.examples.cpu_kernels.layout import FIXED, PADDED, Feature, Guesser, Names
from fusion.ops.examples.cpu_kernels.lists import skipped
from fusion.ops.examples.cpu_kernels.names import find_name, first_words
from fusion.ops.examples.cpu_kernels.sequence_layout import Piece, SequenceReader, SequenceTotal
from fusion.ops.examples.cpu_kernels.wire import (
    FIRST,
    LOW_HALF,
    SECOND,
    any_varint,
    part_end,
    short_length,
)
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.text import byte


@inlined
def _set_piece(piece: Piece, value: int, size: int) -> None:
    piece.value = value
    piece.size = size


@jit
def _clear_pieces(reader: SequenceReader) -> None:
    for number in range(reader.job.feature_count):
        _set_piece(reader.pieces[number], int64(0), int64(0))


@inlined
def _take_entries(guesser: Guesser, pieces: Piece, at: int, end: int, readable: int) -> bool:
    """Notes entries as writers make them; False if one is unusual."""
    guess = guesser.guesses
    while at < end:
        at, size, entry_end = find_entry(at, end, readable)
        if at == 0:
            return False
        guess = next_guess(guesser, guess, at, size, readable)
        at += size
        if byte(at) != SECOND:
            return False
        size, at = short_length(at + 1, entry_end)
        if at == 0 or at + size != entry_end:
            return False
        if guess.slot != 0:
            _set_piece(pieces[guess.slot.number], at, size)
        at = entry_end
    return True


@jit
def _find_pieces(reader: SequenceReader) -> bool:
    """Notes the entries of the reader's Example; False if something is unusual."""
    job = reader.job
    example = job.examples[reader.example - 1]
    at, readable = example.start, example.start + example.size
    reader.context.start = at
    reader.lists.start = at
    while at < readable:
        tag = byte(at)
        if tag not in (FIRST, SECOND):
            return False
        size, at = short_length(at + 1, readable)
        if at == 0 or at + size > readable:
            return False
        end = at + size
        if tag == FIRST:
            is_usual = _take_entries(reader.context, reader.pieces, at, end, readable)
        else:
            lists = reader.pieces[job.context.count]
            is_usual = _take_entries(reader.lists, lists, at, end, readable)
        if not is_usual:
            return False
        at = end
    return True


@jit
def _sized(tag: int, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of a field of a tag begin, and how many; 0: there is none that is whole."""
    if at >= end or byte(at) != tag:
        return int64(0), int64(0)
    size, at = any_varint(at + 1, end)
    size &= int64(LOW_HALF)
    return (int64(0), size) if at == 0 or size > end - at else (at, size)


@jit
def _take_any(names: Names, pieces: Piece, at: int, end: int) -> bool:
    """Notes entries of any bytes; False if one is malformed."""
    while at < end:
        if byte(at) != FIRST:
            return False
        size, at = any_varint(at + 1, end)
        if at == 0:
            return False
        entry = part_end(at, size, end)
        key, key_size = _sized(int64(FIRST), at, entry)
        if key == 0:
            return False
        value, size = _sized(int64(SECOND), key + key_size, entry)
        if value == 0 or value + size != entry:
            return False
        head, more = first_words(key, key_size, key + key_size, key)
        number = find_name(names, head, more, key_size, key)
        if number >= 0:
            _set_piece(pieces[number], value, size)
        at = entry
    return True


@jit
def find_exactly(reader: SequenceReader) -> bool:
    """Notes the entries of the reader's Example, of any bytes; False if it is malformed."""
    job = reader.job
    _clear_pieces(reader)
    example = job.examples[reader.example - 1]
    at, end = example.start, example.start + example.size
    while at < end:
        tag = byte(at)
        if tag not in (FIRST, SECOND):
            at = skipped(at, end)
            if at == 0:
                return False
            continue
        size, at = any_varint(at + 1, end)
        if at == 0:
            return False
        part = part_end(at, size, end)
        names = job.context if tag == FIRST else job.lists
        pieces = reader.pieces[int64(0) if tag == FIRST else job.context.count]
        if not _take_any(names, pieces, at, part):
            return False
        at = part
    return True


@inlined
def _count_context(feature: Feature, piece: Piece, total: SequenceTotal, readable: int) -> bool:
    """Counts the values of a feature of the context; False if they are wrong."""
    start, count, kind = piece.value, int64(0), int64(PACKED)
    if piece.size > 0:
        dtype, size = feature.dtype, piece.size
        # In front of the value are at least its tag and its length.
        start, count = short_feature(int64(SECOND), dtype, piece.value - 2, size, readable)
        if count < 0:
            end = piece.value + size
            start, count, kind, behind = feature_at(dtype, piece.value, end, readable)
            piece.size = behind - piece.value
        if count < 0 or kind == CUT:
            return False
    piece.start = start
    piece.count = 2 * count + kind
    if feature.form == FIXED:
        return feature.is_required == 0 if piece.value == 0 else count == feature.count
    total.count = total.count + count
    total.max_count = max(total.max_count, count)
    return True


@inlined
def _count_rows(feature: Feature, piece: Piece, total: SequenceTotal, readable: int) -> bool:
    """Counts the rows and values of a feature list; False if they are wrong."""
    at, end = piece.value, piece.value + piece.size
    dtype, rows, values, most = feature.dtype, int64(0), int64(0), total.max_count
    stride = feature.count if feature.form == PADDED else int64(-1)
    if piece.value == 0 and feature.is_required != 0:
        return False
    while at < end:
        _, count, kind, at = row_at(dtype, at, end, readable)
        if count < 0 or kind == CUT or (stride >= 0 and count != stride):
            return False
        rows += 1
        values += count
        most = max(most, count)
    total.count = total.count + values
    total.max_count = most
    total.rows = total.rows + rows
    total.max_rows = max(total.max_rows, rows)
    return True


@jit
def scan_sequence(reader: SequenceReader) -> bool:
    """Finds and counts what the reader's Example has; False if something is wrong."""
    job = reader.job
    example = job.examples[reader.example - 1]
    readable = example.start + example.size
    _clear_pieces(reader)
    if not _find_pieces(reader) and not find_exactly(reader):
        return False
    context = job.context.count
    for number in range(context):
        total = reader.totals[number]
        if not _count_context(job.features[number], reader.pieces[number], total, readable):
            return False
    for number in range(context, job.feature_count):
        total = reader.totals[number]
        if not _count_rows(job.features[number], reader.pieces[number], total, readable):
            return False
    return True
