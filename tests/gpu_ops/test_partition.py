"""Ids split over shards, in the simulator: the results of the CPU's op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.layout.call import BAD_ID
from fusion.gpu_ops.layout.records import GroupOrder, Ids, Shards
from fusion.ops.bags.gpu_steps.partition import put_ids, split
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_ops.simulation import Simulated

STRATEGIES = ("div", "mod", "mod_ev")


def shards_of(device: Simulated, rows: list[int], strategy: str) -> Shards:
    counts = np.array(rows, np.int64)
    ends = device.put(np.cumsum(counts))
    return Shards(device.put(counts), ends, len(rows), STRATEGIES.index(strategy))


def shapes(rows: list[int]) -> list[Any]:
    return [np.array([count, 3], np.int64) for count in rows]


def counts_of(device: Simulated, found: GroupOrder, shards: int) -> Any:
    return np.diff(device.words(found.starts, shards + 1))


def partitioned(ids: Any, rows: list[int], strategy: str) -> tuple[list[Any], Any, Any]:
    """(ids of each shard, the permutation, errors)."""
    device, errors = Simulated(), np.zeros(4, np.int64)
    shards, record = shards_of(device, rows, strategy), device.put(errors)
    given = Ids(device.put(ids), DTYPES[ids.dtype.name].code, ids.size)
    found = split(device, given, shards, record)
    counts = counts_of(device, found, len(rows))
    outs = [np.full(count, 77, ids.dtype) for count in counts]
    addresses = device.put(np.array([device.put(out) for out in outs], np.int64))
    permutation = np.full((ids.size, 2), 77, np.int32)
    if not errors.any():
        put_ids(device, given, shards, found, addresses, device.put(permutation))
    return outs, permutation, errors


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("count", "rows", "dtype"),
    [
        (0, [3, 4], np.int64),
        (1, [0, 5, 0], np.int32),
        (60, [9, 0, 30, 1], np.int64),
        (40, [8] * 300, np.int32),
    ],
)
def test_ids_are_split(count: int, rows: list[int], dtype: Any, strategy: str) -> None:
    draw = np.random.default_rng(count)
    if strategy == "div":
        ids = draw.integers(0, sum(rows), count).astype(dtype)
    elif strategy == "mod":
        rows = [max(rows)] * len(rows)
        ids = draw.integers(0, sum(rows), count).astype(dtype)
    else:
        info = np.iinfo(dtype)
        ids = draw.integers(info.min, info.max, count, endpoint=True).astype(dtype)
    outs, permutation, errors = partitioned(ids, rows, strategy)
    assert not errors.any()
    wanted = ops.partition_with_permutation(
        input=ids, partition_shapes=shapes(rows), partition_strategy=strategy
    )
    np.testing.assert_array_equal(permutation, wanted.partition_permutation, strict=False)
    for mine, theirs in zip(outs, wanted.partitioned_values, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy(), strict=True)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_ids_outside_the_table_are_told(bad: int, strategy: str) -> None:
    ids = np.array([1, 3, bad, 9])
    assert partitioned(ids, [5, 5], strategy)[2].tolist() == [BAD_ID, 0, 2, bad]
