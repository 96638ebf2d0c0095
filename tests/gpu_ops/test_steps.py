"""The kernels of the steps before and behind lookups, in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

from fusion import ops
from fusion.cpu_ops.column_words import FLOAT32, INT32, INT64
from fusion.cpu_ops.unique import table_bits
from fusion.gpu_ops import prune, scan, sort, unique
from fusion.gpu_ops.call_words import BAD_ROW
from fusion.gpu_ops.simulated import allow

KINDS = {np.dtype(np.int32): INT32, np.dtype(np.int64): INT64}


def launch(kernel: Callable[..., None], count: int, threads: int, *arguments: Any) -> None:
    """Launches a kernel on so many threads, arrays by address; only those may be touched."""
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    words = [one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments]
    with allow(*arrays):
        cuda.jit(kernel)[max(-(-count // threads), 1), threads](*words)


def prefix_sums(counts: Any) -> tuple[Any, int]:
    """Of int32 counts, the sum of all before each, and of all, by the kernels."""
    tiles = scan.tiles_of(counts.size)
    sums, places = np.full(tiles + 1, 77, np.int64), np.full(counts.size, 77, np.int64)
    with allow(counts, sums, places):
        given = counts.ctypes.data, counts.size, sums.ctypes.data
        cuda.jit(scan.sum_tiles)[tiles, scan.THREADS](*given)
        cuda.jit(scan.scan_sums)[1, scan.THREADS](sums.ctypes.data, tiles)
        cuda.jit(scan.scan_tiles)[tiles, scan.THREADS](*given, places.ctypes.data)
    return places, int(sums[tiles])


@pytest.mark.parametrize("count", [0, 1, 3, *(scan.TILE + k for k in (-1, 0, 1)), 400])
def test_prefix_sums(count: int) -> None:
    counts = np.random.default_rng(count).integers(0, 5, count).astype(np.int32)
    places, total = prefix_sums(counts)
    assert total == counts.sum()
    np.testing.assert_array_equal(places, np.cumsum(counts) - counts)


def test_sums_of_tiles_are_64_bits_wide() -> None:
    sums = np.full(131, 2**33, np.int64)
    with allow(sums):
        cuda.jit(scan.scan_sums)[1, scan.THREADS](sums.ctypes.data, 130)
    np.testing.assert_array_equal(sums, np.arange(131) * 2**33)


def distinct(ids: Any) -> tuple[Any, Any, Any]:
    count, kind = ids.size, KINDS[ids.dtype]
    bits = table_bits.py_func(count)  # type: ignore[attr-defined]
    slots = np.full(1 << bits, unique.EMPTY, np.int64)
    found, firsts = np.full(count, 77, np.int64), np.full(count, 77, np.int32)
    launch(unique.insert_ids, count, 32, ids, kind, count, slots, bits, found)
    launch(unique.mark_firsts, count, 32, slots, found, count, firsts)
    ranks, total = prefix_sums(firsts)
    keys, places = np.full(total, 77, ids.dtype), np.full(count, 77, np.int32)
    counts = np.zeros(total, np.int32)
    given = ids, kind, count, slots, found, ranks, keys, places, counts
    launch(unique.number_ids, count, 32, *given)
    return keys, places, counts


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 200])
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of hashes, as is meant
def test_distinct_ids(count: int, dtype: Any) -> None:
    draw = np.random.default_rng(count)
    info = np.iinfo(dtype)
    for low, high in ((0, 1), (-5, 40), (info.min, info.max)):
        ids = draw.integers(low, high, count, endpoint=True).astype(dtype)
        ids[: count // 3] = ids[count - count // 3 :]
        wanted = ops.unique_with_counts_v3(input=ids)
        for mine, theirs in zip(distinct(ids), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy(), strict=True)


@pytest.mark.parametrize(("count", "most", "digits"), [(1, 3, 1), (32, 70_000, 3), (75, 3, 1)])
def test_sorting_is_stable(count: int, most: int, digits: int) -> None:
    keys = np.random.default_rng(count).integers(0, most, count).astype(np.int32)
    tiles = -(-count // scan.THREADS)
    order: Any = 0
    for shift in range(0, 8 * digits, 8):
        counts = np.zeros(sort.MOST_KEYS * tiles, np.int32)
        given = keys, INT32, order, count, shift, tiles
        launch(sort.count_keys, count, scan.THREADS, *given, counts)
        starts, _ = prefix_sums(counts)
        target = np.full(count, -1, np.int32)
        launch(sort.place_keys, count, scan.THREADS, *given, starts, target)
        order = target
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("count", "batch"), [(0, 3), (50, 9), (33, 80)])
def test_entries_are_dropped_and_rows_filled(
    count: int, batch: int, weighted: bool, dtype: Any
) -> None:
    draw = np.random.default_rng(count)
    ids = draw.integers(-3, 9, count).astype(dtype)
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 99, count)], 1)
    weights = draw.integers(-2, 4, count).astype(np.float32)
    kept, empty = np.full(count, 77, np.int32), np.ones(batch, np.int32)
    trouble, kind = np.zeros(4, np.int64), KINDS[ids.dtype]
    given: Any = weights if weighted else 0
    launch(
        prune.mark_entries, count, 32, ids, kind, count, indices, given, FLOAT32, 0, batch,
        kept, empty, trouble,
    )  # fmt: skip
    assert not trouble.any()
    places, total = prefix_sums(kept)
    fillers, more = prefix_sums(empty)
    m = total + more
    out_ids, out_indices = np.full(m, 77, dtype), np.full((m, 2), 77, np.int64)
    out_weights = np.full(m, 77, np.float32)
    made: Any = out_weights if weighted else 0
    outs = out_ids, out_indices, made
    size = ids.itemsize
    launch(prune.put_entries, count, 32, count, kept, places, ids, size, indices, given, 4, *outs)
    word = int(np.float32(0.5).view(np.int32))
    launch(
        prune.fill_rows, batch, 32, batch, empty, fillers, total, 4, kind, word,
        4 if weighted else 0, *outs,
    )  # fmt: skip
    wanted = ops.prune_invalid_and_fill_empty_rows(
        sp_values=ids,
        sp_indices=indices,
        sp_dense_shape=np.array([batch, 99], np.int64),
        sp_weights_values=weights if weighted else np.zeros(1, np.float32),
        fill_empty_row=True,
        prune=True,
        default_id=4,
        use_sparse_weights=weighted,
        prune_sparse_weights=weighted,
        default_weight=0.5,
    )
    np.testing.assert_array_equal(out_ids, wanted.sp_values_out.numpy(), strict=True)
    np.testing.assert_array_equal(out_indices, wanted.sp_indices_out.numpy(), strict=True)
    np.testing.assert_array_equal(empty != 0, wanted.is_row_empty.numpy())
    if weighted:
        np.testing.assert_array_equal(out_weights, wanted.sp_weights_values_out.numpy())


@pytest.mark.parametrize("row", [-1, 4, 2**40])
def test_rows_outside_the_batch_are_told(row: int) -> None:
    ids, indices = np.array([1, -1, 2]), np.array([[0, 0], [99, 0], [row, 0]])
    kept, empty, trouble = np.zeros(3, np.int32), np.ones(4, np.int32), np.zeros(4, np.int64)
    launch(prune.mark_entries, 3, 32, ids, INT64, 3, indices, 0, 0, 0, 4, kept, empty, trouble)
    assert trouble.tolist() == [BAD_ROW, 0, 2, row]
