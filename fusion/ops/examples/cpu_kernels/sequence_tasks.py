"""What a task does: it scans SequenceExamples, and then writes what it has counted."""

from __future__ import annotations

import numpy as np

from fusion.ops.examples.cpu_kernels.feature_lists import row_at, write_list
from fusion.ops.examples.cpu_kernels.guesses import guess_words, open_guesser
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    OK,
    PADDED,
    RAGGED,
    SPARSE,
    UNUSUAL,
    Feature,
    Names,
    Target,
)
from fusion.ops.examples.cpu_kernels.sequence_layout import (
    Piece,
    SequenceFiller,
    SequenceJob,
    SequenceReader,
    SequenceTotal,
)
from fusion.ops.examples.cpu_kernels.sequence_scan import scan_sequence
from fusion.ops.examples.cpu_kernels.tasks import BLOCK, LINE_WORDS, fill_place
from fusion.ops.examples.cpu_kernels.values import copy_values
from fusion.ops.examples.cpu_kernels.wire import STRINGS
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.memory import c_memset
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.unaligned import put_half, put_word


@jit
def _guesses_words(context: Names, lists: Names) -> int:
    """The words of what lies in cache lines, in front of a reader."""
    return guess_words(context.count) + guess_words(lists.count)


@jit
def sequence_words(context: Names, lists: Names) -> int:
    """The words of a task's reader and of its memory."""
    count = context.count + lists.count
    words = _guesses_words(context, lists) + SequenceReader.SIZE
    words += (1 + SequenceFiller.SIZE + SequenceTotal.SIZE) * count
    return (words + LINE_WORDS - 1) // LINE_WORDS * LINE_WORDS


@jit
def sequence_reader(job: SequenceJob, task: int) -> SequenceReader:
    """The reader of a task."""
    lines = _guesses_words(job.context, job.lists)
    return as_record(SequenceReader, job.readers + 8 * (job.reader_words * task + lines))


@jit
def begin_sequence(reader: SequenceReader, number: int) -> None:
    """Has a reader go on with an Example, by its number from 0 on."""
    reader.example = number + 1
    reader.pieces = reader.job.pieces[number * reader.job.feature_count]


@jit
def open_sequences(job: SequenceJob, task: int) -> None:
    """Begins a task."""
    reader, count = sequence_reader(job, task), job.feature_count
    memory = job.readers + 8 * job.reader_words * task
    reader.job = job
    reader.code = OK
    reader.nodes = as_words(reader + 8 * SequenceReader.SIZE)
    reader.fillers = as_record(SequenceFiller, reader.nodes + 8 * count)
    reader.totals = as_record(SequenceTotal, reader.fillers + 8 * SequenceFiller.SIZE * count)
    of_context = job.context.count
    open_guesser(reader.context, job.context, memory, reader.nodes)
    memory += 8 * guess_words(of_context)
    open_guesser(reader.lists, job.lists, memory, as_words(reader.nodes + 8 * of_context))
    for number in range(count):
        if number < of_context:
            reader.context.slots[number].number = number
        else:
            reader.lists.slots[number - of_context].number = number - of_context
        total = reader.totals[number]
        total.count = 0
        total.max_count = 0
        total.rows = 0
        total.max_rows = 0


@jit
def _scan(job: SequenceJob, task: int) -> None:
    """Scans the Examples of a task up to one that is wrong."""
    open_sequences(job, task)
    reader = sequence_reader(job, task)
    for example in range(job.firsts[task], job.firsts[task + 1]):
        begin_sequence(reader, int64(example))
        if not scan_sequence(reader):
            reader.code = UNUSUAL
            return


@jit
def _open_filler(job: SequenceJob, reader: SequenceReader, number: int, first: int) -> None:
    """Sets where a task writes a feature, whose total is what comes in front of it."""
    feature, target = job.features[number], job.targets[number]
    filler, total = reader.fillers[number], reader.totals[number]
    is_list, is_batch = number >= job.context.count, job.is_single == 0
    filler.dtype = feature.dtype
    filler.form = feature.form
    filler.item_bytes = feature.item_bytes
    filler.split_bytes = feature.split_bytes if is_batch and feature.form == RAGGED else int64(0)
    filler.total = total.count
    filler.number = number
    filler.rows = total.rows
    filler.values = target.values + feature.item_bytes * total.count
    if feature.form in (FIXED, PADDED):
        filler.values = target.values + first * target.row_bytes
        filler.others = target.lengths + 8 * first
    elif feature.form == SPARSE:
        words = int64(1 if is_list else 0) + (2 if is_batch else 1)
        filler.others = target.indices + 8 * words * total.count
    else:
        filler.others = target.splits + feature.split_bytes * (first + 1)
        filler.inner = target.inner_splits + feature.split_bytes * (total.rows + 1)


