"""Results so large that they are written past the caches, and so many columns that tasks have
several; both against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fusion.ops.columns.cpu import lookup_kernel
from tests.ops.embedding_columns import NO_IDS, attrs, copied, grouped

_ROWS = 50


def _column(rng, batch, dim, kind=np.float32, width=1):
    """Rows of `width` ids, of which every seventh is no entry, and their sums."""
    table = rng.integers(-4, 5, [_ROWS, dim]).astype(kind)
    ids = rng.integers(0, _ROWS, [batch, width])
    ids[::7] = -1
    inputs = {
        "table": table,
        "ids": ids,
        "entry_rows": NO_IDS,
        "dense_shape": NO_IDS,
        "weights": np.zeros(0, kind),
    }
    told = attrs(form="dense", combiner="sum", prune=True, fill_empty_row=True, dim=dim)
    rows = np.concatenate([table, np.zeros([1, dim], kind)])
    return {"inputs": inputs, "attrs": told}, sum(rows[ids[:, k]] for k in range(width))


@pytest.mark.parametrize(
    ("dims", "kind", "width"),
    [
        ((16, 48), np.float32, 1),
        ((16, 48), np.float32, 2),
        ((144,), np.float32, 1),  # two tiles
        ((32, 64), np.float16, 1),
        ((32, 64), ml_dtypes.bfloat16, 2),
        ((8, 24), np.float64, 1),
        ((17, 16), np.float32, 1),  # not whole lines
        ((3, 13, 16), np.float32, 1),  # whole lines in all, but not for each
    ],
)
def test_a_result_that_no_cache_holds(dims, kind, width):
    row_bytes = sum(dims) * np.dtype(kind).itemsize
    batch = lookup_kernel.STREAMED_BYTES // row_bytes + 1000
    rng = np.random.default_rng(1)
    columns, expected = zip(*(_column(rng, batch, dim, kind, width) for dim in dims), strict=True)
    for _ in range(3):
        assert np.array_equal(grouped(list(columns)), np.concatenate(expected, 1))


@pytest.mark.parametrize("batch", [1, 2, 31, 256, 700])
@pytest.mark.parametrize("count", [2, 150])
def test_tasks_of_several_columns(batch, count):
    rng = np.random.default_rng(batch)
    dims = rng.choice([1, 8, 16], count)
    columns, expected = zip(*(_column(rng, batch, int(dim)) for dim in dims), strict=True)
    matrix = rng.standard_normal((batch, 5)).astype(np.float32)
    found = grouped([*columns, copied(matrix)])
    assert np.array_equal(found, np.concatenate([*expected, matrix], 1))
