"""Ids split over the shards of a table on a GPU: checked against NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.gpu_ops.layout.records import Ids, Shards
from fusion.runtime.tensorflow.dtypes import INT32, INT64
from tests.gpu_kernels.references import same

if TYPE_CHECKING:
    from tests.gpu_kernels.device import Gpu

_DIV, _MOD, _MOD_EV = range(3)


def _shards(gpu: Gpu, rows: list[int], strategy: int) -> Shards:
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
    from fusion.ops.bags.gpu_steps.partition import put_ids, split

    each = count // 3 + 1
    for strategy, rows, dtype in (
        (_DIV, [count, 0, each, 1], np.int64),
        (_MOD, [each] * 4, np.int32),
        (_MOD_EV, [each] * 4, np.int64),
    ):
        least = -(2**60) if strategy == _MOD_EV else 0
        ids = draw.integers(least, sum(rows), count).astype(dtype)
        shards, errors = _shards(gpu, rows, strategy), gpu.put_words([0] * 4)
        given = Ids(gpu.put(ids), INT64 if dtype == np.int64 else INT32, count)
        found = split(gpu, given, shards, errors)
        gpu.check_errors("partition", errors)
        numbers = np.diff(gpu.words(found.starts, len(rows) + 1))
        outs, permutation = [gpu.reserve(8 * number) for number in numbers], gpu.reserve(8 * count)
        put_ids(gpu, given, shards, found, gpu.put_words(outs), permutation)
        own, local = _located(ids, rows, strategy)
        places = np.zeros(count, np.int64)
        for shard, out in enumerate(outs):
            mine = own == shard
            places[mine] = np.arange(mine.sum())
            same("partition", gpu.get(out, dtype, numbers[shard]), local[mine])
        result = gpu.get(permutation, np.int32, 2 * count).reshape(-1, 2)
        same("permutation", result, np.stack([own, places], 1))
    return 0.0
