"""Splitting ids over the shards of a table."""

from __future__ import annotations

from numba import carray

from fusion.ops.tables.cpu_kernels.layout import EV_BUCKETS
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import pointer
from fusion.runtime.native.pointers import as_words

#: The strategies, by their place among the values of the op's attr.
DIV, MOD, MOD_EV = range(3)


@jit
def _div_shard(key: int, ends: Words, n_shards: int) -> int:
    """The shard whose rows hold `key`; `ends` are the cumulative rows. n_shards if none does."""
    low, high = int64(0), int64(n_shards)
    while low < high:
        middle = (low + high) // 2
        if key < ends[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def locate(key: int, rows: Words, ends: Words, n_shards: int, strategy: int) -> tuple[int, int]:
    """The shard of `key` and its id there; shard -1 if the key is outside the table.

    Args:
      rows, ends: addresses of int64 [n_shards], the rows of each shard and the cumulative ones.
      strategy: DIV, MOD or MOD_EV.
    """
    shard, local = int64(-1), int64(key)
    if strategy == MOD_EV:
        # Floor modulo, so that every key has a shard: hash tables take any key.
        shard = (key % EV_BUCKETS) % n_shards
    elif key >= 0:
        if strategy == DIV:
            shard = _div_shard(key, ends, n_shards)
            if shard == n_shards:
                return int64(-1), local
            local = key - (ends[shard] - rows[shard])
        else:
            shard, local = key % n_shards, key // n_shards
            if local >= rows[shard]:
                return int64(-1), local
    return int64(shard), int64(local)


@jit
def assign_shards(
    ids: Array, rows: Array, ends: Array, strategy: int, permutation: Array, counts: Array
) -> int:
    """Finds the shard of each id and its index there; stable.

    Args:
      ids: [u].
      rows: int64 [P], the rows of each shard.
      ends: scratch, int64 [P].
      strategy: DIV, MOD or MOD_EV.
      permutation: out, int32 [u, 2]: shard of input i, index in it.
      counts: out, int64 [P]: ids per shard.

    Returns:
      -1, or the index of an id that is outside the table.
    """
    total = int64(0)
    for shard in range(rows.shape[0]):
        total += rows[shard]
        ends[shard] = total
        counts[shard] = 0
    n_shards, rows_at, ends_at = (
        int64(rows.shape[0]),
        as_words(rows.ctypes.data),
        as_words(ends.ctypes.data),
    )
    for k in range(ids.shape[0]):
        shard, _ = locate(int64(ids[k]), rows_at, ends_at, n_shards, strategy)
        if shard < 0:
            return k
        permutation[k, 0] = shard
        permutation[k, 1] = counts[shard]
        counts[shard] += 1
    return -1


@jit
def split_ids(
    ids: Array,
    rows: Array,
    ends: Array,
    strategy: int,
    permutation: Array,
    counts: Array,
    addresses: Array,
) -> None:
    """Writes each id, as an id inside its shard, to its index there.

    Args:
      ids, rows, ends, strategy, permutation, counts: as `assign_shards` leaves them.
      addresses: int64 [P], where the ids of each shard go, of the dtype of `ids`.
    """
    n_shards, rows_at, ends_at = (
        int64(rows.shape[0]),
        as_words(rows.ctypes.data),
        as_words(ends.ctypes.data),
    )
    for k in range(ids.shape[0]):
        shard = permutation[k, 0]
        _, local = locate(int64(ids[k]), rows_at, ends_at, n_shards, strategy)
        out = carray(pointer(addresses[shard], ids.dtype.type), (counts[shard],))
        out[permutation[k, 1]] = local


@jit
def order_by_shard(
    entries: Array, permutation: Array, counts: Array, starts: Array, out: Array
) -> None:
    """Writes the entries of each shard behind those of the shard before.

    Args:
      entries: [u].
      permutation, counts: as `assign_shards` leaves them.
      starts: out, int64 [P], where each shard starts.
      out: out, [u].
    """
    first = 0
    for shard in range(counts.shape[0]):
        starts[shard] = first
        first += counts[shard]
    for k in range(entries.shape[0]):
        out[starts[permutation[k, 0]] + permutation[k, 1]] = entries[k]
