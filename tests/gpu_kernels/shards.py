"""Ids and entries split over the shards of a table on a GPU: checked against NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.runtime.tensorflow.dtypes import FLOAT32, INT32, INT64
from tests.gpu_kernels.references import same

if TYPE_CHECKING:
    from fusion.gpu_ops.steps.partition import Shards
    from tests.gpu_kernels.device import Gpu

_DIV, _MOD, _MOD_EV = range(3)


def _shards(gpu: Gpu, rows: list[int], strategy: int) -> Shards:
    from fusion.gpu_ops.steps.partition import Shards

    ends = np.cumsum(rows).tolist()
    return Shards(gpu.put_words(rows), gpu.put_words(ends), len(rows), strategy)


def _located(
    ids: npt.NDArray[Any], rows: list[int], strategy: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The shard of each id, and its id there."""
    if strategy == _DIV:
        ends = np.cumsum(rows)
        shards = np.searchsorted(ends, ids, side="right")
        return shards, ids - (ends - rows)[shards]
    if strategy == _MOD:
        return ids % len(rows), ids // len(rows)
    return ids % 1000 % len(rows), ids


def partition(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Ids over shards, by each strategy."""
    from fusion.gpu_ops.steps.partition import put_ids, split

    each = count // 3 + 1
    for strategy, rows, dtype in (
        (_DIV, [count, 0, each, 1], np.int64),
        (_MOD, [each] * 4, np.int32),
        (_MOD_EV, [each] * 4, np.int64),
    ):
        least = -(2**60) if strategy == _MOD_EV else 0
        ids = draw.integers(least, sum(rows), count).astype(dtype)
        shards, errors = _shards(gpu, rows, strategy), gpu.put_words([0] * 4)
        given = gpu.put(ids), INT64 if dtype == np.int64 else INT32, count
        found = split(gpu, *given, shards, errors)
        gpu.check_errors("partition", errors)
        numbers = np.diff(gpu.words(found.starts, len(rows) + 1))
        outs, permutation = [gpu.reserve(8 * number) for number in numbers], gpu.reserve(8 * count)
        put_ids(gpu, *given, shards, found, gpu.put_words(outs), permutation)
        own, local = _located(ids, rows, strategy)
        places = np.zeros(count, np.int64)
        for shard, out in enumerate(outs):
            mine = own == shard
            places[mine] = np.arange(mine.sum())
            same("partition", gpu.get(out, dtype, numbers[shard]), local[mine])
        result = gpu.get(permutation, np.int32, 2 * count).reshape(-1, 2)
        same("permutation", result, np.stack([own, places], 1))
    return 0.0


def pre_lookup(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Entries dropped, filled in and split, as they come and by row."""
    from fusion.gpu_ops.steps.pre_lookup import Rules, put_split_entries, split_entries
    from fusion.gpu_ops.steps.prune import Entries

    batch, rows, filler, weight = count // 3 + 1, [count, 0, count // 2 + 9], 8, np.float32(0.5)
    ids = draw.integers(-3, sum(rows), count)
    indices = np.stack([draw.integers(0, batch, count), draw.integers(-9, 99, count)], 1)
    weights = draw.integers(-2, 5, count).astype(np.float32)
    keeps = (ids >= 0) & (weights > 0)
    empty = np.setdiff1d(np.arange(batch), indices[keeps, 0])
    fillers = np.stack([empty, np.zeros_like(empty)], 1)
    all_ids = np.concatenate([ids[keeps], np.full(empty.size, filler)])
    all_indices = np.concatenate([indices[keeps], fillers])
    all_weights = np.concatenate([weights[keeps], np.full(empty.size, weight)])
    own, local = _located(all_ids, rows, _DIV)
    given = Entries(
        gpu.put(ids), INT64, count, gpu.put(indices), batch, gpu.put(weights), FLOAT32, 4
    )
    shards = _shards(gpu, rows, _DIV)
    for by_row in (0, 1):
        rules = Rules(0, 1, 1, filler, int(weight.view(np.int32)), by_row)
        flags, errors = gpu.reserve(4 * (batch + count)), gpu.put_words([0] * 4)
        found = split_entries(gpu, given, rules, shards, flags, errors)
        gpu.check_errors("entries of shards", errors)
        numbers = np.diff(gpu.words(found.starts, len(rows) + 1))
        outs = [[gpu.reserve(size * n) for size in (8, 16, 4)] for n in numbers]
        words = gpu.put_words([address for each in outs for address in each])
        put_split_entries(gpu, given, rules, shards, found, int(numbers.sum()), words)
        is_empty = np.isin(np.arange(batch), empty)
        result = gpu.get(flags, np.int32, batch + count)
        same("flags of entries", result, np.concatenate([is_empty, keeps]))
        order = np.argsort(all_indices[:, 0], kind="stable") if by_row else np.arange(own.size)
        for shard, (out_ids, out_indices, out_weights) in enumerate(outs):
            mine, n = order[own[order] == shard], int(numbers[shard])
            same("ids of shards", gpu.get(out_ids, np.int64, n), local[mine])
            found_indices = gpu.get(out_indices, np.int64, 2 * n).reshape(-1, 2)
            same("indices of shards", found_indices, all_indices[mine])
            same("weights of shards", gpu.get(out_weights, np.float32, n), all_weights[mine])
    return 0.0
