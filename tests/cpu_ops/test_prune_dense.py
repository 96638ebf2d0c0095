from __future__ import annotations

import numpy as np
import pytest

from fusion.ops.bags.cpu_kernels import prune_dense
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.runtime.native.jit import callable_from_python

mark_dense_rows = callable_from_python(prune_dense.mark_dense_rows)
list_dense_entries = callable_from_python(prune_dense.list_dense_entries)

LEAST = np.iinfo(np.int64).min


def expected(ids, rules):
    """(values, indices) of the entries kept, by the rules as they are written."""
    kept = []
    for row, column in np.ndindex(ids.shape):
        if rules.use_ignored and ids[row, column] == rules.ignored:
            continue
        number = int(ids[row, column]) + column * rules.stride
        if rules.buckets and not 0 <= number < rules.buckets:
            number = rules.bucket_default
        if number >= rules.min_id:
            kept.append((number, row, column))
    return np.array(kept, np.int64).reshape(-1, 3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (50, 7)])
@pytest.mark.parametrize("ignored", [None, -1, 3])
@pytest.mark.parametrize("stride", [0, 10])
@pytest.mark.parametrize("buckets", [0, 5])
@pytest.mark.parametrize("prune", [False, True])
def test_entries_of_random_matrices(dtype, shape, ignored, stride, buckets, prune):
    ids = np.random.default_rng(7).integers(-3, 9, shape).astype(dtype)
    rules = DenseRules(ignored is not None, ignored or 0, stride, buckets, 2, 0 if prune else LEAST)
    entries = expected(ids, rules)
    empty = np.full(shape[0], True)
    kept = mark_dense_rows(ids, rules, dtype, empty)
    assert kept == len(entries)
    np.testing.assert_array_equal(empty, ~np.isin(np.arange(shape[0]), entries[:, 1]))
    filled = np.flatnonzero(empty)
    for fill in (False, True):
        total = kept + len(filled) * fill
        values, indices = np.full(total, -77, dtype), np.full((total, 2), -77)
        list_dense_entries(ids, rules, dtype, empty, dtype(8), values, indices)
        np.testing.assert_array_equal(values[:kept], entries[:, 0])
        np.testing.assert_array_equal(indices[:kept], entries[:, 1:])
        assert values[kept:].tolist() == [8] * (len(filled) * fill)
        assert indices[kept:].tolist() == [[row, 0] for row in filled] * fill
