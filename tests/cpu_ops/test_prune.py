from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import prune
from fusion.runtime.jit import callable_from_python

mark_rows = callable_from_python(prune.mark_rows)
copy_kept = callable_from_python(prune.copy_kept)
fill_rows = callable_from_python(prune.fill_rows)
count_true = callable_from_python(prune.count_true)

NAN, INF = np.nan, np.inf


def run(values, rows, weights, batch, prune_ids, prune_weights):
    """(count or status, is_row_empty, values, rows, places kept)."""
    empty = np.zeros(batch, bool)
    kept = mark_rows(values, rows, weights, prune_ids, prune_weights, empty)
    if kept < 0:
        return kept, empty, None, None, None
    out_values, out_rows = np.empty(kept, values.dtype), np.empty((kept, 2), np.int64)
    places = np.empty(kept, np.int64)
    arguments = (values, rows, weights, prune_ids, prune_weights, out_values, out_rows, places)
    assert copy_kept(*arguments) == kept
    return kept, empty, out_values, out_rows, places


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
    kept, empty, out_values, out_rows, places = run(
        values, rows, weights, batch, prune_ids, prune_weights
    )
    assert kept == keep.sum()
    np.testing.assert_array_equal(empty, ~np.isin(np.arange(batch), rows[keep, 0]))
    np.testing.assert_array_equal(out_values, values[keep])
    np.testing.assert_array_equal(out_rows, rows[keep])
    np.testing.assert_array_equal(places, np.flatnonzero(keep))
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
    kept, _, values, _, _ = run(
        np.array([4, -4]), np.zeros((2, 2), np.int64), nothing, 1, True, False
    )
    assert (kept, values.tolist()) == (1, [4])


def test_fill_appends_rows_in_order():
    empty = np.array([True, False, True, True])
    values, rows = np.array([8, 0, 0, 0], np.int32), np.full((4, 2), 9, np.int64)
    fill_rows(empty, 1, np.int32(5), values, rows)
    assert values.tolist() == [8, 5, 5, 5]
    assert rows.tolist() == [[9, 9], [0, 0], [2, 0], [3, 0]]


def test_fill_leaves_full_rows_alone():
    values, rows = np.array([8], np.int64), np.full((1, 2), 9, np.int64)
    fill_rows(np.zeros(3, bool), 1, 5, values, rows)
    assert values.tolist() == [8]
    assert rows.tolist() == [[9, 9]]
