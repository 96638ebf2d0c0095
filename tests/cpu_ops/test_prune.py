from __future__ import annotations

import numpy as np
import pytest

from fusion.ops.bags.cpu_kernels import prune
from fusion.runtime.native.jit import callable_from_python

mark_rows = callable_from_python(prune.mark_rows)
mark_entries = callable_from_python(prune.mark_entries)
list_entries = callable_from_python(prune.list_entries)
take_values = callable_from_python(prune.take_values)
take_indices = callable_from_python(prune.take_indices)
count_true = callable_from_python(prune.count_true)

put_in_buckets = callable_from_python(prune.put_in_buckets)

NAN, INF = np.nan, np.inf
#: Keeps every id.
LEAST = np.iinfo(np.int64).min


def run(values, rows, weights, batch, prune_ids, prune_weights):
    """(count or status, is_row_empty, places kept, their flags)."""
    least = 0 if prune_ids else LEAST
    prune_weights &= prune_ids
    empty = np.zeros(batch, bool)
    kept = mark_rows(values, rows, weights, least, prune_weights, empty)
    if kept < 0:
        return kept, empty, None, None
    places, flags = np.empty(kept, np.int64), np.full(len(values), -77, np.int32)
    list_entries(values, weights, least, prune_weights, empty, places)
    mark_entries(values, weights, least, prune_weights, flags)
    return kept, empty, places, flags


def entries(rng, count, batch, dtype):
    values = rng.integers(-3, 9, count).astype(dtype)
    rows = np.stack([rng.integers(0, batch, count), rng.integers(0, 99, count)], 1)
    weights = rng.choice([-1.0, 0.0, -0.0, 0.5, 2.0, NAN, INF, -INF], count).astype(np.float32)
    return values, rows.astype(np.int64).reshape(-1, 2), weights


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("prune_ids", [False, True])
@pytest.mark.parametrize("prune_weights", [False, True])
@pytest.mark.parametrize(("count", "batch"), [(0, 0), (0, 4), (1, 1), (200, 60), (100_000, 7)])
def test_random_entries(dtype, prune_ids, prune_weights, count, batch):
    values, rows, weights = entries(np.random.default_rng(count), count, batch, dtype)
    keep = np.ones(count, bool)
    if prune_ids:
        keep &= values >= 0
        if prune_weights:
            keep &= weights > 0
    kept, empty, places, flags = run(values, rows, weights, batch, prune_ids, prune_weights)
    assert kept == keep.sum()
    np.testing.assert_array_equal(empty, ~np.isin(np.arange(batch), rows[keep, 0]))
    np.testing.assert_array_equal(places, np.flatnonzero(keep))
    np.testing.assert_array_equal(flags, keep)
    assert count_true(empty) == empty.sum()


@pytest.mark.parametrize("row", [-1, 3, 2**62, -(2**63)])
def test_a_row_outside_the_batch_is_reported_by_its_place(row):
    rows = np.array([[0, 0], [1, 0], [row, 0], [row, 1]])
    values, weights = np.array([1, -1, 2, 3]), np.ones(4, np.float32)
    assert run(values, rows, weights, 3, True, False)[0] == -1 - 2
    # An entry that is dropped is not looked at, as in stock TensorFlow.
    values[2] = -1
    assert run(values, rows, weights, 3, True, False)[0] == -1 - 3
    assert run(values, rows, weights, 3, False, False)[0] == -1 - 2


def test_any_entry_is_outside_an_empty_batch():
    one = np.array([5]), np.array([[0, 0]]), np.ones(1, np.float32)
    assert run(*one, 0, True, False)[0] == -1


def test_weights_are_read_only_if_they_prune():
    nothing = np.zeros(0, np.float64)
    kept, _, places, _ = run(np.array([4, -4]), np.zeros((2, 2), np.int64), nothing, 1, True, False)
    assert (kept, places.tolist()) == (1, [0])


@pytest.mark.parametrize("flag", [bool, np.int32])
def test_rows_are_filled_behind_the_entries_kept(flag):
    values, nothing = np.array([7, -2, 6]), np.zeros(0, np.float32)
    empty = np.array([True, False, True, True]).astype(flag)
    listed = np.full(5, -77)
    list_entries(values, nothing, 0, False, empty, listed)
    assert listed.tolist() == [0, 2, -1, -3, -4]


def test_rows_are_not_filled_unless_there_is_room():
    values, nothing = np.array([7, -2]), np.zeros(0, np.float32)
    listed = np.full(1, -77)
    list_entries(values, nothing, 0, False, np.array([True, True]), listed)
    assert listed.tolist() == [0]


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_values_of_listed_entries(dtype):
    out = np.empty(4, dtype)
    take_values(np.array([8, 9], dtype), np.array([1, -1, 0, -8]), dtype(5), out)
    assert out.tolist() == [9, 5, 8, 5]


def test_indices_of_listed_entries():
    out = np.empty((3, 2), np.int64)
    take_indices(np.array([[4, 6], [5, 7]]), np.array([1, -1, -(2**40)]), out)
    assert out.tolist() == [[5, 7], [0, 0], [2**40 - 1, 0]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_outside_the_buckets_become_the_default(dtype):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, -1, 0, 6, 7, limits.max], dtype)
    put_in_buckets(values, 7, 3)
    assert values.tolist() == [3, 3, 0, 6, 3, 3]
