"""The kernels of gradients, in the simulator: the bits of GroupedEmbeddingPostLookUpGrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from fusion import ops
from fusion.cpu_ops.column_words import INT32
from fusion.gpu_ops import call as calls
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops import scan, scatter, sort
from fusion.gpu_ops.simulated import allow
from tests.gpu_ops.simulation import COMBINERS
from tests.gpu_ops.test_combine import table
from tests.gpu_ops.test_steps import launch, prefix_sums


def sorted_by(keys: Any, most: int) -> Any:
    """The stable order of keys up to `most`, by the kernels."""
    order: Any = 0
    tiles = max(-(-keys.size // scan.THREADS), 1)
    for shift in range(0, max(most.bit_length(), 1), 8):
        counts = np.zeros(sort.MOST_KEYS * tiles, np.int32)
        given = keys, INT32, order, keys.size, shift, tiles
        launch(sort.count_keys, keys.size, scan.THREADS, *given, counts)
        starts, _ = prefix_sums(counts)
        target = np.full(keys.size, -1, np.int32)
        launch(sort.place_keys, keys.size, scan.THREADS, *given, starts, target)
        order = target
    return order


def gradient(
    top: Any,
    columns: Sequence[tuple[int, int, str, bool]],
    places: Any,
    splits: Any,
    weights: Any,
) -> tuple[list[Any], list[int]]:
    """Gradients of columns (distinct ids, dim, combiner, weighted), and what is told of trouble."""
    stored, batch, count = top.dtype.name, splits.shape[1] - 1, places.size
    unique = sum(column[0] for column in columns)
    outs = [table(max(u, 1), dim, stored)[:u] for u, dim, _, _ in columns]
    keys, owners = np.full(count, unique, np.int32), np.zeros(count, np.int32)
    order, starts = np.zeros(count, np.int32), np.full(unique + 1, -7, np.int64)
    offset, described = 0, []
    for out, (number, dim, combiner, weighted) in zip(outs, columns, strict=True):
        out[:] = 77
        place = COMBINERS.index(combiner)
        described.append(calls.GradColumn(number, dim, out.ctypes.data, offset, place, weighted))
        offset += dim
    arrays = {
        call_of.PLACES: places,
        call_of.SPLITS: splits,
        call_of.ENTRY_WEIGHTS: weights,
        call_of.TOP: top,
        call_of.KEYS: keys,
        call_of.OWNERS: owners,
        call_of.ORDER: order,
        call_of.STARTS: starts,
    }
    words = {place: array.ctypes.data for place, array in arrays.items()}
    words[call_of.ENTRY_COUNT] = count
    memory: list[Any] = []

    def address(size: int) -> int:
        memory.append(np.zeros(size // 8, np.int64))
        return int(memory[0].ctypes.data)

    call = calls.prepare_gradient(stored, batch, described, words, top.shape[1], address)
    memory[0][:] = call.words
    base = memory[0].ctypes.data
    with allow(memory[0], *arrays.values(), *outs):
        threads = batch * len(columns)
        cuda.jit(scatter.own_entries)[max(-(-threads // 32), 1), 32](base)
        if count:
            order[:] = sorted_by(keys, unique)
        cuda.jit(scatter.find_starts)[count // 32 + 1, 32](base)
        if call.tiles:
            kernel = cuda.jit(scatter.scatter_kernel(stored))
            kernel[call.tiles, call_of.THREADS](base)
    told = memory[0][call.trouble : call.trouble + call_of.TROUBLE_WORDS]
    return outs, [int(word) for word in told]


def drawn(
    columns: Sequence[tuple[int, int, str, bool]], batch: int, dtype: Any, seed: int
) -> tuple[Any, Any, Any, Any]:
    """Entries of columns as GroupedEmbeddingPreLookUp gives them, and a gradient."""
    draw = np.random.default_rng(seed)
    places, splits = [], np.zeros((len(columns), batch + 1), np.int32)
    for column, (unique, _, _, _) in enumerate(columns):
        lengths = draw.integers(0, 4, batch) if unique else np.zeros(batch, np.int64)
        first = len(places)
        splits[column] = first + np.concatenate([[0], np.cumsum(lengths)])
        # New ids come in order.
        seen = 0
        for _ in range(int(lengths.sum())):
            place = int(draw.integers(0, min(seen + 1, unique)))
            seen = max(seen, place + 1)
            places.append(place)
        places += [0] * 2  # some that belong to no column
    weights = draw.integers(-2, 4, len(places)).astype(dtype)
    dims = sum(column[1] for column in columns)
    top = table(batch, dims, np.dtype(dtype).name, seed)
    top[draw.random(top.shape) < 0.1] = -0.0
    return top, np.array(places, np.int32), splits, weights


def same(columns: Sequence[tuple[int, int, str, bool]], batch: int, dtype: Any, seed: int) -> None:
    top, places, splits, weights = drawn(columns, batch, dtype, seed)
    found, told = gradient(top, columns, places, splits, weights)
    assert not any(told)
    wanted = ops.grouped_embedding_post_look_up_grad(
        top_grad=top,
        emb_rows=[np.zeros((u, dim), dtype) for u, dim, _, _ in columns],
        unique_idxs=places,
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


def test_nothing_to_add() -> None:
    same([(0, 4, "sum", False)], 5, np.float32, seed=1)
    same([(0, 4, "sum", False)], 0, np.float32, seed=1)


def test_trouble_is_told() -> None:
    columns = [(4, 4, "sum", False)]
    top, places, splits, weights = drawn(columns, 6, np.float32, seed=2)
    wrong = places.copy()
    wrong[2] = 4
    assert gradient(top, columns, wrong, splits, weights)[1] == [call_of.BAD_ID, 0, 2, 4]
    splits[0, 6] = 1000
    assert gradient(top, columns, places, splits, weights)[1] == [call_of.BAD_SPLIT, 0, 5, 1000]
