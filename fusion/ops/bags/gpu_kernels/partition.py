"""Splitting ids over the shards of a table.

As `bags.cpu_kernels.partition`: each id gets the number of its shard as a key, a stable sort brings
those of a shard together in their order, and each is written there, as an id inside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import integer_at, store_integer
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    cuda,
    jit,
    load,
    load_as,
    on_device,
    store_as,
)
from fusion.gpu_ops.layout.call import BAD_ID
from fusion.gpu_ops.layout.records import GroupOrder, Ids, Shards
from fusion.ops.bags.cpu_kernels import partition
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64

locate = on_device(partition.locate)


@jit
def _located(ids: Ids, shards: Shards, k: int) -> Any:
    """An id, its shard and the id inside of it, see `locate`."""
    number = integer_at(ids.address, k, ids.dtype)
    ends = as_words(shards.ends)
    shard, local = locate(number, as_words(shards.rows), ends, shards.number, shards.strategy)
    return number, shard, local


def key_ids(ids: Ids, shards: Shards, owners: int, errors_address: int) -> None:
    """Kernel, a thread for each id: the shard that it goes to.

    Args:
        owners: out, as of `GroupOrder`; in no shard are ids outside the table.
        errors: an `ErrorRecord`, for such an id.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ids.number:
        return
    number, shard, _ = _located(ids, shards, k)
    if shard < 0:
        report_error(errors, BAD_ID, int64(0), k, number)
        shard = shards.number
    store_as(owners, k, np.int32(shard), np.int32)


def place_ids(ids: Ids, shards: Shards, split: GroupOrder, outs: int, permutation: int) -> None:
    """Kernel, a thread for each id: writes it into its shard.

    Args:
        split: the ids by their shards.
        outs: int64 by shard, addresses of what each gets, of the ids' dtype.
        permutation: out, int32 [number of ids, 2], shard and index in it.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ids.number:
        return
    entry = int64(load_as(split.order, k, np.int32))
    shard = int64(load_as(split.owners, entry, np.int32))
    if shard >= shards.number:
        return
    index = k - load(split.starts, shard)
    store_as(permutation, 2 * entry, np.int32(shard), np.int32)
    store_as(permutation, 2 * entry + 1, np.int32(index), np.int32)
    _, _, local = _located(ids, shards, entry)
    store_integer(as_words(load(outs, shard)), index, local, ids.dtype)
