"""Crosses of features: all combinations of the values of a row, hashed into buckets.

A combination takes one value of each feature; the value of the last feature changes fastest. Its
hash is a chain: each value's word is concatenated, by FarmHash's way to join two fingerprints, to
that of the values before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.ops.ids.cpu_kernels.cross_layout import (
    BLOCK_CURSORS,
    BLOCK_IS_SINGLE,
    BLOCK_ROWS,
    BLOCK_START,
    HALF,
    INDICES,
    INT32,
    INT64,
    KEYED_TEXT,
    MASKED,
    ROW_SPLITS,
    SPARSE,
    TEXT,
    Cross,
    CrossCall,
    CrossFeature,
    CrossJob,
    FeatureCall,
)
from fusion.ops.ids.cpu_kernels.fingerprint import concatenated, fingerprint
from fusion.ops.ids.cpu_kernels.other_hashes import keyed_hash
from fusion.ops.ids.cpu_kernels.words import remainder, signed, unsigned
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.memory import load, load_as
from fusion.runtime.native.pointers import as_words, stack_words
from fusion.runtime.native.strings import STRING_BYTES, string_of

#: For so many ids there is no memory; all larger numbers count as this.
MANY_IDS = 1 << 46
_SMALL = 1 << 22
#: The bytes of an integer that HALF and KEYED_HALF hash: those of a C++ enum.
_HALF_BYTES = 4


@jit
def _word(cross: Cross, feature: CrossFeature, values: int, k: int) -> Any:
    """What stands for a value in the chain."""
    if feature.hash == INT64:
        return unsigned(load(values, k))
    if feature.hash == INT32:
        return unsigned(int64(load_as(values, k, np.int32)))
    if feature.hash == HALF:
        return fingerprint(values + feature.item_bytes * k, int64(_HALF_BYTES))
    if feature.hash == TEXT or feature.hash == KEYED_TEXT:
        at, size = string_of(values, k)
        if feature.hash == TEXT:
            return fingerprint(at, size)
    else:
        at, size = values + feature.item_bytes * k, int64(_HALF_BYTES)
    return keyed_hash(at, size, unsigned(cross.key[0]), unsigned(cross.key[1]))


@inlined
def _is_ignored(feature: CrossFeature, values: int, k: int) -> bool:
    """Whether a value of a MASKED feature is none."""
    if feature.item_bytes == STRING_BYTES:
        return string_of(values, k)[1] == 0
    if feature.item_bytes == 8:
        return load(values, k) == feature.ignored
    return int64(load_as(values, k, np.int32)) == feature.ignored


@inlined
def _end_of_row(call: FeatureCall, row: int, at: int) -> int:
    """Where the values of a row of a SPARSE feature end that begin at a cursor.

    An entry of another row ends them, also of a row before: it is passed in its row, or never.
    """
    while at < call.count and call.indices[2 * at] == row:
        at += 1
    return at


@inlined
def product_of_counts(one: int, other: int) -> int:
    """The product of two counts, or `MANY_IDS`."""
    if one < _SMALL and other < _SMALL:
        return one * other
    if other != 0 and one > int64(MANY_IDS) // other:
        return int64(MANY_IDS)
    return one * other


@jit
def _count_values(
    feature: CrossFeature, call: FeatureCall, at: int, rows: tuple[int, int], counts: Words
) -> int:
    """Multiplies counts of rows by how many values a feature has there; returns the cursor."""
    first, last = rows
    for row in range(first, last):
        count = call.count
        if feature.form == SPARSE:
            end = _end_of_row(call, int64(row), at)
            count = end - at
            at = end
        elif feature.form == MASKED:
            for k in range(row * call.count, (row + 1) * call.count):
                if _is_ignored(feature, call.values, int64(k)):
                    count -= 1
        counts[row - first] = product_of_counts(counts[row - first], count)
    return at


@jit
def _count_block(cross: Cross, call: CrossCall, block: int, cursors: Words, counts: Words) -> None:
    """Counts the ids of a block, and notes where it begins."""
    record = _block_of(cross, call, block)
    first, last = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, call.row_count)
    for k in range(last - first):
        counts[k] = 1
    is_single = True
    for index in range(cross.feature_count):
        feature, of_call = cross.features[index], call.features[index]
        record[BLOCK_CURSORS + index] = cursors[index]
        cursors[index] = _count_values(feature, of_call, cursors[index], (first, last), counts)
        is_single = is_single and (feature.form == SPARSE or of_call.count == 1)
    total, max_count = call.total, call.max_count
    record[BLOCK_START] = total
    for k in range(last - first):
        total = min(total + counts[k], int64(MANY_IDS))
        max_count = max(max_count, counts[k])
        is_single = is_single and counts[k] == 1
    record[BLOCK_IS_SINGLE] = 1 if is_single else 0
    call.total = total
    call.max_count = max_count


@jit
def count_cross(cross: Cross, call: CrossCall) -> None:
    """Counts the ids of a cross whose rows differ."""
    counts, cursors = stack_words(int64(BLOCK_ROWS)), stack_words(cross.feature_count)
    for index in range(cross.feature_count):
        cursors[index] = 0
    for block in range((call.row_count + BLOCK_ROWS - 1) // BLOCK_ROWS):
        _count_block(cross, call, int64(block), cursors, counts)


@inlined
def _block_of(cross: Cross, call: CrossCall, block: int) -> Words:
    """The record of a block."""
    return as_words(call.blocks + 8 * block * (BLOCK_CURSORS + cross.feature_count))


@jit
def _chain_column(
    cross: Cross, feature: CrossFeature, values: int, at: int, ids: Words, count: int
) -> None:
    """Joins one value after the other to the chain of each id."""
    if feature.hash == TEXT:
        for k in range(count):
            start, size = string_of(values, at + k)
            ids[k] = signed(concatenated(unsigned(ids[k]), fingerprint(start, size)))
    elif feature.hash == INT64:
        for k in range(count):
            ids[k] = signed(concatenated(unsigned(ids[k]), unsigned(load(values, at + k))))
    else:
        for k in range(count):
            word = _word(cross, feature, values, at + k)
            ids[k] = signed(concatenated(unsigned(ids[k]), word))


@jit
def _fill_singles(
    cross: Cross, call: CrossCall, rows: tuple[int, int], cursors: Words, ids: Words
) -> None:
    """Crosses rows with one id each: column by column."""
    first, last = rows
    for index in range(cross.feature_count):
        feature, of_call = cross.features[index], call.features[index]
        at = cursors[index] if feature.form == SPARSE else first
        if index == 0:
            for k in range(last - first):
                ids[k] = cross.seed
            if cross.is_seeded == 0:
                for k in range(last - first):
                    ids[k] = signed(_word(cross, feature, of_call.values, at + k))
                continue
        _chain_column(cross, feature, of_call.values, at, ids, last - first)
    buckets, reciprocal = unsigned(cross.buckets), unsigned(cross.reciprocal)
    for k in range(last - first):
        ids[k] = signed(remainder(unsigned(ids[k]), buckets, reciprocal))


@inlined
def _first_value(feature: CrossFeature, call: FeatureCall, at: int, end: int) -> int:
    """The first value from a position on, or the end."""
    if feature.form == MASKED:
        while at < end and _is_ignored(feature, call.values, at):
            at += 1
    return at


@jit
def _open_row(cross: Cross, call: CrossCall, row: int, cursors: Words, spans: Words) -> bool:
    """Finds the values of a row; returns whether each feature has one.

    Args:
        spans: of each feature the current value, the first one and the end.
    """
    is_crossed = True
    for index in range(cross.feature_count):
        feature, of_call = cross.features[index], call.features[index]
        if feature.form == SPARSE:
            first = cursors[index]
            end = _end_of_row(of_call, row, first)
            cursors[index] = end
        else:
            end = (row + 1) * of_call.count
            first = _first_value(feature, of_call, row * of_call.count, end)
        spans[3 * index] = first
        spans[3 * index + 1] = first
        spans[3 * index + 2] = end
        is_crossed = is_crossed and first < end
    return is_crossed


@jit
def _next_combination(cross: Cross, call: CrossCall, spans: Words) -> int:
    """Goes on to the next combination.

    Returns:
        The first feature whose value is another one now; -1 if there was none left.
    """
    index = cross.feature_count - 1
    while index >= 0:
        end = spans[3 * index + 2]
        at = _first_value(cross.features[index], call.features[index], spans[3 * index] + 1, end)
        if at < end:
            spans[3 * index] = at
            return index
        spans[3 * index] = spans[3 * index + 1]
        index -= 1
    return index


@jit
def _fill_row(cross: Cross, call: CrossCall, spans: Words, chain: Words, ids: Words) -> int:
    """Crosses a row whose features all have values; returns how many ids it has."""
    buckets, reciprocal = unsigned(cross.buckets), unsigned(cross.reciprocal)
    index, count = int64(0), int64(0)
    while index >= 0:
        # What is in front of the first feature that changed is in the chain.
        while index < cross.feature_count:
            feature = cross.features[index]
            word = _word(cross, feature, call.features[index].values, spans[3 * index])
            if index > 0 or cross.is_seeded != 0:
                word = concatenated(unsigned(chain[index]), word)
            chain[index + 1] = signed(word)
            index += 1
        ids[count] = signed(remainder(unsigned(chain[index]), buckets, reciprocal))
        count += 1
        index = _next_combination(cross, call, spans)
    return count


@jit
def _fill_rows(
    cross: Cross, call: CrossCall, rows: tuple[int, int], cursors: Words, start: int
) -> None:
    """Crosses rows with any number of ids; `cursors` go on."""
    spans = stack_words(3 * cross.feature_count)
    chain = stack_words(cross.feature_count + 1)
    chain[0] = cross.seed
    first, last = rows
    for row in range(first, last):
        count = int64(0)
        if _open_row(cross, call, int64(row), cursors, spans):
            count = _fill_row(cross, call, spans, chain, as_words(call.ids + 8 * start))
        _put_entry_rows(cross, call, int64(row), start, count)
        start += count


@inlined
def _put_entry_rows(cross: Cross, call: CrossCall, row: int, start: int, count: int) -> None:
    """Writes which row ids are of."""
    if cross.form == ROW_SPLITS:
        call.entry_rows[row] = start
    elif cross.form == INDICES:
        for k in range(count):
            call.entry_rows[2 * (start + k)] = row
            call.entry_rows[2 * (start + k) + 1] = k


@jit
def _fill_block(cross: Cross, call: CrossCall, block: int) -> None:
    """Crosses the rows of a block."""
    first, last = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, call.row_count)
    start, is_single = first * call.width, call.width == 1
    cursors = stack_words(cross.feature_count)
    if call.width < 0:
        record = _block_of(cross, call, block)
        start, is_single = record[BLOCK_START], record[BLOCK_IS_SINGLE] != 0
        for index in range(cross.feature_count):
            cursors[index] = record[BLOCK_CURSORS + index]
    if not is_single:
        _fill_rows(cross, call, (first, last), cursors, start)
        return
    _fill_singles(cross, call, (first, last), cursors, as_words(call.ids + 8 * start))
    for row in range(first, last):
        _put_entry_rows(cross, call, int64(row), start + row - first, int64(1))


@jit
def do_task(job: CrossJob, task: int) -> None:
    """Counts the ids of a cross, or writes those of some rows."""
    if job.is_filling == 0:
        if job.calls[task].width < 0:
            count_cross(job.crosses[task], job.calls[task])
        return
    cross = int64(0)
    while job.firsts[cross + 1] <= task:
        cross += 1
    _fill_block(job.crosses[cross], job.calls[cross], task - job.firsts[cross])
