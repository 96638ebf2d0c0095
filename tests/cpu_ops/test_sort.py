from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion.cpu_ops import sort
from fusion.runtime.native.jit import callable_from_python

sort_by_key = callable_from_python(sort.sort_by_key)


def check(keys, places=None):
    keys = np.array(keys, np.int64)
    places = np.arange(len(keys), dtype=np.int32) if places is None else places
    expected = places[np.argsort(keys[places], kind="stable")]
    buffer = np.empty(len(places), np.int32)
    sort_by_key(places, keys, buffer)
    np.testing.assert_array_equal(places, expected)


CASES = {
    "empty": [],
    "one": [3],
    "sorted": range(1000),
    "descending": range(1000, 0, -1),
    "all equal": [7] * 100,
    "pairs descending": np.repeat(np.arange(500, 0, -1), 2),
    "two runs": [*range(0, 100, 2), *range(1, 100, 2)],
    "a short run last": [*range(100), -5],
    "a short run first": [500, *range(100)],
    "extremes": [2**63 - 1, -(2**63), 0, 2**63 - 1, -(2**63)],
}


@pytest.mark.parametrize("name", CASES)
def test_named_cases(name):
    check(CASES[name])


@given(keys=st.lists(st.integers(-4, 4), max_size=60))
def test_any_keys(keys):
    check(keys)


@given(runs=st.lists(st.lists(st.integers(0, 50), max_size=20).map(sorted), max_size=8))
def test_any_runs(runs):
    check([key for run in runs for key in run])


def test_some_places_of_many_keys():
    rng = np.random.default_rng(0)
    check(rng.integers(0, 9, 100), rng.permutation(100)[:40].astype(np.int32))


@pytest.mark.parametrize("order", ["random", "descending", "runs"])
def test_a_million_keys(order):
    keys = np.random.default_rng(1).permutation(10**6)
    if order == "descending":
        keys = np.sort(keys)[::-1]
    elif order == "runs":
        keys = np.sort(keys.reshape(4, -1), axis=1).ravel()
    check(keys)


def test_the_column_of_a_matrix_serves_as_keys():
    indices = np.array([[0, 5], [0, 2], [0, 5], [0, 1]])
    places = np.arange(4, dtype=np.int32)
    sort_by_key(places, indices[:, 1], np.empty(4, np.int32))
    assert places.tolist() == [3, 1, 0, 2]
