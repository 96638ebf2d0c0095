"""Ids and entries split over shards, in the simulator: the results of the CPU's ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.layout.call import BAD_DEFAULT, BAD_ID, BAD_ROW
from fusion.gpu_ops.steps.partition import Shards, Split, put_ids, split
from fusion.gpu_ops.steps.pre_lookup import Rules, put_split_entries, split_entries
from fusion.gpu_ops.steps.prune import Entries
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_ops.simulation import Simulated

STRATEGIES = ("div", "mod", "mod_ev")
LEAST = -(2**63)


def shards_of(device: Simulated, rows: list[int], strategy: str) -> Shards:
    counts = np.array(rows, np.int64)
    ends = device.put(np.cumsum(counts))
    return Shards(device.put(counts), ends, len(rows), STRATEGIES.index(strategy))


def shapes(rows: list[int]) -> list[Any]:
    return [np.array([count, 3], np.int64) for count in rows]


def counts_of(device: Simulated, found: Split, shards: int) -> Any:
    return np.diff(device.words(found.starts, shards + 1))


def partitioned(ids: Any, rows: list[int], strategy: str) -> tuple[list[Any], Any, Any]:
    """(ids of each shard, the permutation, errors)."""
    device, errors = Simulated(), np.zeros(4, np.int64)
    shards, record = shards_of(device, rows, strategy), device.put(errors)
    given = device.put(ids), DTYPES[ids.dtype.name].code, ids.size
    found = split(device, *given, shards, record)
    counts = counts_of(device, found, len(rows))
    outs = [np.full(count, 77, ids.dtype) for count in counts]
    addresses = device.put(np.array([device.put(out) for out in outs], np.int64))
    permutation = np.full((ids.size, 2), 77, np.int32)
    if not errors.any():
        put_ids(device, *given, shards, found, addresses, device.put(permutation))
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


class Case:
    """A call of FusedEmbeddingSparsePreLookUp.

    Args:
        rows: of each shard.
        attrs: of the op.
    """

    def __init__(
        self, ids: Any, indices: Any, weights: Any, batch: int, rows: list[int], **attrs: Any
    ) -> None:
        self.ids, self.indices, self.weights = ids, indices, weights
        self.batch, self.rows = batch, rows
        self.attrs = {"partition_strategy": "div", "default_weight": 0.5, **attrs}

    def given(self, device: Simulated) -> Entries:
        weights, kind = 0, DTYPES[self.weights.dtype.name].code
        if self.attrs.get("use_sparse_weights", False):
            weights = device.put(self.weights)
        return Entries(
            device.put(self.ids), DTYPES[self.ids.dtype.name].code, self.ids.size,
            device.put(self.indices), self.batch, weights, kind, self.weights.itemsize,
        )  # fmt: skip

    def by_rules(self) -> Rules:
        attrs = self.attrs
        prunes = attrs.get("prune_invalid_id", False)
        by_weight = prunes and attrs.get("use_sparse_weights") and attrs.get("prune_sparse_weights")
        weight = np.array(attrs["default_weight"]).astype(self.weights.dtype)
        bits = weight.view({2: np.uint16, 4: np.int32, 8: np.int64}[weight.itemsize])
        filler, by_row = max(attrs.get("default_id", -1), 0), attrs.get("entry_order") == "row"
        fills = attrs.get("fill_empty_row", False)
        least = 0 if prunes else LEAST
        return Rules(least, int(bool(by_weight)), int(fills), filler, int(bits), int(by_row))

    def by_steps(self) -> tuple[list[Any], list[Any], Any, list[Any], Any]:
        """The op's outputs, and errors."""
        device, errors = Simulated(), np.zeros(4, np.int64)
        given, rules = self.given(device), self.by_rules()
        shards = shards_of(device, self.rows, self.attrs["partition_strategy"])
        flags = np.full(self.batch + self.ids.size, 77, np.int32)
        record = device.put(errors)
        found = split_entries(device, given, rules, shards, device.put(flags), record)
        counts = counts_of(device, found, len(self.rows))
        values = [np.full(count, 77, self.ids.dtype) for count in counts]
        indices = [np.full((count, 2), 77, np.int64) for count in counts]
        weights = [np.full(count, 77, self.weights.dtype) for count in counts]
        if not errors.any():
            addresses = [
                [device.put(out) for out in outs]
                for outs in zip(values, indices, weights, strict=True)
            ]
            outs = device.put(np.array(addresses, np.int64))
            put_split_entries(device, given, rules, shards, found, int(counts.sum()), outs)
        return values, indices, flags, weights, errors

    def by_cpu(self) -> Any:
        return ops.fused_embedding_sparse_pre_look_up(
            partition_shapes=shapes(self.rows),
            sp_values=self.ids,
            sp_indices=self.indices,
            sp_dense_shape=np.array([self.batch, 9], np.int64),
            sp_weights_values=self.weights,
            **self.attrs,
        )

    def check(self) -> None:
        values, indices, flags, weights, errors = self.by_steps()
        assert not errors.any()
        wanted = self.by_cpu()
        np.testing.assert_array_equal(flags, wanted.row_empty_and_invalid_flags.numpy())
        for mine, theirs in (
            (values, wanted.partitioned_values),
            (indices, wanted.partitioned_indices),
            (weights, wanted.partitioned_weights),
        ):
            for array, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(array, other.numpy(), strict=True)


