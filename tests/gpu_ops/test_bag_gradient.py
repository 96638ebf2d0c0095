"""Gradients of gathered rows and weights, in the simulator: the bits of the CPU's ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.kernels.entry_sums import LONG
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.records import Entries, GatheredRows, GradBags, Gradient
from fusion.ops.bags.gpu_steps import bag_gradient as steps
from fusion.ops.bags.gpu_steps.bags import by_row
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_ops.simulation import COMBINERS, Simulated
from tests.gpu_ops.test_combine import table


def poison(shape: tuple[int, ...], dtype: Any) -> Any:
    """Aligned as TensorFlow's tensors are."""
    out = table(max(shape[0], 1), shape[1] if len(shape) > 1 else 1, np.dtype(dtype).name)
    out = out[: shape[0]] if len(shape) > 1 else out[: shape[0], 0]
    out[:] = 77
    return out


def gradient_of(device: Simulated, top: Any, combiner: str, limit: float) -> Gradient:
    bits = int(np.float64(limit).view(np.int64))
    kind = DTYPES[top.dtype.name].code
    return Gradient(
        device.put(top), kind, top.shape[1], COMBINERS.index(combiner), int(limit >= 0), bits
    )


def addresses(device: Simulated, arrays: list[Any]) -> int:
    return device.put(np.array([device.put(array) for array in arrays], np.int64))


def top_of(batch: int, dim: int, dtype: str) -> Any:
    top = table(max(batch, 1), dim, dtype, seed=9)[:batch]
    top[np.random.default_rng(1).random(top.shape) < 0.2] = -0.0
    return top


def same(mine: list[Any], theirs: Any) -> None:
    for array, other in zip(mine, theirs, strict=True):
        assert array.shape == other.shape
        assert array.tobytes() == other.numpy().tobytes(), (array, other.numpy())


class Ids:
    """Entries of distinct ids whose rows were gathered from shards."""

    def __init__(self, sizes: list[int], count: int, batch: int, dim: int, dtype: str) -> None:
        draw, unique = np.random.default_rng(count), sum(sizes)
        self.rows = [table(max(n, 1), dim, dtype, seed=k)[:n] for k, n in enumerate(sizes)]
        pairs = [(shard, index) for shard, n in enumerate(sizes) for index in range(n)]
        self.permutation = np.array(pairs, np.int32).reshape(-1, 2)
        draw.shuffle(self.permutation)
        self.indices = np.stack(
            [draw.integers(0, max(batch, 1), count), draw.integers(0, 9, count)], 1
        )
        self.unique_idxs = draw.integers(0, max(unique - 1, 1), count).astype(np.int32)
        self.weights = draw.integers(-2, 4, count).astype(self.rows[0].dtype)
        self.empty = draw.random(batch) < 0.2
        self.top = top_of(batch, dim, dtype)

    def by_steps(self, weighted: bool, combiner: str, limit: float, masks: bool) -> Any:
        """(gradients of the rows, of the weights, errors)."""
        device, errors = Simulated(), np.zeros(4, np.int64)
        count, batch, record = self.unique_idxs.size, self.top.shape[0], device.put(errors)
        sizes = [len(array) for array in self.rows]
        described = np.array([[device.put(array), len(array)] for array in self.rows], np.int64)
        row_bytes = self.top.shape[1] * self.top.itemsize
        firsts, pairs = np.cumsum([0, *sizes], dtype=np.int64), device.put(self.permutation)
        rows = GatheredRows(
            sum(sizes), len(sizes), device.put(described), device.put(firsts), row_bytes, pairs
        )
        given = Entries(0, 0, count, device.put(self.indices), batch, 0, 0, 0)
        ordered = by_row(device, given, record)
        keys = steps.rows_of_ids(device, ordered, device.put(self.unique_idxs), rows, record)
        weights = device.put(self.weights) if weighted else 0
        masked = device.put(self.empty) if masks else 0
        bags = GradBags(ordered, keys, weights, masked, self.empty.size)
        gradient = gradient_of(device, self.top, combiner, limit)
        outs = [poison(array.shape, array.dtype) for array in self.rows]
        scaled = steps.add_up(device, gradient, bags, rows, addresses(device, outs))
        grads = poison((count if weighted else 0,), self.weights.dtype)
        if weighted:
            grads = np.ascontiguousarray(grads)
            steps.add_up_weights(device, gradient, bags, rows, scaled, device.put(grads))
        return outs, grads, errors

    def check(self, weighted: bool, combiner: str, limit: float, masks: bool) -> None:
        outs, grads, errors = self.by_steps(weighted, combiner, limit, masks)
        assert not errors.any()
        wanted = ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=self.top,
            emb_shards=self.rows,
            partition_permutation=self.permutation,
            feature_nums=np.zeros(self.top.shape[0], np.int32),
            indices_before_unique=self.indices,
            unique_idxs=self.unique_idxs,
            is_row_empty=self.empty,
            sp_weights_values=self.weights if weighted else np.zeros(1, self.weights.dtype),
            fill_empty_row=masks,
            combiner=combiner,
            max_norm=limit,
            use_sparse_weights=weighted,
        )
        same([*outs, grads], [*wanted.grad_shards, wanted.grad_weights])


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize(
    ("weighted", "limit", "masks"),
    [(False, -1.0, True), (True, -1.0, False), (False, 1.5, False), (True, 1.5, True)],
)
def test_distinct_ids(combiner: str, weighted: bool, limit: float, masks: bool) -> None:
    sizes = [4, 0, 5] if masks else [9]
    Ids(sizes, 26, 7, 4, "float32").check(weighted, combiner, limit, masks)


