"""Splitting ids over the shards of a table.

As `fusion.cpu_ops.partition`: each id gets the number of its shard as a key, a stable sort brings
those of a shard together in their order, and each is written there, as an id inside of it.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import partition
from fusion.gpu_ops.kernels.elements import copy_element, integer_at, store_bits, store_integer
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import cuda, load, load_as, on_device, store, store_as
from fusion.gpu_ops.layout.call import BAD_DEFAULT, BAD_ID
from fusion.runtime.native.jit import int64

locate = on_device(partition.locate)


def key_ids(
    ids: int,
    kind: int,
    count: int,
    rows: int,
    ends: int,
    shards: int,
    strategy: int,
    keys: int,
    errors: int,
) -> None:
    """Kernel, a thread for each id: the shard that it goes to.

    Args:
        ids, kind, count: ids of a kind, see `dtypes`.
        rows, ends, shards, strategy: see `locate`.
        keys: out, int32 [count]; `shards` for ids outside the table.
        errors: an `ErrorRecord`, for such an id.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    number = integer_at(ids, k, kind)
    shard, _ = locate(number, rows, ends, shards, strategy)
    if shard < 0:
        report_error(errors, BAD_ID, int64(0), k, number)
        shard = shards
    store_as(keys, k, np.int32(shard), np.int32)


def place_ids(
    ids: int,
    kind: int,
    count: int,
    rows: int,
    ends: int,
    shards: int,
    strategy: int,
    keys: int,
    order: int,
    starts: int,
    outs: int,
    permutation: int,
) -> None:
    """Kernel, a thread for each id: writes it into its shard.

    Args:
        keys: int32 [count], the shard of each id.
        order: int32 [count], the ids by their shards.
        starts: int64 [shards + 1], where those of each shard start.
        outs: int64 [shards], where the ids of each shard go.
        permutation: out, int32 [count, 2], shard and index in it.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    entry = int64(load_as(order, k, np.int32))
    shard = int64(load_as(keys, entry, np.int32))
    if shard >= shards:
        return
    index = k - load(starts, shard)
    store_as(permutation, 2 * entry, np.int32(shard), np.int32)
    store_as(permutation, 2 * entry + 1, np.int32(index), np.int32)
    _, local = locate(integer_at(ids, entry, kind), rows, ends, shards, strategy)
    store_integer(load(outs, shard), index, local, kind)


def key_candidates(
    ids: int,
    kind: int,
    count: int,
    mask: int,
    fillers: int,
    empty: int,
    filler: int,
    rows: int,
    ends: int,
    shards: int,
    strategy: int,
    keys: int,
    errors: int,
) -> None:
    """Kernel, a thread for each candidate: the shard that it goes to, if it is an entry.

    Candidates are the entries given and then, for each of the first `fillers` rows, one that fills
    it: all of them or none.

    Args:
        mask: int32 [count], 1 for each entry that is kept.
        empty: int32 [fillers], 1 for each row that is filled.
        filler: the id that fills rows.
        keys: out, int32 [count + fillers]; `shards` for those that are no entries.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count + fillers:
        return
    store_as(keys, k, np.int32(shards), np.int32)
    if k < count:
        if load_as(mask, k, np.int32) == 0:
            return
        number = integer_at(ids, k, kind)
    else:
        if load_as(empty, k - count, np.int32) == 0:
            return
        number = filler
    shard, _ = locate(number, rows, ends, shards, strategy)
    if shard >= 0:
        store_as(keys, k, np.int32(shard), np.int32)
    elif k < count:
        report_error(errors, BAD_ID, int64(0), k, number)
    else:
        report_error(errors, BAD_DEFAULT, int64(0), int64(-1), number)


def candidate_rows(indices: int, count: int, fillers: int, batch: int, rows: int) -> None:
    """Kernel, a thread for each candidate: its row, int32; `batch` if that is outside."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count + fillers:
        return
    row = load(indices, 2 * k) if k < count else k - count
    if row < 0 or row >= batch:
        row = batch
    store_as(rows, k, np.int32(row), np.int32)


def place_candidates(
    total: int,
    keys: int,
    order: int,
    starts: int,
    ids: int,
    kind: int,
    count: int,
    indices: int,
    weights: int,
    weight_bytes: int,
    filler: int,
    weight_word: int,
    rows: int,
    ends: int,
    shards: int,
    strategy: int,
    outs: int,
) -> None:
    """Kernel, a thread for each entry: writes it into its shard.

    Args:
        total: the candidates that are entries; they come first in `order`.
        keys, order, starts: as of `place_ids`, of candidates.
        indices: int64 [count, 2].
        weights: of the entries given; 0: all get the weight of fillers.
        filler, weight_word: id of those that fill rows, and the bits of their weight.
        outs: int64 [shards, 3], where ids, indices and weights of each shard go.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= total:
        return
    entry = int64(load_as(order, k, np.int32))
    shard = int64(load_as(keys, entry, np.int32))
    index, out = k - load(starts, shard), outs + 24 * shard
    number, row, rank = filler, entry - count, int64(0)
    if entry < count:
        number = integer_at(ids, entry, kind)
        row, rank = load(indices, 2 * entry), load(indices, 2 * entry + 1)
    _, local = locate(number, rows, ends, shards, strategy)
    store_integer(load(out, int64(0)), index, local, kind)
    store(load(out, int64(1)), 2 * index, row)
    store(load(out, int64(1)), 2 * index + 1, rank)
    if entry < count and weights != 0:
        copy_element(weights, entry, load(out, int64(2)), index, weight_bytes)
    else:
        store_bits(load(out, int64(2)), index, weight_word, weight_bytes)
