"""What a task does: it scans Examples, and then writes the values whose places it has noted."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.exact import parse_exactly
from fusion.ops.examples.cpu_kernels.guesses import guess_words, open_guesser
from fusion.ops.examples.cpu_kernels.layout import (
    FIXED,
    OK,
    PADDED,
    SPARSE,
    UNUSUAL,
    ExampleJob,
    Filler,
    Finding,
    ParseJob,
    Place,
    Reader,
    Slot,
    Total,
)
from fusion.ops.examples.cpu_kernels.scan import scan_example
from fusion.ops.examples.cpu_kernels.values import (
    fill_values,
    is_hashed,
    write_buckets,
    write_values,
)
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.native.unaligned import put_half, put_word

#: Of so many Examples one feature is written after the other: they are in a cache meanwhile.
BLOCK = 64

#: The words of a cache line.
LINE_WORDS = 8


@jit
def _line_words(names: int, places: int) -> int:
    """The words of what lies in cache lines, in front of a `Reader`."""
    return guess_words(names) + Filler.SIZE * places


@jit
def reader_words(names: int, places: int) -> int:
    """The words of a task's `Reader` and of its memory."""
    words = _line_words(names, places) + Reader.SIZE
    words += (1 + Finding.SIZE) * names + Total.SIZE * places
    return (words + LINE_WORDS - 1) // LINE_WORDS * LINE_WORDS


@jit
def reader_of(job: ParseJob, task: int) -> Reader:
    """The reader of a task; its memory begins with what lies in cache lines."""
    lines = _line_words(job.names.count, job.place_count)
    return as_record(Reader, job.readers + 8 * (job.reader_words * task + lines))


@jit
def _open_slot(job: ParseJob, slot: Slot, number: int) -> None:
    feature, target = job.names.features[number], job.targets[number]
    slot.seen = 0
    slot.dtype = feature.dtype
    slot.form = feature.form
    slot.count = feature.count
    slot.place = feature.place
    slot.number = number
    slot.values = target.values
    slot.row_bytes = target.row_bytes


@jit
def begin_example(reader: Reader, number: int) -> None:
    """Has a reader go on with an Example, by its number from 0 on."""
    reader.example = number + 1
    reader.places = reader.job.places[number * reader.job.place_count]


@jit
def open_reader(job: ParseJob, task: int) -> None:
    """Begins a task."""
    reader, names = reader_of(job, task), job.names.count
    # Records of a cache line begin where one does.
    memory = job.readers + 8 * job.reader_words * task
    reader.job = job
    reader.code = OK
    reader.fillers = as_record(Filler, memory + 8 * guess_words(names))
    nodes = as_words(reader + 8 * Reader.SIZE)
    reader.findings = as_record(Finding, nodes + 8 * names)
    reader.totals = as_record(Total, reader.findings + 8 * Finding.SIZE * names)
    open_guesser(reader, job.names, memory, nodes)
    for number in range(names):
        _open_slot(job, reader.slots[number], int64(number))
    for place in range(job.place_count):
        reader.totals[place].count = 0
        reader.totals[place].max_count = 0


@jit
def _add_counts(reader: Reader) -> None:
    """Adds the Example's values to the totals."""
    job = reader.job
    places, totals = reader.places, reader.totals
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
        begin_example(reader, int64(example))
        if not scan_example(reader) and not parse_exactly(reader):
            return
        _add_counts(reader)


@jit
def _open_fillers(job: ParseJob, reader: Reader, first: int) -> None:
    """Sets where a task writes, whose totals are the values in front of it."""
    for number in range(job.names.count):
        feature, target = job.names.features[number], job.targets[number]
        if feature.form == FIXED:
            continue
        filler, total = reader.fillers[feature.place], reader.totals[feature.place].count
        filler.dtype = feature.dtype
        filler.form = feature.form
        filler.item_bytes = feature.item_bytes
        filler.split_bytes = 0
        filler.total = total
        filler.number = number
        filler.values = target.values + feature.item_bytes * total
        if feature.form == PADDED:
            filler.values = target.values + first * target.row_bytes
        elif feature.form == SPARSE:
            filler.others = target.indices + (8 if job.is_single != 0 else 16) * total
        elif job.is_single == 0:
            filler.split_bytes = feature.split_bytes
            filler.others = target.splits + feature.split_bytes * (first + 1)


@inlined
def _write_indices(filler: Filler, example: int, count: int, is_single: bool) -> None:
    """Writes the indices of an Example's values."""
    out = filler.others
    if is_single:
        for k in range(count):
            put_word(out + 8 * k, k)
    else:
        for k in range(count):
            put_word(out + 16 * k, example)
            put_word(out + 16 * k + 8, k)
        filler.others = out + 16 * count


@jit
def _pad(job: ExampleJob, filler: Filler, count: int) -> bool:
    """Fills a row up that has so many values; whether there is memory for that."""
    target, out, item = job.targets[filler.number], filler.values, filler.item_bytes
    left = target.row_bytes // item - count
    filler.values = out + target.row_bytes
    return left == 0 or fill_values(filler.dtype, out + item * count, left, target.default)


@inlined
def fill_place(job: ExampleJob, filler: Filler, place: Place, example: int, readable: int) -> bool:
    """Writes the values of a feature of an Example; whether that was done, see `write_values`."""
    count, out = place.count >> 1, filler.values
    is_packed = place.count & 1 == 0
    if is_hashed(filler.dtype, filler.item_bytes):
        write_buckets(job.targets[filler.number], place.start, count, out, readable)
    elif count > 0 and not write_values(filler.dtype, place.start, count, is_packed, out, readable):
        return False
    if filler.form == PADDED:
        return _pad(job, filler, count)
    filler.values = out + filler.item_bytes * count
    filler.total = filler.total + count
    if filler.form == SPARSE:
        _write_indices(filler, example, count, job.is_single != 0)
    elif filler.split_bytes == 8:
        put_word(filler.others, filler.total)
        filler.others = filler.others + 8
    elif filler.split_bytes == 4:
        put_half(filler.others, filler.total)
        filler.others = filler.others + 4
    return True


@jit
def _fill(job: ParseJob, task: int) -> None:
    """Writes what the Examples of a task have."""
    reader, first = reader_of(job, task), job.firsts[task]
    _open_fillers(job, reader, first)
    last = job.firsts[task + 1]
    for begin in range(first, last, BLOCK):
        for place in range(job.place_count):
            wrong = _fill_block(job, reader, place, int64(begin), min(begin + BLOCK, last))
            if wrong != 0:
                reader.code = UNUSUAL
                reader.example = wrong
                return


@jit
def _fill_block(job: ParseJob, reader: Reader, place: int, first: int, last: int) -> int:
    """Writes a feature of some Examples; 0, or the number from 1 on of one that is wrong."""
    filler, count = reader.fillers[place], job.place_count
    for example in range(first, last):
        text = job.examples[example]
        lies = job.places[example * count + place]
        if not fill_place(job, filler, lies, int64(example), text.start + text.size):
            return example + 1
    return int64(0)


@jit
def do_task(job: ParseJob, task: int) -> None:
    """Does a task."""
    if job.is_filling != 0:
        _fill(job, task)
    else:
        _scan(job, task)
