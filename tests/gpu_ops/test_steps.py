"""The steps before and behind lookups, in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from fusion.gpu_ops.kernels import scan
from fusion.gpu_ops.layout.call import BAD_ROW
from fusion.gpu_ops.layout.records import Entries, Ids, PrunedEntries
from fusion.gpu_ops.steps.sums import prefix_sums, stable_order
from fusion.ops.bags.gpu_steps.prune import fill, mark, put
from fusion.ops.bags.gpu_steps.unique import find_firsts, number_ids
from fusion.runtime.tensorflow.dtypes import FLOAT32, INT32, INT64
from tests.gpu_ops.simulation import Simulated

KINDS = {np.dtype(np.int32): INT32, np.dtype(np.int64): INT64}


@pytest.mark.parametrize("count", [0, 1, 3, *(scan.TILE + k for k in (-1, 0, 1)), 1_700])
def test_prefix_sums(count: int) -> None:
    device, draw = Simulated(), np.random.default_rng(count)
    counts = draw.integers(0, 5, count).astype(np.int32)
    total = device.reserve(8)
    places = prefix_sums(device, device.put(counts), count, total)
    assert device.words(total, 1) == [counts.sum()]
    np.testing.assert_array_equal(
        device.get(places, count, np.int64), np.cumsum(counts) - counts, strict=True
    )


def test_sums_of_tiles_are_64_bits_wide() -> None:
    device, sums = Simulated(), np.full(131, 2**33, np.int64)
    address = device.put(sums)
    device.launch("scan_sums", 1, scan.THREADS, address, 130, address + 8 * 130)
    np.testing.assert_array_equal(sums, np.arange(131) * 2**33)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 31, scan.TILE + 3])
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of hashes, as is meant
def test_distinct_ids(count: int, dtype: Any) -> None:
    draw = np.random.default_rng(count)
    info = np.iinfo(dtype)
    for low, high in ((0, 1), (-5, 40), (info.min, info.max)):
        ids = draw.integers(low, high, count, endpoint=True).astype(dtype)
        ids[: count // 3] = ids[count - count // 3 :]
        device = Simulated()
        given = Ids(device.put(ids), KINDS[ids.dtype], count)
        firsts = find_firsts(device, given)
        keys, places, counts = (one.numpy() for one in ops.unique_with_counts_v3(input=ids))
        assert device.words(firsts.total, 1) == [keys.size]
        outs = device.reserve(keys.nbytes), device.reserve(4 * count), device.reserve(counts.nbytes)
        number_ids(device, given, firsts, keys.size, *outs)
        np.testing.assert_array_equal(device.get(outs[0], keys.size, dtype), keys)
        np.testing.assert_array_equal(device.get(outs[1], count, np.int32), places)
        np.testing.assert_array_equal(device.get(outs[2], keys.size, np.int32), counts)


@pytest.mark.parametrize(
    ("count", "most"), [(0, 5), (1, 0), (128, 70_000), (129, 70_000), (300, 2)]
)
def test_sorting_is_stable(count: int, most: int) -> None:
    keys = np.random.default_rng(count).integers(0, most, count, endpoint=True).astype(np.int32)
    device = Simulated()
    order = stable_order(device, device.put(keys), count, most)
    np.testing.assert_array_equal(
        device.get(order, count, np.int32), np.argsort(keys, kind="stable")
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("count", "batch", "fills"), [(0, 3, True), (50, 9, True), (33, 80, False)]
)
def test_entries_are_dropped_and_rows_filled(
    count: int, batch: int, fills: int, weighted: bool, dtype: Any
) -> None:
    draw, device = np.random.default_rng(count), Simulated()
    ids = draw.integers(-3, 9, count).astype(dtype)
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 99, count)], 1)
    weights = draw.integers(-2, 4, count).astype(np.float32)
    given = Entries(
        device.put(ids), KINDS[ids.dtype], count, device.put(indices), batch,
        *((device.put(weights), FLOAT32, 4) if weighted else (0, 0, 0)),
    )  # fmt: skip
    errors, weight = np.zeros(4, np.int64), int(np.float32(0.5).view(np.int32))
    found = mark(device, given, 0, int(weighted), device.put(errors))
    kept, empty = device.words(found.totals, 2)
    total = int(kept + empty * fills)
    out = PrunedEntries(
        device.reserve(ids.itemsize * total),
        device.reserve(16 * total),
        device.reserve(4 * total),
    )
    put(device, given, found, out)
    if fills:
        fill(device, given, found, int(kept), 4, weight, out)
    assert not errors.any()
    wanted = ops.prune_invalid_and_fill_empty_rows(
        sp_values=ids,
        sp_indices=indices,
        sp_dense_shape=np.array([batch, 99], np.int64),
        sp_weights_values=weights if weighted else np.zeros(1, np.float32),
        fill_empty_row=bool(fills),
        prune=True,
        default_id=4,
        use_sparse_weights=weighted,
        prune_sparse_weights=weighted,
        default_weight=0.5,
    )
    m = total
    assert m == wanted.sp_values_out.shape[0]
    np.testing.assert_array_equal(device.get(out.ids, m, dtype), wanted.sp_values_out.numpy())
    np.testing.assert_array_equal(
        device.get(out.indices, 2 * m, np.int64).reshape(m, 2), wanted.sp_indices_out.numpy()
    )
    flags = device.get(found.empty, batch, np.int32)
    np.testing.assert_array_equal(flags != 0, wanted.is_row_empty.numpy())
    if weighted:
        np.testing.assert_array_equal(
            device.get(out.weights, m, np.float32), wanted.sp_weights_values_out.numpy()
        )


@pytest.mark.parametrize("row", [-1, 4, 2**40])
def test_rows_outside_the_batch_are_told(row: int) -> None:
    device, errors = Simulated(), np.zeros(4, np.int64)
    ids, indices = np.array([1, -1, 2]), np.array([[0, 0], [99, 0], [row, 0]])
    given = Entries(device.put(ids), INT64, 3, device.put(indices), 4, 0, 0, 0)
    mark(device, given, 0, 0, device.put(errors))
    assert errors.tolist() == [BAD_ROW, 0, 2, row]
