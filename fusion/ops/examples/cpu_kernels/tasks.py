"""What a task does: it scans Examples, and then writes the values whose places it has noted."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.exact import parse_exactly
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    OK,
    PADDED,
    SPARSE,
    UNUSUAL,
    Feature,
    Finding,
    Guess,
    ParseJob,
    Reader,
    Total,
)
from fusion.ops.examples.cpu_kernels.scan import scan_example
from fusion.ops.examples.cpu_kernels.values import fill_values, write_values
from fusion.ops.examples.cpu_kernels.wire import put_half, put_word
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words

#: So many names that are not asked for are learnt at most.
OTHER_NAMES = 256


@jit
def reader_words(names: int, places: int) -> int:
    """The words of a task's `Reader` and of its memory."""
    guesses = Guess.SIZE * (1 + names + OTHER_NAMES)
    return Reader.SIZE + (2 + Finding.SIZE) * names + Total.SIZE * places + guesses


@jit
def reader_of(job: ParseJob, task: int) -> Reader:
    """The reader of a task."""
    return as_record(Reader, job.readers + 8 * job.reader_words * task)


@jit
def open_reader(job: ParseJob, task: int) -> None:
    """Begins a task."""
    reader, names = reader_of(job, task), job.names.count
    memory = as_words(reader + 8 * Reader.SIZE)
    reader.job = job
    reader.code = OK
    reader.seen = memory
    reader.nodes = as_words(memory + 8 * names)
    reader.findings = as_record(Finding, memory + 16 * names)
    reader.totals = as_record(Total, reader.findings + 8 * Finding.SIZE * names)
    reader.guesses = as_record(Guess, reader.totals + 8 * Total.SIZE * job.place_count)
    for k in range(2 * names):
        memory[k] = 0
    for place in range(job.place_count):
        reader.totals[place].count = 0
        reader.totals[place].max_count = 0
    first = reader.guesses
    first.size = -1  # of no name
    first.feature = -1
    first.next = first
    reader.guess_count = 1
    reader.guess_limit = 1 + names + OTHER_NAMES


@jit
def _add_counts(reader: Reader) -> None:
    """Adds the Example's values to the totals."""
    job = reader.job
    places, totals = job.places[(reader.example - 1) * job.place_count], reader.totals
    for place in range(job.place_count):
        count = places[place].count >> 1
        totals[place].count = totals[place].count + count
        if count > totals[place].max_count:
            totals[place].max_count = count


@jit
def _scan(job: ParseJob, task: int) -> None:
    """Scans the Examples of a task up to one that is wrong."""
    open_reader(job, task)
    reader = reader_of(job, task)
    for example in range(job.firsts[task], job.firsts[task + 1]):
        reader.example = example + 1
        if not scan_example(reader) and not parse_exactly(reader):
            return
        _add_counts(reader)


@jit
def _write_indices(feature: Feature, out: int, example: int, count: int, is_single: bool) -> None:
    """Writes the indices of an Example's values."""
    for k in range(count):
        if is_single:
            put_word(out + 8 * k, k)
        else:
            put_word(out + 16 * k, example)
            put_word(out + 16 * k + 8, k)


@jit
def _fill_feature(job: ParseJob, number: int, example: int, start: int) -> bool:
    """Writes the values of a feature of an Example, of which so many are before it."""
    feature, target = job.names.features[number], job.targets[number]
    place = job.places[example * job.place_count + feature.place]
    count, is_packed = place.count >> 1, place.count & 1 == 0
    text, item = job.examples[example], feature.item_bytes
    is_padded = feature.form == PADDED
    out = target.values + (example * target.row_bytes if is_padded else item * start)
    if not write_values(feature.dtype, place.start, count, is_packed, out, text.start + text.size):
        return False
    if is_padded:
        left = target.row_bytes // item - count
        return left == 0 or fill_values(feature.dtype, out + item * count, left, target.default)
    is_single = job.is_single != 0
    if feature.form == SPARSE:
        at = target.indices + (8 if is_single else 16) * start
        _write_indices(feature, at, example, count, is_single)
    elif not is_single and feature.split_bytes == 8:
        put_word(target.splits + 8 * (example + 1), start + count)
    elif not is_single:
        put_half(target.splits + 4 * (example + 1), start + count)
    return True


@jit
def _fill(job: ParseJob, task: int) -> None:
    """Writes what the Examples of a task have; its totals are the values in front of them."""
    reader = reader_of(job, task)
    for example in range(job.firsts[task], job.firsts[task + 1]):
        for number in range(job.names.count):
            feature = job.names.features[number]
            if feature.form == FIXED:
                continue
            total = reader.totals[feature.place]
            if not _fill_feature(job, number, int64(example), total.count):
                reader.code = UNUSUAL
                reader.example = example + 1
                return
            place = job.places[example * job.place_count + feature.place]
            total.count = total.count + (place.count >> 1)


@jit
def do_task(job: ParseJob, task: int) -> None:
    """Does a task."""
    if job.is_filling != 0:
        _fill(job, task)
    else:
        _scan(job, task)
