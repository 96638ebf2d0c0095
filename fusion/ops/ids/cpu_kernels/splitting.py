"""Texts are split, and ids are made of their parts where these lie."""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.layout import IdsCall, Text
from fusion.ops.ids.cpu_kernels.split_layout import (
    ALL,
    INDICES,
    NONEMPTY,
    TASK_TEXTS,
    Block,
    Split,
    SplitJob,
    SplitTask,
)
from fusion.ops.ids.cpu_kernels.tasks import make_ids_of_texts
from fusion.ops.ids.cpu_kernels.vocabulary import BLOCK, FIND_WORDS, TEXTS_WORDS, take_text
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import low_zeros, ones, shifted_right, word_at

#: A word of bytes that are 1, and one of bytes whose top bits are not set.
ONES, _LOWER = 0x0101010101010101, 0x7F7F7F7F7F7F7F7F
_WORD_BYTES = 8


@inlined
def _same_bytes(word: int, pattern: int) -> int:
    """The top bits of the bytes of a word that are those of another."""
    other = word ^ pattern
    return ~(((other & int64(_LOWER)) + int64(_LOWER)) | other | int64(_LOWER))


@jit
def _last_bytes(text: Text, at: int, size: int) -> int:
    """A word of the last bytes of a text, fewer than 8, with anything behind them."""
    if at + _WORD_BYTES <= text.readable:
        return word_at(at)
    if text.size >= _WORD_BYTES:
        return shifted_right(word_at(at + size - _WORD_BYTES), 8 * (_WORD_BYTES - size))
    word = int64(0)
    while size > 0:
        size -= 1
        word = (word << 8) | byte(at + size)
    return word


@inlined
def _delimiters_at(split: Split, text: Text, at: int, end: int) -> int:
    """The top bits of those of up to 8 bytes of a text that are the delimiter, which is a byte."""
    left = end - at
    if left >= _WORD_BYTES:
        return _same_bytes(word_at(at), split.pattern)
    return _same_bytes(_last_bytes(text, at, left), split.pattern) & ((1 << 8 * left) - 1)


@jit
def _find_delimiter(split: Split, at: int, end: int) -> int:
    """Where a delimiter of any size comes first; `end` if nowhere."""
    size, delimiter = split.size, split.delimiter
    for start in range(at, end - size + 1):
        same = int64(0)
        while same < size and byte(start + same) == byte(delimiter + same):
            same += 1
        if same == size:
            return start
    return end


@inlined
def _counts(split: Split, size: int) -> int:
    """1 if a part of so many bytes counts, else 0."""
    return int64(1 if size > 0 or split.parts != NONEMPTY else 0)


@jit
def _count_parts(split: Split, text: Text) -> int:
    """How many parts of a text count."""
    at, end, count = text.at, text.at + text.size, int64(0)
    if text.size == 0:
        return int64(1 if split.parts == ALL else 0)
    if split.size == 1 and split.parts != NONEMPTY:
        while at < end:
            count += ones(_delimiters_at(split, text, at, end))
            at += _WORD_BYTES
        return count + 1
    if split.size == 1:
        begin = at
        while at < end:
            found = _delimiters_at(split, text, at, end)
            while found != 0:
                place = at + (low_zeros(found) >> 3)
                count += _counts(split, place - begin)
                begin = place + 1
                found &= found - 1
            at += _WORD_BYTES
        return count + _counts(split, end - begin)
    while True:
        place = _find_delimiter(split, at, end)
        count += _counts(split, place - at)
        if place == end:
            return count
        at = place + split.size


@jit
def _empty_block(job: SplitJob, number: int, block: Block) -> None:
    """Makes the ids of the parts of a block, of a column."""
    column, count = job.columns[number], block.count
    make_ids_of_texts(column, job.index, block.texts, count, block.memory, block.ids)
    block.ids = as_words(block.ids + 8 * count)
    block.count = 0


@inlined
def _add_part(job: SplitJob, number: int, block: Block, at: int, end: int) -> int:
    """Adds a part to a block if it counts; whether it does."""
    if _counts(job.splits[number], end - at) == 0:
        return int64(0)
    if block.count == BLOCK:
        _empty_block(job, number, block)
    part = block.texts[block.count]
    part.at = at
    part.size = end - at
    part.readable = block.readable
    block.count = block.count + 1
    return int64(1)


@jit
def _add_parts(job: SplitJob, number: int, text: Text, block: Block) -> int:
    """Adds the parts of a text of a column to a block; how many there are."""
    split, at, end, count = job.splits[number], text.at, text.at + text.size, int64(0)
    if text.size == 0 and split.parts != ALL:
        return count
    block.readable = text.readable
    begin = at
    while split.size == 1 and at < end:
        found = _delimiters_at(split, text, at, end)
        while found != 0:
            place = at + (low_zeros(found) >> 3)
            count += _add_part(job, number, block, begin, place)
            begin = place + 1
            found &= found - 1
        at += _WORD_BYTES
    place = end if split.size == 1 else _find_delimiter(split, begin, end)
    while place < end:
        count += _add_part(job, number, block, begin, place)
        begin = place + split.size
        place = _find_delimiter(split, begin, end)
    return count + _add_part(job, number, block, begin, end)


@jit
def _fill(job: SplitJob, number: int, first: int, last: int, before: int) -> None:
    """Writes what texts of a column have, in front of whose parts there are so many."""
    call, has_indices = job.calls[number], job.splits[number].form == INDICES
    block, text = stack_record(Block), stack_record(Text)
    block.texts = as_record(Text, stack_words(int64(TEXTS_WORDS)))
    block.memory = stack_words(int64(FIND_WORDS))
    block.ids = as_words(call.ids + 8 * before)
    block.count = 0
    rows, total = as_words(job.rows[number]), before
    for row in range(first, last):
        take_text(text, call.values, row)
        count = _add_parts(job, number, text, block)
        if has_indices:
            for k in range(total, total + count):
                rows[2 * k] = row
                rows[2 * k + 1] = k - total
        else:
            rows[row + 1] = total + count
        total += count
    _empty_block(job, number, block)


@jit
def _count(split: Split, call: IdsCall, task: SplitTask, first: int, last: int) -> None:
    """Counts the parts of texts of a column."""
    text, total, largest = stack_record(Text), int64(0), int64(0)
    for row in range(first, last):
        take_text(text, call.values, row)
        count = _count_parts(split, text)
        total += count
        largest = max(largest, count)
    task.count = total
    task.max_count = largest


@jit
def do_task(job: SplitJob, task: int) -> None:
    """Does some texts of a column."""
    number = int64(0)
    while job.firsts[number + 1] <= task:
        number += 1
    first = (task - job.firsts[number]) * TASK_TEXTS
    last = min(first + TASK_TEXTS, job.calls[number].count)
    if job.is_filling != 0:
        _fill(job, number, first, last, job.tasks[task].count)
    else:
        _count(job.splits[number], job.calls[number], job.tasks[task], first, last)
