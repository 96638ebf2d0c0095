"""The kernels of gradients, in the simulator: the bits of GroupedEmbeddingPostLookUpGrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.kernels.entry_sums import LONG
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import GradientCall
from fusion.gpu_ops.layout.gradient import ColumnGradient
from fusion.gpu_ops.steps.sums import numbers
from fusion.ops.columns.gpu_steps.gradient import GradEntries, order_entries
from fusion.runtime.cuda.layout import ErrorRecord
from tests.gpu_kernels import grad_call as calls
from tests.gpu_ops.simulation import COMBINERS, Simulated
from tests.gpu_ops.test_combine import table


def gradient(
    top: Any,
    columns: Sequence[tuple[int, int, str, bool]],
    unique_idxs: Any,
    splits: Any,
    weights: Any,
) -> tuple[list[Any], list[int]]:
    """Gradients of columns (distinct ids, dim, combiner, weighted), and the `ErrorRecord`."""
    device, stored = Simulated(), top.dtype.name
    batch, count = splits.shape[1] - 1, unique_idxs.size
    unique = sum(column[0] for column in columns)
    outs = [table(max(u, 1), dim, stored)[:u] for u, dim, _, _ in columns]
    top_at, described, item = device.put(top), [], top.dtype.itemsize
    for out, (number, dim, combiner, weighted) in zip(outs, columns, strict=True):
        out[:] = 77
        index = COMBINERS.index(combiner)
        rows = top_at, top.shape[1] * item
        described.append(ColumnGradient(number, dim, device.put(out), *rows, index, weighted))
        top_at += dim * item
    keys = numbers(device, count, unique)
    words = {
        GradientCall.entry_count: count,
        GradientCall.unique_idxs: device.put(unique_idxs),
        GradientCall.row_splits: device.put(splits),
        GradientCall.entry_weights: device.put(weights),
        GradientCall.keys: keys,
        GradientCall.owners: device.reserve(4 * count),
        GradientCall.starts: device.reserve(8 * (unique + 1)),
        GradientCall.scales: device.reserve(8 * len(columns) * batch),
    }
    call = calls.prepare_gradient(stored, batch, described, words, device.reserve)
    held = device.arrays[-1].view(np.int64)
    held[:] = call.words
    base = held.ctypes.data
    entries = GradEntries(count, unique, keys, words[GradientCall.starts])
    order = order_entries(device, base, entries, batch * len(columns))
    if call.tiles:
        device.launch(f"scatter_{stored}", call.tiles, call_of.THREADS, base, order)
    record = held[call.errors : call.errors + ErrorRecord.SIZE]
    return outs, [int(word) for word in record]


def drawn(
    columns: Sequence[tuple[int, int, str, bool]], batch: int, dtype: Any, seed: int
) -> tuple[Any, Any, Any, Any]:
    """Entries of columns as GroupedEmbeddingPreLookUp gives them, and a gradient."""
    draw = np.random.default_rng(seed)
    unique_idxs: list[int] = []
    splits = np.zeros((len(columns), batch + 1), np.int32)
    for column, (unique, _, _, _) in enumerate(columns):
        lengths = draw.integers(0, 4, batch) if unique else np.zeros(batch, np.int64)
        first = len(unique_idxs)
        splits[column] = first + np.concatenate([[0], np.cumsum(lengths)])
        # New ids come in order.
        seen = 0
        for _ in range(int(lengths.sum())):
            index = int(draw.integers(0, min(seen + 1, unique)))
            seen = max(seen, index + 1)
            unique_idxs.append(index)
        unique_idxs += [0] * 2  # some that belong to no column
    weights = draw.integers(-2, 4, len(unique_idxs)).astype(dtype)
    dims = sum(column[1] for column in columns)
    top = table(batch, dims, np.dtype(dtype).name, seed)
    top[draw.random(top.shape) < 0.1] = -0.0
    return top, np.array(unique_idxs, np.int32), splits, weights


def same(columns: Sequence[tuple[int, int, str, bool]], batch: int, dtype: Any, seed: int) -> None:
    same_given(columns, *drawn(columns, batch, dtype, seed))


def same_given(
    columns: Sequence[tuple[int, int, str, bool]],
    top: Any,
    unique_idxs: Any,
    splits: Any,
    weights: Any,
) -> None:
    dtype = top.dtype
    found, record = gradient(top, columns, unique_idxs, splits, weights)
    assert not any(record)
    wanted = ops.grouped_embedding_post_look_up_grad(
        top_grad=top,
        emb_rows=[np.zeros((u, dim), dtype) for u, dim, _, _ in columns],
        unique_idxs=unique_idxs,
        row_splits=splits,
        entry_weights=weights,
        combiners=[column[2] for column in columns],
        use_sparse_weights=[column[3] for column in columns],
        dims=[column[1] for column in columns],
        offsets=[-1] * len(columns),
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.numpy().tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_gradients_have_the_bits_of_the_cpu(combiner: str, dtype: Any) -> None:
    same([(9, 8, combiner, False), (5, 3, combiner, True)], 11, dtype, seed=len(combiner))


def test_columns_of_all_sizes() -> None:
    columns = [(30, 16, "mean", False), (1, 1, "sum", False), (0, 4, "sum", False)]
    same([*columns, (7, 40, "sqrtn", True)], 20, np.float32, seed=3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_ids_with_many_entries(dtype: Any) -> None:
    """A warp adds up one; some of its groups have one, others few entries, and some no id."""
    draw = np.random.default_rng(5)
    columns = [
        (3, 8, "mean", False),
        (6, 3, "sqrtn", True),
        (2, 40, "sum", True),
        (5, 1, "sum", False),
    ]
    for number, dim, combiner, weighted in columns[:: 1 if dtype == np.float32 else 2]:
        counts = np.array([40, 1, 33, 3, 90, 32])[:number]
        assert (counts > LONG).any()
        unique_idxs = draw.permutation(np.repeat(np.arange(number), counts)).astype(np.int32)
        _, first = np.unique(unique_idxs, return_index=True)
        renamed = np.argsort(np.argsort(first))  # numbers are in the order of first occurrence
        unique_idxs = renamed[unique_idxs].astype(np.int32)
        cuts = np.sort(draw.integers(0, unique_idxs.size + 1, 30))
        splits = np.concatenate([[0], cuts, [unique_idxs.size]]).astype(np.int32)[None]
        weights = draw.integers(-2, 4, unique_idxs.size).astype(dtype)
        top = table(31, dim, np.dtype(dtype).name, seed=number)
        top[draw.random(top.shape) < 0.1] = -0.0
        same_given([(number, dim, combiner, weighted)], top, unique_idxs, splits, weights)


def test_nothing_to_add() -> None:
    same([(0, 4, "sum", False)], 5, np.float32, seed=1)
    same([(0, 4, "sum", False)], 0, np.float32, seed=1)


def test_errors_are_reported() -> None:
    columns = [(4, 4, "sum", False)]
    top, unique_idxs, splits, weights = drawn(columns, 6, np.float32, seed=2)
    wrong = unique_idxs.copy()
    wrong[2] = 4
    assert gradient(top, columns, wrong, splits, weights)[1] == [call_of.BAD_ID, 0, 2, 4]
    splits[0, 6] = 1000
    assert gradient(top, columns, unique_idxs, splits, weights)[1] == [
        call_of.BAD_SPLIT,
        0,
        5,
        1000,
    ]
