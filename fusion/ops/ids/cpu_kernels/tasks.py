"""Values of a column, hashed into buckets."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.ops.ids.cpu_kernels.decimal import (
    TEXT_BYTES,
    is_short,
    short_fingerprint,
    write_decimal,
)
from fusion.ops.ids.cpu_kernels.fingerprint import fingerprint
from fusion.ops.ids.cpu_kernels.layout import (
    FAST,
    INT32,
    LEGACY,
    TASK_VALUES,
    TEXTS,
    IdsCall,
    IdsColumn,
    IdsJob,
)
from fusion.ops.ids.cpu_kernels.other_hashes import keyed_hash, legacy_hash
from fusion.ops.ids.cpu_kernels.words import remainder, signed, unsigned
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.native.strings import string_of


@jit
def _hash(column: IdsColumn, at: int, size: int) -> Any:
    """The hash of a text."""
    if column.hash == FAST:
        return fingerprint(at, size)
    if column.hash == LEGACY:
        return legacy_hash(at, size)
    return keyed_hash(at, size, unsigned(column.key[0]), unsigned(column.key[1]))


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
    buckets, reciprocal = unsigned(column.buckets), unsigned(column.reciprocal)
    memory, is_fast = stack_words(int64(TEXT_BYTES // 8 + 1)), column.hash == FAST
    is_half, values, ids = column.source == INT32, call.values, call.ids
    for k in range(first, last):
        number = int64(load_as(values, k, np.int32)) if is_half else load(values, k)
        if is_fast and is_short(number):
            hashed = short_fingerprint(number)
        else:
            at, size = write_decimal(number, memory)
            hashed = _hash(column, at, size)
        ids[k] = signed(remainder(hashed, buckets, reciprocal))


@jit
def do_task(job: IdsJob, task: int) -> None:
    """Hashes some values of a column."""
    column = int64(0)
    while job.firsts[column + 1] <= task:
        column += 1
    call = job.calls[column]
    first = (task - job.firsts[column]) * TASK_VALUES
    last = min(first + TASK_VALUES, call.count)
    if job.columns[column].source == TEXTS:
        _hash_texts(job.columns[column], call, first, last)
    else:
        _hash_numbers(job.columns[column], call, first, last)