def drawn(count: int, batch: int, rows: list[int], dtype: Any, weight: Any, **attrs: Any) -> Case:
    draw = np.random.default_rng(count)
    ids = draw.integers(-3 if attrs.get("prune_invalid_id") else 0, sum(rows), count)
    indices = np.stack([draw.integers(0, max(batch, 1), count), draw.integers(-9, 99, count)], 1)
    weights = draw.integers(-2, 4, count).astype(weight)
    return Case(ids.astype(dtype), indices, weights, batch, rows, **attrs)


@pytest.mark.parametrize("order", ["input", "row"])
@pytest.mark.parametrize("rows", [[20], [7, 7, 6]])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_entries_are_split(strategy: str, rows: list[int], order: str) -> None:
    attrs = {
        "partition_strategy": strategy,
        "entry_order": order,
        "fill_empty_row": True,
        "prune_invalid_id": True,
        "default_id": 8,
    }
    weighted = {"use_sparse_weights": True, "prune_sparse_weights": True}
    drawn(30, 16, rows, np.int64, np.float32, **attrs, **weighted).check()
    drawn(23, 9, rows, np.int32, np.float16, **attrs).check()


@pytest.mark.parametrize("order", ["input", "row"])
@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize(("count", "batch"), [(0, 0), (0, 3), (1, 1)])
def test_few_entries(count: int, batch: int, fills: bool, order: str) -> None:
    attrs = {"entry_order": order, "fill_empty_row": fills}
    drawn(count, batch, [2, 0, 9], np.int64, np.float64, **attrs).check()


def test_entries_that_are_dropped_may_lie_anywhere() -> None:
    ids, indices = np.array([3, -1, 2]), np.array([[1, 0], [77, 0], [0, 0]])
    attrs = {"prune_invalid_id": True, "fill_empty_row": True}
    for order in ("input", "row"):
        Case(ids, indices, np.ones(3, np.float32), 3, [2, 2], entry_order=order, **attrs).check()


@pytest.mark.parametrize(
    ("ids", "row", "attrs", "record"),
    [
        ([3, -1], 0, {}, [BAD_ID, 0, 1, -1]),
        ([3, 6], 0, {}, [BAD_ID, 0, 1, 6]),
        ([3, 5], 4, {"entry_order": "row"}, [BAD_ROW, 0, 1, 4]),
        ([3, 5], -1, {}, [BAD_ROW, 0, 1, -1]),
        ([3, 5], 0, {"fill_empty_row": True, "default_id": 6}, [BAD_DEFAULT, 0, -1, 6]),
    ],
)
def test_trouble_with_entries_is_told(
    ids: list[int], row: int, attrs: dict[str, Any], record: list[int]
) -> None:
    indices = np.array([[1, 0], [row, 0]])
    case = Case(np.array(ids), indices, np.ones(2, np.float32), 4, [3, 3], **attrs)
    assert case.by_steps()[-1].tolist() == record
