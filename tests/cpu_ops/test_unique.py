from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import unique
from fusion.runtime.native.jit import callable_from_python

find_unique = callable_from_python(unique.find_unique)
table_bits = callable_from_python(unique.table_bits)

INT64 = np.iinfo(np.int64)
INT32 = np.iinfo(np.int32)


def run(ids):
    """(keys, places, counts) as the kernel finds them, in scratch of its own choice of size."""
    bits = table_bits(len(ids))
    slots = np.zeros(1 << bits, np.int32)
    keys = np.full(len(ids), -77, ids.dtype)
    places, counts = np.full(len(ids), -77, np.int32), np.full(len(ids), -77, np.int32)
    found = find_unique(ids, slots, bits, keys, places, counts)
    assert np.all(keys[found:] == -77)
    return keys[:found], places, counts[:found]


def reference(ids):
    keys, first, inverse, counts = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return keys[order], rank[inverse.ravel()], counts[order]


def colliding(bits, count):
    """Ids that all start at the same slot of a table of 2**bits slots."""
    modulus = 2**64
    inverse = pow(int(unique.SPREAD), -1, modulus)
    hashes = [(5 << (64 - bits)) + k for k in range(count)]
    return np.array([h * inverse % modulus for h in hashes], np.uint64).view(np.int64)


CASES = {
    "empty": np.zeros(0, np.int64),
    "one": np.array([7], np.int64),
    "all equal": np.full(1000, 3, np.int64),
    "all distinct": np.arange(1000, dtype=np.int64)[::-1].copy(),
    "int64 extremes": np.array([INT64.min, INT64.max, 0, -1, INT64.min, INT64.max, -1], np.int64),
    "int32 extremes": np.array([INT32.min, INT32.max, 0, -1, INT32.min, INT32.max], np.int32),
    "beyond 2**31": np.array([2**31, 2**32 + 5, 5, 2**31, 2**32 + 5], np.int64),
    "multiples of a power of two": np.arange(500, dtype=np.int64) << 40,
    "collisions": np.tile(colliding(bits=11, count=600), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_named_cases(name):
    for actual, expected in zip(run(CASES[name]), reference(CASES[name]), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("size", "vocabulary"), [(1, 1), (37, 5), (5000, 700), (100_000, 50_000)])
def test_random_ids(dtype, size, vocabulary):
    ids = np.random.default_rng(size).integers(-vocabulary, vocabulary, size).astype(dtype)
    for actual, expected in zip(run(ids), reference(ids), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_colliding_ids_do_collide():
    ids = colliding(bits=11, count=600)
    slots = (ids.view(np.uint64) * unique.SPREAD) >> np.uint64(64 - 11)
    assert len(set(slots.tolist())) == 1
    assert table_bits(600) == 11


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 1000, 1024, 1025, 2**30])
def test_half_of_the_slots_stay_free(count):
    slots = 1 << table_bits(count)
    assert slots >= 2 * count
    assert slots <= max(2, 4 * count)
