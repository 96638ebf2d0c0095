from __future__ import annotations

import numpy as np
import pytest

from fusion.ops.bags.cpu_kernels import partition
from fusion.ops.bags.cpu_kernels.partition import DIV, MOD, MOD_EV
from fusion.runtime.native.jit import callable_from_python

assign_shards = callable_from_python(partition.assign_shards)
split_ids = callable_from_python(partition.split_ids)
order_by_shard = callable_from_python(partition.order_by_shard)

STRATEGIES = {"div": DIV, "mod": MOD, "mod_ev": MOD_EV}


def run(ids, rows, strategy):
    """(status, permutation, ids of each shard)."""
    rows = np.array(rows, np.int64)
    permutation = np.full((len(ids), 2), -77, np.int32)
    counts, ends = np.full(len(rows), -77, np.int64), np.empty(len(rows), np.int64)
    status = assign_shards(ids, rows, ends, STRATEGIES[strategy], permutation, counts)
    shards: list[np.ndarray] = []
    if status < 0:
        shards = [np.full(count, -77, ids.dtype) for count in counts]
        addresses = np.array([shard.ctypes.data for shard in shards])
        split_ids(ids, rows, ends, STRATEGIES[strategy], permutation, counts, addresses)
    return status, permutation, shards


def reference(ids, rows, strategy):
    """(permutation, ids of each shard) of ids that are all in the table."""
    shards: list[list[int]] = [[] for _ in rows]
    permutation = []
    for key in ids.tolist():
        if strategy == "div":
            shard = int(np.searchsorted(np.cumsum(rows), key, side="right"))
            local = key - sum(rows[:shard])
        elif strategy == "mod":
            shard, local = key % len(rows), key // len(rows)
        else:
            shard, local = key % 1000 % len(rows), key
        permutation.append((shard, len(shards[shard])))
        shards[shard].append(local)
    return np.array(permutation).reshape(-1, 2), shards


def check(ids, rows, strategy):
    status, permutation, shards = run(ids, rows, strategy)
    assert status == -1
    expected_permutation, expected_shards = reference(ids, rows, strategy)
    np.testing.assert_array_equal(permutation, expected_permutation)
    for shard, expected in zip(shards, expected_shards, strict=True):
        np.testing.assert_array_equal(shard, np.array(expected, ids.dtype))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n_shards", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_random_ids(strategy, dtype, n_shards, size):
    vocabulary = 101
    rows = [vocabulary // n_shards + (k < vocabulary % n_shards) for k in range(n_shards)]
    check(np.random.default_rng(size).integers(0, vocabulary, size).astype(dtype), rows, strategy)


def test_more_ids_than_fit_16_bits():
    ids = np.random.default_rng(0).permutation(100_000).astype(np.int64)
    for strategy in STRATEGIES:
        check(ids, [34_000, 33_000, 33_000] if strategy == "div" else [33_334] * 3, strategy)


@pytest.mark.parametrize("rows", [[0, 3, 0, 0, 5, 0], [8, 0], [0, 8], [1, 6, 1]])
def test_div_splits_by_the_actual_rows(rows):
    check(np.array([7, 0, 3, 2, 2, 6, 1, 5, 4]), rows, "div")


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("bad", "rows"), [(-1, [3, 3]), (6, [3, 3]), (0, [0, 0]), (2**40, [9, 9])])
def test_an_id_outside_the_table_is_reported_by_its_place(strategy, bad, rows):
    inside = [] if sum(rows) == 0 else [0, 5, 1]
    ids = np.array([*inside, bad, *inside], np.int64)
    status, _, _ = run(ids, rows, strategy)
    assert status == len(inside)


def test_mod_checks_each_shard_by_itself():
    # 4 = shard 0, row 2 of a shard of two rows, although the table has six.
    assert run(np.array([5, 4]), [2, 4], "mod")[0] == 1


def test_hash_table_shards_take_any_id():
    ids = np.array([-1, -1000, 2**62, 1999, -(2**63)], np.int64)
    status, permutation, shards = run(ids, [0, 0, 0], "mod_ev")
    assert status == -1
    np.testing.assert_array_equal(permutation[:, 0], ids % 1000 % 3)
    assert sorted(np.concatenate(shards).tolist()) == sorted(ids.tolist())


def test_rows_beyond_32_bits():
    ids = np.array([2**33 + 1, 2**34, 5], np.int64)
    check(ids, [2**33, 2**34], "div")
    check(ids, [2**34, 2**34], "mod")


def test_entries_by_shard():
    permutation = np.array([[2, 0], [0, 0], [2, 1], [0, 1], [2, 2]], np.int32)
    entries, out = np.array([70, 71, 72, 73, 74]), np.full(5, -77)
    counts, starts = np.array([2, 0, 3]), np.full(3, -77)
    order_by_shard(entries, permutation, counts, starts, out)
    assert starts.tolist() == [0, 2, 2]
    assert out.tolist() == [71, 73, 70, 72, 74]