def test_fewer_flags_than_rows() -> None:
    given = Ids([4], 9, 5, 4, "float32")
    given.empty = np.array([False, True])
    given.check(True, "mean", -1.0, True)


@pytest.mark.parametrize("dim", [3, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str, dim: int) -> None:
    given = Ids([6], 15, 4, dim, dtype)
    given.check(True, "sqrtn", 1.5, False)
    given.check(False, "mean", -1.0, False)


@pytest.mark.parametrize(("dim", "dtype"), [(3, "bfloat16"), (8, "float16"), (8, "float32")])
def test_ids_with_many_entries(dim: int, dtype: str) -> None:
    """A warp adds up those of one."""
    given = Ids([1, 2], 110, 6, dim, dtype)
    assert np.bincount(given.unique_idxs).max() > LONG
    given.check(True, "mean", -1.0, True)
    given.check(False, "sqrtn", 1.5, False)


@pytest.mark.parametrize(("sizes", "count", "batch"), [([0], 0, 0), ([2], 0, 3), ([1, 0], 1, 1)])
def test_few_distinct_ids(sizes: list[int], count: int, batch: int) -> None:
    given = Ids(sizes, count, batch, 4, "float32")
    given.check(True, "mean", 0.5, True)


def test_numbers_that_are_none() -> None:
    """Weights that add up to 0, an infinite one in a masked row, a row of zeros."""
    given = Ids([5], 20, 5, 4, "float32")
    given.weights[given.indices[:, 0] == 1] = 0
    given.empty[:] = [0, 0, 0, 1, 0]
    given.weights[given.indices[:, 0] == 3] = np.inf
    given.rows[0][2] = 0
    with np.errstate(all="ignore"):
        outs, grads, _ = given.by_steps(True, "sqrtn", 0.0, True)
        assert np.isnan(outs[0]).any()
        assert not np.isnan(grads[given.indices[:, 0] == 3]).any()
        given.rows[0][2] = 1
        given.weights[given.weights == np.inf] = -1
        given.check(True, "sqrtn", 0.0, True)


@pytest.mark.parametrize(
    ("change", "record"),
    [
        (("unique_idxs", 3, 4), [call_of.BAD_ID, 0, 3, 4]),
        (("unique_idxs", 3, -1), [call_of.BAD_ID, 0, 3, -1]),
        (("indices", (2, 0), 9), [call_of.BAD_ROW, 0, 2, 9]),
        (("permutation", (1, 1), 2), [call_of.BAD_ID, 1, 1, 2]),
        (("permutation", (0, 0), 2), [call_of.BAD_ID, 0, 0, 2]),
        (("permutation", 1, (0, 0)), [call_of.REPEATED, 0, (0, 1), 0]),
    ],
)
def test_errors_of_distinct_ids_are_reported(
    change: tuple[str, Any, Any], record: list[Any]
) -> None:
    """Of two elements at one place either is reported."""
    given = Ids([2, 2], 4, 3, 4, "float32")
    given.unique_idxs = np.arange(4, dtype=np.int32)
    given.permutation = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.int32)
    name, index, number = change
    getattr(given, name)[index] = number
    found = given.by_steps(True, "mean", -1.0, False)[2].tolist()
    assert all(np.isin(array, wanted) for array, wanted in zip(found, record, strict=True)), found
