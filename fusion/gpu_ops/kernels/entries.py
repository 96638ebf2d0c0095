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
from fusion.gpu_ops.layout.records import GatheredRows, GroupOrder
from fusion.runtime.cuda.layout import ErrorRecord
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


@jit
def _owner_of(ordered: GroupOrder, k: int) -> int:
    """The group of the element at an index of the order."""
    return int64(load_as(ordered.owners, int64(load_as(ordered.order, k, np.int32)), np.int32))


def mark_starts(ordered: GroupOrder) -> None:
    """Kernel, a thread for each element and one more: writes where those of each group start."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k > ordered.number:
        return
    before, group = int64(-1), ordered.groups
    if k > 0:
        before = _owner_of(ordered, k - 1)
    if k < ordered.number:
        group = _owner_of(ordered, k)
    for number in range(before + 1, group + 1):
        store(ordered.starts, number, k)


@jit
def is_masked(masked: int, flags: int, row: int) -> bool:
    """Whether a row has one of so many bool flags that is set; 0: there are none."""
    return masked != 0 and row < flags and load_as(masked, row, np.uint8) != 0


@jit
def _row_of(rows: GatheredRows, unique_idxs: int, entry: int, errors: ErrorRecord) -> Any:
    """The shard and the index in it of an entry's row; or else -1."""
    index, shard = int64(load_as(unique_idxs, entry, np.int32)), int64(0)
    if index < 0 or index >= rows.number:
        report_error(errors, BAD_ID, int64(0), entry, index)
        return int64(-1), index
    if rows.shard_count > 1:
        shard = int64(load_as(rows.permutation, 2 * index, np.int32))
        index = int64(load_as(rows.permutation, 2 * index + 1, np.int32))
        if shard < 0 or shard >= rows.shard_count:
            report_error(errors, BAD_ID, int64(0), entry, shard)
            return int64(-1), index
    if index < 0 or index >= load(rows.shards, 2 * shard + 1):
        report_error(errors, BAD_ID, int64(0), entry, index)
        return int64(-1), index
    return shard, index


def address_entries(
    ordered: GroupOrder,
    unique_idxs: int,
    rows: GatheredRows,
    masked: int,
    flags: int,
    addresses: int,
    errors_address: int,
) -> None:
    """Kernel, a thread for each entry: the address of its row, in the order of the bags.

    Args:
        ordered: the entries by their bags.
        unique_idxs: int32, which distinct id each entry has.
        masked, flags: bool by row, so many, whose entries get -1; 0: there are none.
        addresses: out, int64.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ordered.number:
        return
    store(addresses, k, -1)
    entry = int64(load_as(ordered.order, k, np.int32))
    row = int64(load_as(ordered.owners, entry, np.int32))
    if row >= ordered.groups or is_masked(masked, flags, row):
        return
    shard, index = _row_of(rows, unique_idxs, entry, errors)
    if shard >= 0:
        store(addresses, k, load(rows.shards, 2 * shard) + index * rows.row_bytes)


def number_rows(
    ordered: GroupOrder, unique_idxs: int, rows: GatheredRows, keys: int, errors_address: int
) -> None:
    """Kernel, a thread for each entry: the number of its row among those of all shards.

    Args:
        ordered, unique_idxs: see `address_entries`.
        keys: out, as of `GradBags`.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ordered.number:
        return
    number = load(rows.firsts, rows.shard_count)
    if int64(load_as(ordered.owners, k, np.int32)) < ordered.groups:
        shard, index = _row_of(rows, unique_idxs, k, errors)
        if shard >= 0:
            number = load(rows.firsts, shard) + index
    store_as(keys, k, np.int32(number), np.int32)


def check_pairs(rows: GatheredRows, seen: int, errors_address: int) -> None:
    """Kernel, a thread for each distinct id: whether its row is there, and no other id's.

    Args:
        seen: int32, by row of all shards, zeros before.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= rows.number:
        return
    shard = int64(load_as(rows.permutation, 2 * k, np.int32))
    index = int64(load_as(rows.permutation, 2 * k + 1, np.int32))
    if shard < 0 or shard >= rows.shard_count:
        report_error(errors, BAD_ID, int64(0), k, shard)
    elif index < 0 or index >= load(rows.shards, 2 * shard + 1):
        report_error(errors, BAD_ID, shard, k, index)
    elif atomic_add(seen, load(rows.firsts, shard) + index, np.int32(1), np.int32) != 0:
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
