"""Distinct ids of a column's listed entries, and the index of each entry's id among them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.elements import Batch, put_weight, weight_at
from fusion.cpu_ops.unique import SPREAD
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.tensorflow.dtypes import FLOAT64


class Numbering(NamedTuple):
    """The output of numbering a column's entries, in compiled code: addresses.

    Attributes:
      keys: out, of the distinct ids, int64.
      first: where the column's part of the next two starts.
      unique_idxs: out, of each entry its index among the distinct ids, int32.
      weights: out, of each entry, of the dtype of the column's.
      splits: out, where each row's entries start, int32 [count + 1].
      slots: scratch, int32 [2**bits], zero; a slot holds the number of its key plus one.
      bits: of a number of slots that is at least twice that of ids.
    """

    keys: Any
    first: Any
    unique_idxs: Any
    weights: Any
    splits: Any
    slots: Any
    bits: Any


@jit
def number_entries(batch: Batch, numbering: Numbering) -> tuple[int, int]:
    """Numbers the distinct ids of listed entries in order of first occurrence.

    An empty row that is to be filled has the id max(default_id, 0) as well, but an entry only with
    default_id >= 0.

    Args:
      batch: rows of ids listed by `list_unfilled`, of rows of one byte from address 0 on. Its
        starts are put right.

    Returns:
      The number of distinct ids, and the index after the last entry.
    """
    fills = batch.column.fill_empty_row != 0
    empty = _tidy_starts(batch)
    total = batch.starts[batch.count]
    if not fills or empty == batch.count:
        key_count = _number_run(batch, numbering, int64(0), total, int64(0))
    elif batch.column.default_id < 0:
        # The index of the first filler alone decides on the order of ids.
        before = batch.starts[empty]
        key_count = _number_run(batch, numbering, int64(0), before, int64(0))
        key_count = max(key_count, _number_of(numbering, int64(0), key_count) + 1)
        key_count = _number_run(batch, numbering, before, total, key_count)
    else:
        return _number_and_fill(batch, numbering)
    for row in range(batch.count + 1):
        end = numbering.first + batch.starts[row]
        store_as(numbering.splits, row, np.int32(end), np.int32)
    if batch.column.use_sparse_weights != 0:
        for k in range(total):
            _put_weight(batch, numbering, k, numbering.first + k)
    return key_count, numbering.first + total


@jit
def _tidy_starts(batch: Batch) -> int:
    """Sets the starts after empty rows; returns the first empty row, or the number of rows."""
    batch.starts[0] = 0
    last, empty = int64(0), batch.count
    for row in range(batch.count):
        end = max(batch.starts[row + 1], last)
        if end == last:
            empty = min(empty, int64(row))
        batch.starts[row + 1] = end
        last = end
    return empty


@jit
def _number_of(numbering: Numbering, key: int, key_count: int) -> int:
    """The index of an id among the `key_count` distinct ones; a new one is appended."""
    mask = (int64(1) << numbering.bits) - 1
    slot = int64((np.uint64(key) * SPREAD) >> np.uint64(64 - numbering.bits))
    while True:
        index = int64(load_as(numbering.slots, slot, np.int32)) - 1
        if index < 0:
            store_as(numbering.slots, slot, np.int32(key_count + 1), np.int32)
            store(numbering.keys, key_count, key)
            return key_count
        if load(numbering.keys, index) == key:
            return index
        slot = (slot + 1) & mask


@jit
def _number_run(batch: Batch, numbering: Numbering, start: int, end: int, key_count: int) -> int:
    """Numbers listed entries that have no filler between them; returns the number of ids."""
    unique_idxs = numbering.unique_idxs + 4 * numbering.first
    for k in range(start, end):
        index = _number_of(numbering, batch.addresses[k], key_count)
        key_count = max(key_count, index + 1)
        store_as(unique_idxs, k, np.int32(index), np.int32)
    return key_count


@jit
def _number_and_fill(batch: Batch, numbering: Numbering) -> tuple[int, int]:
    """As `number_entries`, with an entry for each empty row."""
    column = batch.column
    dtype = batch.source.table_dtype
    weighted = column.use_sparse_weights != 0
    filler = column.default_id
    weight = column.default_weight
    key_count, entry = int64(0), numbering.first
    for row in range(batch.count):
        store_as(numbering.splits, row, np.int32(entry), np.int32)
        start, end = batch.starts[row], batch.starts[row + 1]
        if start == end:
            index = _number_of(numbering, filler, key_count)
            key_count = max(key_count, index + 1)
            store_as(numbering.unique_idxs, entry, np.int32(index), np.int32)
            if weighted:
                put_weight(numbering.weights, entry, weight, dtype)
            entry += 1
        for k in range(start, end):
            index = _number_of(numbering, batch.addresses[k], key_count)
            key_count = max(key_count, index + 1)
            store_as(numbering.unique_idxs, entry, np.int32(index), np.int32)
            if weighted:
                _put_weight(batch, numbering, int64(k), entry)
            entry += 1
    store_as(numbering.splits, batch.count, np.int32(entry), np.int32)
    return key_count, entry


@jit
def _put_weight(batch: Batch, numbering: Numbering, listed: int, entry: int) -> None:
    """Copies the weight of a listed entry; it comes in the compute dtype."""
    dtype = batch.source.table_dtype
    if dtype == FLOAT64:
        weight = weight_at(batch.weights, listed, dtype)
    else:
        weight = np.float64(load_as(batch.weights, listed, np.float32))
    put_weight(numbering.weights, entry, weight, dtype)
