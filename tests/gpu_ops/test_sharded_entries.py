"""Rows gathered for each entry combined into bags, in the simulator, as the CPU's v1 op."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.steps.sharded_entries import (
    Joined,
    ShardedEntries,
    bags_of_shards,
    join,
    order_shards,
)
from fusion.runtime.cuda.layout import ErrorRecord
from tests.gpu_ops.simulation import COMBINERS, Simulated
from tests.gpu_ops.test_bags import combined
from tests.gpu_ops.test_combine import table


class Given(NamedTuple):
    """Entries of shards, and flags of the rows."""

    rows: list[Any]
    indices: list[Any]
    weights: list[Any]
    flags: Any

    def entries(self, device: Simulated, weighted: bool) -> ShardedEntries:
        sizes = [array.shape[0] for array in self.rows]
        firsts = np.cumsum([0, *sizes], dtype=np.int64)
        places = [[device.put(array), size] for array, size in zip(self.rows, sizes, strict=True)]
        indices = device.put(np.array([device.put(array) for array in self.indices], np.int64))
        weights = device.put(np.array([device.put(array) for array in self.weights], np.int64))
        row = self.rows[0]
        return ShardedEntries(
            sum(sizes), len(sizes), device.put(firsts), device.put(np.array(places, np.int64)),
            row.shape[1] * row.itemsize, indices, weights if weighted else 0, row.itemsize,
        )  # fmt: skip

    def inputs(self) -> dict[str, Any]:
        """Those that the op and its gradient have in common."""
        return {
            "emb_shards": self.rows,
            "partitioned_indices": self.indices,
            "row_empty_and_invalid_flags": self.flags,
            "partitioned_weights": self.weights,
        }


def drawn(sizes: list[int], batch: int, dim: int, stored: str, seed: int = 0) -> Given:
    """Entries in any order, whose ranks are any numbers, some of them equal."""
    draw = np.random.default_rng(seed)
    rows = [table(max(n, 1), dim, stored, seed=k)[:n] for k, n in enumerate(sizes)]
    ranks = draw.choice([-(2**63), -3, 0, 4, 5, 300, 2**62], (3, max(sizes, default=0)))
    indices = [
        np.stack([draw.integers(0, max(batch, 1), n), ranks[k % 3, :n]], 1)
        for k, n in enumerate(sizes)
    ]
    weights = [draw.integers(-2, 4, n).astype(rows[0].dtype) for n in sizes]
    return Given(rows, indices, weights, (draw.random(batch + 3) < 0.2).astype(np.int32))


def bits_of_ranks(device: Simulated, joined: Joined) -> int:
    return -int(device.words(joined.results, 2)[0])


def same(given: Given, batch: int, weighted: bool, **attrs: Any) -> None:
    device, errors, counts = Simulated(), np.zeros(4, np.int64), np.full(batch, 77, np.int32)
    sharded, record = given.entries(device, weighted), device.put(errors)
    rows = batch if attrs.get("row_count", "dense_shape") == "dense_shape" else -1
    joined = join(device, sharded, rows, record)
    if rows < 0:
        assert -device.words(joined.results, 2)[1] == batch
    ordered = order_shards(device, sharded, joined, batch, bits_of_ranks(device, joined))
    masked = device.put(given.flags) if attrs.get("default_id", -1) < 0 else 0
    found = bags_of_shards(device, sharded, ordered, batch, masked, device.put(counts))
    assert not errors.any()
    dim, stored = given.rows[0].shape[1], given.rows[0].dtype.name
    combiner, limit = COMBINERS.index(attrs["combiner"]), attrs.get("max_norm", -1.0)
    out = combined(device, found, batch, dim, stored, combiner=combiner, limit=limit)
    wanted = ops.fused_embedding_sparse_post_look_up(
        **given.inputs(),
        sp_dense_shape=np.array([batch, 9], np.int64),
        partitioned_values=[np.zeros(len(array), np.int64) for array in given.rows],
        use_sparse_weights=weighted,
        **attrs,
    )
    assert out.tobytes() == wanted.emb_vectors.numpy().tobytes()
    np.testing.assert_array_equal(counts, wanted.feature_nums.numpy())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("sizes", "batch", "stored", "attrs"),
    [
        ([25], 7, "float32", {"combiner": "mean"}),
        ([9, 0, 21], 6, "float16", {"combiner": "sqrtn", "max_norm": 0.75}),
        ([12, 13], 5, "float64", {"combiner": "sum", "default_id": 2}),
        ([0, 0], 3, "float32", {"combiner": "sum"}),
        ([0], 0, "float32", {"combiner": "mean"}),
    ],
)
def test_entries_of_shards(
    sizes: list[int], batch: int, stored: str, attrs: dict[str, Any], weighted: bool
) -> None:
    same(drawn(sizes, batch, 6, stored), batch, weighted, **attrs)


def test_rows_up_to_the_last() -> None:
    given = drawn([9, 14], 6, 4, "float32")
    for array in given.indices:
        array[:, 0].sort()
    given.indices[1][-1, 0] = 7
    same(given, 8, False, combiner="mean", row_count="last_row")


@pytest.mark.parametrize("ranks", [[5, 5], [1, 2], [0, 256], [-1, 0], [2**40, 0]])
def test_ranks_are_sorted_by_as_many_bits_as_differ(ranks: list[int]) -> None:
    given = drawn([1, 2], 1, 4, "float32")
    for array in given.indices:
        array[:, 1] = ranks[: len(array)]
    device = Simulated()
    joined = join(device, given.entries(device, False), 1, device.put(np.zeros(4, np.int64)))
    different = ranks[0] ^ ranks[1]
    wanted = 64 if different < 0 else -(-different.bit_length() // 8) * 8
    assert bits_of_ranks(device, joined) == wanted
    same(given, 1, False, combiner="sum")


@pytest.mark.parametrize(
    ("row", "batch", "record"),
    [
        (4, 4, [call_of.BAD_ROW, 1, 1, 4]),
        (-1, 4, [call_of.BAD_ROW, 1, 1, -1]),
        (-1, -1, [call_of.BAD_ROW, 1, 1, -1]),
        (0, -1, [call_of.UNSORTED_ROW, 1, 1, 0]),
    ],
)
def test_errors_are_reported(row: int, batch: int, record: list[int]) -> None:
    given, device, errors = drawn([2, 3], 1, 4, "float32"), Simulated(), np.zeros(4, np.int64)
    given.indices[1][:, 0] = [1, row, 2]
    join(device, given.entries(device, False), batch, device.put(errors))
    assert errors.tolist() == record


def test_entries_without_a_bag_are_left_out() -> None:
    given, device, errors = drawn([2, 3], 0, 4, "float32"), Simulated(), np.zeros(4, np.int64)
    for batch in (0, 1):
        for array in given.indices:
            array[:, 0] = 1
        sharded, flags = given.entries(device, False), np.zeros(batch, np.int32)
        joined = join(device, sharded, batch, device.put(errors))
        ordered = order_shards(device, sharded, joined, batch, bits_of_ranks(device, joined))
        masked, counts = device.put(flags), device.reserve(4 * batch)
        found = bags_of_shards(device, sharded, ordered, batch, masked, counts)
        assert errors[ErrorRecord.error_code] == call_of.BAD_ROW
        assert device.words(found.starts, batch + 1).tolist() == [0] * (batch + 1)
        assert (device.get(found.addresses, 5, np.int64) == -1).all()
