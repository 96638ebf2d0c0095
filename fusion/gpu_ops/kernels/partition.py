"""Splitting ids over the shards of a table.

As `fusion.cpu_ops.partition`: each id gets the number of its shard as a key, a stable sort brings
those of a shard together in their order, and each is written there, as an id inside of it.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import partition
from fusion.gpu_ops.kernels.elements import integer_at, store_integer
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    cuda,
    load,
    load_as,
    on_device,
    store_as,
)
from fusion.gpu_ops.layout.call import BAD_ID
from fusion.runtime.cuda.layout import ErrorRecord
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
    errors_address: int,
) -> None:
    """Kernel, a thread for each id: the shard that it goes to.

    Args:
        ids, kind, count: ids of a kind, see `dtypes`.
        rows, ends, shards, strategy: see `locate`.
        keys: out, int32 [count]; `shards` for ids outside the table.
        errors: an `ErrorRecord`, for such an id.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    number = integer_at(ids, k, kind)
    shard, _ = locate(number, as_words(rows), as_words(ends), shards, strategy)
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
    _, local = locate(
        integer_at(ids, entry, kind), as_words(rows), as_words(ends), shards, strategy
    )
    store_integer(as_words(load(outs, shard)), index, local, kind)
