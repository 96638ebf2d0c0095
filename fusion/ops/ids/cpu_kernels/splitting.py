"""Texts are split, and ids are made of their parts where these lie."""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.layout import IdsCall, Text
from fusion.ops.ids.cpu_kernels.split_layout import (
    INDICES,
    NONEMPTY,
    OF_TEXTS,
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
from fusion.runtime.native.unaligned import low_zeros, word_at

#: A word of bytes that are 1, and one of their top bits.
ONES, _TOPS = 0x0101010101010101, -0x7F7F7F7F7F7F7F80


@jit
def _find_byte(at: int, end: int, pattern: int) -> int:
    """Where the byte comes first that a word consists of; `end` if nowhere."""
    while at + 8 <= end:
        other = word_at(at) ^ pattern
        # The lowest bit is right; above it there may be wrong ones.
        found = (other - int64(ONES)) & ~other & int64(_TOPS)
        if found != 0:
            return at + (low_zeros(found) >> 3)
        at += 8
    while at < end and byte(at) != pattern & 0xFF:
        at += 1
    return at


@jit
def _find_delimiter(split: Split, at: int, end: int) -> int:
    """Where the delimiter comes first; `end` if nowhere."""
    size, delimiter = split.size, split.delimiter
    if size == 1:
        return _find_byte(at, end, split.pattern)
    last = end - size + 1
    while at < last:
        at = _find_byte(at, last, split.pattern)
        same = int64(1)
        while at < last and same < size and byte(at + same) == byte(delimiter + same):
            same += 1
        if at >= last or same == size:
            return at if at < last else end
        at += 1
    return end


@inlined
def _counts(split: Split, size: int) -> bool:
    """Whether a part of so many bytes counts."""
    return size > 0 or split.parts != NONEMPTY


@jit
def _count_parts(split: Split, text: Text) -> int:
    """How many parts of a text count."""
    at, end, count = text.at, text.at + text.size, int64(0)
    if text.size == 0 and split.parts == OF_TEXTS:
        return count
    while True:
        found = _find_delimiter(split, at, end)
        count += int64(1 if _counts(split, found - at) else 0)
        if found == end:
            return count
        at = found + split.size


@jit
def _empty_block(job: SplitJob, number: int, block: Block) -> None:
    """Makes the ids of the parts of a block, of a column."""
    column, count = job.columns[number], block.count
    make_ids_of_texts(column, job.index, block.texts, count, block.memory, block.ids)
    block.ids = as_words(block.ids + 8 * count)
    block.count = 0


@jit
def _add_parts(job: SplitJob, number: int, text: Text, block: Block) -> int:
    """Adds the parts of a text of a column to a block; how many there are."""
    split, at, end, count = job.splits[number], text.at, text.at + text.size, int64(0)
    if text.size == 0 and split.parts == OF_TEXTS:
        return count
    while True:
        found = _find_delimiter(split, at, end)
        if _counts(split, found - at):
            if block.count == BLOCK:
                _empty_block(job, number, block)
            part = block.texts[block.count]
            part.at = at
            part.size = found - at
            part.readable = text.readable
            block.count = block.count + 1
            count += 1
        if found == end:
            return count
        at = found + split.size


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