@inlined
def _put_split(out: int, size: int, split: int) -> None:
    """Writes a row split of so many bytes."""
    if size == 8:
        put_word(out, split)
    elif size == 4:
        put_half(out, split)


@inlined
def _write_row_indices(out: int, example: int, row: int, count: int, is_single: bool) -> int:
    """Writes the indices of the values of a row; where the next may be."""
    for k in range(count):
        if not is_single:
            put_word(out, example)
            out += 8
        put_word(out, row)
        put_word(out + 8, k)
        out += 16
    return out


@inlined
def _fill_rows(
    job: SequenceJob, filler: SequenceFiller, piece: Piece, example: int, readable: int
) -> bool:
    """Writes a feature list of an Example; whether that was done, see `write_values`."""
    at, end, row = piece.value, piece.value + piece.size, int64(0)
    dtype, form, item, out = filler.dtype, filler.form, filler.item_bytes, filler.values
    split_bytes, is_single = job.features[filler.number].split_bytes, job.is_single != 0
    total, inner, others = filler.total, filler.inner, filler.others
    while at < end:
        start, count, kind, at = row_at(dtype, at, end, readable)
        if count > 0 and not write_list(dtype, start, count, kind, at, out, readable):
            return False
        out += item * count
        total += count
        if form == SPARSE:
            others = _write_row_indices(others, example, row, count, is_single)
        elif form == RAGGED:
            _put_split(inner, split_bytes, total)
            inner += split_bytes
        row += 1
    filler.total = total
    filler.inner = inner
    filler.rows = filler.rows + row
    if form == PADDED:
        row_end = filler.values + job.targets[filler.number].row_bytes
        if dtype != STRINGS and out < row_end:
            c_memset(out, np.int32(0), row_end - out)
        out = row_end
        put_word(others, row)
        others += 8
    elif form == RAGGED:
        _put_split(others, filler.split_bytes, filler.rows)
        others += filler.split_bytes
    filler.values = out
    filler.others = others
    return True


@jit
def _fill_row(feature: Feature, target: Target, piece: Piece, example: int, readable: int) -> bool:
    """Writes the row of a FIXED feature; whether that was done, see `write_values`."""
    row, count = target.values + example * target.row_bytes, feature.count
    if piece.value == 0:
        return copy_values(feature.dtype, row, count, target.default)
    kind, behind = piece.count & 1, piece.value + piece.size
    return write_list(feature.dtype, piece.start, count, kind, behind, row, readable)


@jit
def _fill_block(
    job: SequenceJob, reader: SequenceReader, number: int, first: int, last: int
) -> bool:
    """Writes a feature of some Examples; False if one is wrong."""
    feature, target, filler = job.features[number], job.targets[number], reader.fillers[number]
    is_list = number >= job.context.count
    for k in range(first, last):
        example, text = int64(k), job.examples[k]
        readable, piece = text.start + text.size, job.pieces[k * job.feature_count + number]
        if is_list:
            is_done = _fill_rows(job, filler, piece, example, readable)
        elif feature.form == FIXED:
            is_done = _fill_row(feature, target, piece, example, readable)
        else:
            is_done = fill_place(job, filler, piece, example, readable)
        if not is_done:
            return False
    return True


@jit
def _fill(job: SequenceJob, task: int) -> None:
    """Writes what the Examples of a task have."""
    reader, first = sequence_reader(job, task), job.firsts[task]
    last = job.firsts[task + 1]
    for number in range(job.feature_count):
        _open_filler(job, reader, int64(number), first)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for number in range(job.feature_count):
            if not _fill_block(job, reader, int64(number), int64(begin), end):
                reader.code = UNUSUAL
                return


@jit
def do_sequences(job: SequenceJob, task: int) -> None:
    """Does a task."""
    if job.is_filling != 0:
        _fill(job, task)
    else:
        _scan(job, task)
