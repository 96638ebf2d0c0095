"""The entries of bags whose rows were gathered before: whose they are, and where their rows lie.

With the address of its row for each entry, and where each bag's entries start, `combine` does the
rest: to it addresses are the ids of a table that starts at 0 and has rows of one byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import copy_element, rows_until
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    atomic_add,
    cuda,
    jit,
    load,
    load_as,
    store,
    store_as,
)
from fusion.gpu_ops.layout.call import BAD_ID, BAD_ROW, REPEATED, UNSORTED_ROW
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64


def rows_of_entries(indices: int, count: int, batch: int, rows: int, errors_address: int) -> None:
    """Kernel, a thread for each entry: its row, int32, of int64 indices [count, 2].

    It is `batch` for rows outside, whose entries so come behind all bags.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    row = load(indices, 2 * k)
    if row < 0 or row >= batch:
        report_error(errors, BAD_ROW, int64(0), k, row)
        row = batch
    store_as(rows, k, np.int32(row), np.int32)


def mark_starts(keys: int, order: int, count: int, most: int, starts: int) -> None:
    """Kernel, a thread for each entry and one more: where the entries of each key start.

    Args:
        keys: int32 [count], none above `most`.
        order: int32 [count], the entries by their keys.
        starts: out, int64 [most + 1]; those of `most` and what has no entries included.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k > count:
        return
    before, key = int64(-1), most
    if k > 0:
        before = int64(load_as(keys, int64(load_as(order, k - 1, np.int32)), np.int32))
    if k < count:
        key = int64(load_as(keys, int64(load_as(order, k, np.int32)), np.int32))
    for number in range(before + 1, key + 1):
        store(starts, number, k)


@jit
def is_masked(masked: int, flags: int, row: int) -> bool:
    """Whether a row has one of so many bool flags that is set; 0: there are none."""
    return masked != 0 and row < flags and load_as(masked, row, np.uint8) != 0


@jit
def _row_of(
    unique_idxs: int,
    unique: int,
    permutation: int,
    shards: Words,
    shard_count: int,
    entry: int,
    errors: ErrorRecord,
) -> Any:
    """The shard and the index in it of an entry's row, see `address_entries`; or else -1."""
    index, shard = int64(load_as(unique_idxs, entry, np.int32)), int64(0)
    if index < 0 or index >= unique:
        report_error(errors, BAD_ID, int64(0), entry, index)
        return int64(-1), index
    if shard_count > 1:
        shard = int64(load_as(permutation, 2 * index, np.int32))
        index = int64(load_as(permutation, 2 * index + 1, np.int32))
        if shard < 0 or shard >= shard_count:
            report_error(errors, BAD_ID, int64(0), entry, shard)
            return int64(-1), index
    if index < 0 or index >= shards[2 * shard + 1]:
        report_error(errors, BAD_ID, int64(0), entry, index)
        return int64(-1), index
    return shard, index


def address_entries(
    order: int,
    count: int,
    unique_idxs: int,
    unique: int,
    permutation: int,
    shards: int,
    shard_count: int,
    row_bytes: int,
    rows: int,
    batch: int,
    masked: int,
    flags: int,
    addresses: int,
    errors_address: int,
) -> None:
    """Kernel, a thread for each entry: the address of its row, in the order of the bags.

    Args:
        order: int32 [count], the entries by their bags.
        unique_idxs, unique: int32 [count], which of so many distinct ids each entry has.
        permutation: int32 [unique, 2], shard and index in it of each, not read for one shard.
        shards, shard_count: int64 [shard_count, 2], address and rows of each shard.
        rows: int32 [count], the row of each entry, below `batch` if it counts.
        masked, flags: bool by row, so many, whose entries get -1; 0: there are none.
        addresses: out, int64 [count].
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    store(addresses, k, -1)
    entry = int64(load_as(order, k, np.int32))
    row = int64(load_as(rows, entry, np.int32))
    if row >= batch or is_masked(masked, flags, row):
        return
    shard, index = _row_of(
        unique_idxs, unique, permutation, as_words(shards), shard_count, entry, errors
    )
    if shard >= 0:
        store(addresses, k, load(shards, 2 * shard) + index * row_bytes)


def number_rows(
    count: int,
    unique_idxs: int,
    unique: int,
    permutation: int,
    shards: int,
    firsts: int,
    shard_count: int,
    rows: int,
    batch: int,
    keys: int,
    errors_address: int,
) -> None:
    """Kernel, a thread for each entry: the number of its row among those of all shards.

    Args:
        firsts: int64 [shard_count + 1], the rows of all shards before each, and those of all.
        keys: out, int32 [count]; the number of all rows for entries that have none.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    number = load(firsts, shard_count)
    if int64(load_as(rows, k, np.int32)) < batch:
        shard, index = _row_of(
            unique_idxs, unique, permutation, as_words(shards), shard_count, k, errors
        )
        if shard >= 0:
            number = load(firsts, shard) + index
    store_as(keys, k, np.int32(number), np.int32)


def check_pairs(
    permutation: int,
    unique: int,
    shards: int,
    firsts: int,
    shard_count: int,
    seen: int,
    errors_address: int,
) -> None:
    """Kernel, a thread for each distinct id: whether its row is there, and no other id's.

    Args:
        seen: int32, by row of all shards, zeros before.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= unique:
        return
    shard = int64(load_as(permutation, 2 * k, np.int32))
    index = int64(load_as(permutation, 2 * k + 1, np.int32))
    if shard < 0 or shard >= shard_count:
        report_error(errors, BAD_ID, int64(0), k, shard)
    elif index < 0 or index >= load(shards, 2 * shard + 1):
        report_error(errors, BAD_ID, shard, k, index)
    elif atomic_add(seen, load(firsts, shard) + index, np.int32(1), np.int32) != 0:
        report_error(errors, REPEATED, shard, k, index)


def find_last_row(indices: int, count: int, rows: int, errors_address: int) -> None:
    """Kernel, a thread for each entry: whether rows are in order, and how many there are.

    Args:
        indices: int64 [count, 2].
        rows: out, int64 [1], 0 before: the rows up to that of the last entry.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    row = load(indices, 2 * k)
    if k > 0 and row < load(indices, 2 * k - 2):
        report_error(errors, UNSORTED_ROW, int64(0), k, row)
    if k == count - 1:
        store(rows, int64(0), rows_until(row))


def count_entries(starts: int, batch: int, counts: int) -> None:
    """Kernel, a thread for each bag: how many entries it has, int32."""
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row < batch:
        store_as(counts, row, np.int32(load(starts, row + 1) - load(starts, row)), np.int32)


def order_weights(order: int, count: int, weights: int, item: int, target: int) -> None:
    """Kernel, a thread for each entry: copies weights of 2, 4 or 8 bytes in the order of bags."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    copy_element(as_words(weights), int64(load_as(order, k, np.int32)), as_words(target), k, item)
