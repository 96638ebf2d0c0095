"""Entries that lie in the shards of a table, each with a gathered row of its own.

They are numbered through, shard by shard. Their bags come from `entries`, as those of the entries
of distinct ids do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import copy_element, rows_until
from fusion.gpu_ops.kernels.entries import is_masked
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.kernels.tiles import column_of
from fusion.gpu_ops.language.device import atomic_min, cuda, jit, load, load_as, store, store_as
from fusion.gpu_ops.layout.call import BAD_ROW, UNSORTED_ROW
from fusion.runtime.layout import Int64, Layout
from fusion.runtime.native.jit import int64


class JoinResults(Layout):
    """What `join_parts` finds."""

    negative_rank_bits: Int64  # minus the bits that tell the ranks of entries apart
    negative_rows: Int64  # minus the rows up to the last


#: Rows are not more, and not worth telling apart then.
_LARGEST_ROW = 2**31 - 1
_SIGN = -(2**63)


@jit
def shard_index(firsts: int, shard_count: int, number: int) -> Any:
    """The shard of what has a number, and its index there.

    Args:
        firsts: int64 [shard_count + 1], the first number of each shard, and the number of all.
    """
    shard = column_of(firsts, shard_count, number)
    return shard, number - load(firsts, shard)


@jit
def _lower(address: int, index: int, number: int) -> None:
    """Makes a word a number if that is less; few threads meet there."""
    if number < load(address, int64(index)):
        atomic_min(address, int64(index), number, np.int64)


@jit
def _bits_between(rank: int, other: int) -> int:
    """The lowest bits of two numbers, whole bytes, that tell them apart."""
    different, bits = rank ^ other, int64(0)
    if different < 0:
        return int64(64)
    while bits < 64 and different >> bits > 0:
        bits += 8
    return bits


def join_parts(
    firsts: int,
    indices: int,
    shard_count: int,
    count: int,
    batch: int,
    rows: int,
    ranks: int,
    results: int,
    errors: int,
) -> None:
    """Kernel, a thread for each entry: its row and its rank in the row.

    Args:
        firsts, shard_count, count: see `shard_index`; of all entries.
        indices: int64 [shard_count], addresses of int64 [, 2], row and rank of each entry.
        batch: rows; -1: up to the last, and rows must be in order in each shard.
        rows: out, int32 [count], `batch` for rows outside.
        ranks: out, int64 [count], with the sign changed, so that they are numbers >= 0; 0: none.
        results: out, int64 [2], zeros before, see `JoinResults`.
        errors: an `ErrorRecord`, with shard, index in it and row.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    shard, index = shard_index(firsts, shard_count, k)
    at = load(indices, shard)
    row, rank = load(at, 2 * index), load(at, 2 * index + 1)
    if row < 0 or (batch >= 0 and row >= batch):
        report_error(errors, BAD_ROW, shard, index, row)
        row = batch
    elif batch < 0:
        if index > 0 and row < load(at, 2 * index - 2):
            report_error(errors, UNSORTED_ROW, shard, index, row)
        _lower(results, JoinResults.negative_rows, -rows_until(row))
        row = min(row, int64(_LARGEST_ROW))
    store_as(rows, k, np.int32(row), np.int32)
    if ranks != 0:
        first = load(load(indices, column_of(firsts, shard_count, int64(0))), int64(1))
        _lower(results, JoinResults.negative_rank_bits, -_bits_between(rank, first))
        store(ranks, k, rank ^ int64(_SIGN))


def address_parts(
    order: int,
    count: int,
    shards: int,
    firsts: int,
    shard_count: int,
    row_bytes: int,
    rows: int,
    batch: int,
    masked: int,
    mask_bytes: int,
    flags: int,
    addresses: int,
) -> None:
    """Kernel, a thread for each entry: the address of its row, in the order of the bags.

    Args:
        shards: int64 [shard_count, 2], address and rows of each shard.
        masked, mask_bytes, flags: so many flags by row, whose entries get -1.

    The others are as of `entries.address_entries`.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    entry = int64(load_as(order, k, np.int32))
    row = int64(load_as(rows, entry, np.int32))
    if row >= batch or is_masked(masked, mask_bytes, flags, row):
        store(addresses, k, -1)
        return
    shard, index = shard_index(firsts, shard_count, entry)
    store(addresses, k, load(shards, 2 * shard) + index * row_bytes)


def join_weights(
    order: int,
    count: int,
    weights: int,
    firsts: int,
    shard_count: int,
    item: int,
    target: int,
) -> None:
    """Kernel, a thread for each entry: copies weights of 2, 4 or 8 bytes in an order.

    Args:
        order: int32 [count]; 0: as entries are numbered.
        weights: int64 [shard_count], addresses of those of each shard.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    entry = int64(load_as(order, k, np.int32)) if order != 0 else k
    shard, index = shard_index(firsts, shard_count, entry)
    copy_element(load(weights, shard), index, target, k, item)


def split_weights(
    source: int, count: int, weights: int, firsts: int, shard_count: int, item: int
) -> None:
    """Kernel, a thread for each entry: copies numbers of entries to their shards."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    shard, index = shard_index(firsts, shard_count, k)
    copy_element(source, k, load(weights, shard), index, item)
