"""Ids of the values of a column: by a vocabulary, and by hashes."""

from __future__ import annotations

from typing import Any

from fusion.ops.ids.cpu_kernels.decimal import (
    TEXT_BYTES,
    is_short,
    short_fingerprint,
    write_decimal,
)
from fusion.ops.ids.cpu_kernels.fingerprint import fingerprint
from fusion.ops.ids.cpu_kernels.layout import (
    DEFAULT,
    FAST,
    LEGACY,
    REMAINDER,
    TASK_VALUES,
    TEXTS,
    IdsCall,
    IdsColumn,
    IdsJob,
    Index,
    Text,
    Vocabulary,
)
from fusion.ops.ids.cpu_kernels.other_hashes import keyed_hash, legacy_hash
from fusion.ops.ids.cpu_kernels.vocabulary import (
    BLOCK,
    FIND_WORDS,
    TEXTS_WORDS,
    find_numbers,
    find_texts,
    number_at,
    take_text,
)
from fusion.ops.ids.cpu_kernels.words import remainder, signed, unsigned
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.strings import string_of

_TEXT_WORDS = TEXT_BYTES // 8 + 1


@jit
def _hash(column: IdsColumn, at: int, size: int) -> Any:
    """The hash of a text."""
    if column.hash == FAST:
        return fingerprint(at, size)
    if column.hash == LEGACY:
        return legacy_hash(at, size)
    return keyed_hash(at, size, unsigned(column.key[0]), unsigned(column.key[1]))


@inlined
def _bucket_of(column: IdsColumn, hashed: Any) -> int:
    return signed(remainder(hashed, unsigned(column.buckets), unsigned(column.reciprocal)))


@inlined
def _bucket_of_number(column: IdsColumn, number: int, memory: Words) -> int:
    """The bucket of an integer; `memory` for its text."""
    if column.hash == FAST and is_short(number):
        return _bucket_of(column, short_fingerprint(number))
    if column.hash == REMAINDER:
        return number % column.buckets
    at, size = write_decimal(number, memory)
    return _bucket_of(column, _hash(column, at, size))


@jit
def _hash_texts(column: IdsColumn, call: IdsCall, first: int, last: int) -> None:
    buckets, reciprocal = unsigned(column.buckets), unsigned(column.reciprocal)
    values, ids = call.values, call.ids
    if column.hash == FAST:
        for k in range(first, last):
            at, size = string_of(values, k)
            ids[k] = signed(remainder(fingerprint(at, size), buckets, reciprocal))
    else:
        for k in range(first, last):
            at, size = string_of(values, k)
            ids[k] = signed(remainder(_hash(column, at, size), buckets, reciprocal))


@jit
def _hash_numbers(column: IdsColumn, call: IdsCall, first: int, last: int) -> None:
    memory, ids = stack_words(int64(_TEXT_WORDS)), call.ids
    for k in range(first, last):
        ids[k] = _bucket_of_number(column, number_at(column, call, k), memory)


@inlined
def _first_bucket(column: IdsColumn, vocabulary: Vocabulary) -> int:
    return column.start if column.start >= 0 else vocabulary.table_size


@inlined
def _replaced(column: IdsColumn, vocabulary: Vocabulary) -> int:
    return vocabulary.default if column.replaced == int64(DEFAULT) else column.replaced


@jit
def make_ids_of_texts(
    column: IdsColumn, index: Index, texts: Text, count: int, memory: Words, ids: Words
) -> None:
    """Makes the ids of up to `BLOCK` texts.

    Args:
      memory: as of `find_texts`.
    """
    if column.vocabulary < 0 and column.hash == FAST:
        buckets, reciprocal = unsigned(column.buckets), unsigned(column.reciprocal)
        for k in range(count):
            hashed = fingerprint(texts[k].at, texts[k].size)
            ids[k] = signed(remainder(hashed, buckets, reciprocal))
        return
    if column.vocabulary < 0:
        for k in range(count):
            ids[k] = _bucket_of(column, _hash(column, texts[k].at, texts[k].size))
        return
    vocabulary = index.vocabularies[column.vocabulary]
    find_texts(as_words(index), vocabulary, texts, count, memory, ids)
    if column.buckets > 0:
        start, replaced = _first_bucket(column, vocabulary), _replaced(column, vocabulary)
        for k in range(count):
            if ids[k] == replaced:
                ids[k] = start + _bucket_of(column, _hash(column, texts[k].at, texts[k].size))


@jit
def _look_texts_up(column: IdsColumn, call: IdsCall, index: Index, first: int, last: int) -> None:
    memory, texts = stack_words(int64(FIND_WORDS)), as_record(Text, stack_words(int64(TEXTS_WORDS)))
    for block in range(first, last, BLOCK):
        count = min(int64(BLOCK), last - block)
        for k in range(count):
            take_text(texts[k], call.values, block + k)
        make_ids_of_texts(column, index, texts, count, memory, as_words(call.ids + 8 * block))


@jit
def _look_numbers_up(column: IdsColumn, call: IdsCall, index: Index, first: int, last: int) -> None:
    vocabulary = index.vocabularies[column.vocabulary]
    memory, numbers = stack_words(int64(_TEXT_WORDS)), stack_words(int64(BLOCK))
    ids, start, replaced = (
        call.ids,
        _first_bucket(column, vocabulary),
        _replaced(column, vocabulary),
    )
    for block in range(first, last, BLOCK):
        count, found = min(int64(BLOCK), last - block), as_words(ids + 8 * block)
        for k in range(count):
            numbers[k] = number_at(column, call, block + k)
        find_numbers(as_words(index), vocabulary, numbers, count, found)
        if column.buckets > 0:
            for k in range(count):
                if found[k] == replaced:
                    found[k] = start + _bucket_of_number(column, numbers[k], memory)


@jit
def do_task(job: IdsJob, task: int) -> None:
    """Makes the ids of some values of a column."""
    number = int64(0)
    while job.firsts[number + 1] <= task:
        number += 1
    call, column = job.calls[number], job.columns[number]
    first = (task - job.firsts[number]) * TASK_VALUES
    last = min(first + TASK_VALUES, call.count)
    if column.vocabulary >= 0:
        if column.source == TEXTS:
            _look_texts_up(column, call, job.index, first, last)
        else:
            _look_numbers_up(column, call, job.index, first, last)
    elif column.source == TEXTS:
        _hash_texts(column, call, first, last)
    else:
        _hash_numbers(column, call, first, last)
