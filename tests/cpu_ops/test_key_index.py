from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fusion.cpu_ops import key_index
from fusion.cpu_ops.key_index import BUCKET_BYTES, KEYS, STRIPES, KeyIndex
from fusion.runtime.native.jit import callable_from_python

begin_index = callable_from_python(key_index.begin_index)
find_rows = callable_from_python(key_index.find_rows)
add_rows = callable_from_python(key_index.add_rows)
remove = callable_from_python(key_index.remove)
free_row = callable_from_python(key_index.free_row)

#: Bytes of a line of the cache.
LINE = 64


class Index:
    """An index in memory of its own, with guards behind it."""

    def __init__(self, capacity: int) -> None:
        size = key_index.index_bytes(capacity)
        self._memory = np.zeros(size + 2 * LINE, np.uint8)
        start = -self._memory.ctypes.data % LINE
        self._behind = self._memory[start + size :]
        self._behind[:] = 0xA5
        self.address = self._memory.ctypes.data + start
        self.head = self._memory[start : start + 8 * KeyIndex.SIZE].view(np.int64)
        begin_index(self.address, capacity)

    def find(self, keys) -> list[int]:
        keys = np.ascontiguousarray(keys, np.int64)
        rows = np.full(len(keys), -77)
        find_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data)
        return rows.tolist()

    def add(self, keys, admission: int = 1) -> list[int]:
        keys = np.ascontiguousarray(keys, np.int64)
        rows = np.full(len(keys), -77)
        add_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data, admission)
        return rows.tolist()

    def remove(self, key: int) -> int:
        return remove(self.address, key) - 1

    def check(self) -> None:
        """Chains have all keys once, no gaps, and nothing was written behind the end."""
        assert (self._behind == 0xA5).all()
        assert not self.head[KeyIndex.locks : KeyIndex.locks + STRIPES].any()
        assert not (self.head[KeyIndex.versions : KeyIndex.versions + STRIPES] & 1).any()
        base = self.address - self._memory.ctypes.data
        words = self._memory[base:]
        found: list[int] = []
        for number in range(self.head[KeyIndex.bucket_count]):
            at = self.head[KeyIndex.buckets] + BUCKET_BYTES * number
            is_first = True
            while True:
                bucket = words[at : at + BUCKET_BYTES]
                keys, ints = bucket[: 8 * KEYS].view(np.int64), bucket[8 * KEYS :].view(np.int32)
                here = [int(k) for k, row in zip(keys, ints[:KEYS], strict=True) if row != 0]
                assert here or is_first
                found += here
                if ints[KEYS] == 0:
                    break
                at = self.head[KeyIndex.more] + BUCKET_BYTES * (int(ints[KEYS]) - 1)
                is_first = False
        assert len(found) == len({*found}) == self.head[KeyIndex.key_count]


def test_keys_have_rows_in_the_order_in_which_they_come():
    index = Index(10)
    assert index.find([5, 0]) == [-1, -1]
    assert index.add([7, -3, 7, 0, 2**63 - 1, -(2**63)]) == [0, 1, 0, 2, 3, 4]
    assert index.find([0, 7, 8, -(2**63), 2**63 - 1, -3]) == [2, 0, -1, 4, 3, 1]
    index.check()


def test_a_full_index_has_no_row_for_others():
    index = Index(3)
    assert index.add([1, 2, 3, 4, 1]) == [0, 1, 2, -1, 0]
    assert index.add([4, 3]) == [-1, 2]
    assert index.remove(2) == 1
    assert index.add([4]) == [-1]
    free_row(index.address, 2)
    assert index.add([4, 5]) == [1, -1]
    index.check()


def test_a_key_gets_a_row_when_it_is_seen_often_enough():
    index = Index(10)
    assert index.add([1, 2, 1], admission=3) == [-1, -1, -1]
    assert index.find([1, 2]) == [-1, -1]
    assert index.add([2, 1, 3, 1], admission=3) == [-1, 0, -1, 0]
    assert index.add([2], admission=3) == [1]
    assert index.find([1, 2, 3]) == [0, 1, -1]
    assert index.remove(3) == -1
    assert index.remove(4) == -1
    index.check()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_a_dict(seed):
    rng = np.random.default_rng(seed)
    index, rows = Index(20_000), dict[int, int]()
    keys = rng.integers(-(2**63), 2**63 - 1, 30_000)
    for _ in range(60):
        new = rng.choice(keys, rng.integers(0, 2000))
        for key, row in zip(new.tolist(), index.add(new), strict=True):
            if key in rows:
                assert row == rows[key]
            elif row >= 0:
                rows[key] = row
        assert len({*rows.values()}) == len(rows)
        for key in rng.choice(keys, 200).tolist():
            assert index.remove(key) == rows.pop(key, -1)
        asked = rng.choice(keys, 3000)
        assert index.find(asked) == [rows.get(key, -1) for key in asked.tolist()]
        index.check()


def test_keys_whose_hashes_are_alike_share_a_chain():
    """Keys of one bucket, however many buckets there are."""
    hash_of = callable_from_python(key_index.hash_of)
    candidates = np.arange(4_000_000)
    hashes = np.array([hash_of(int(k)) for k in candidates[:200_000]])
    alike = candidates[:200_000][(hashes & 4095) == 77]
    assert len(alike) > 30
    index = Index(100_000)
    assert index.add(alike) == list(range(len(alike)))
    assert index.head[KeyIndex.more_count] >= len(alike) // KEYS - 1
    others = candidates[200_000:260_000]
    index.add(others)
    assert index.find(alike) == list(range(len(alike)))
    for key in alike[::2].tolist():
        assert index.remove(key) >= 0
    index.check()
    assert index.find(alike[1::2]) == list(range(len(alike)))[1::2]
    assert {*index.find(alike[::2])} == {-1}


def test_threads_find_what_was_added_while_others_add():
    index, threads, each = Index(400_000), 8, 40_000
    common = np.arange(0, 10_000) * 3

    def work(number: int) -> list[int]:
        rng = np.random.default_rng(number)
        own = 1_000_000 * (number + 1) + np.arange(each)
        rows = list[int]()
        for start in range(0, each, 1000):
            rows += index.add(own[start : start + 1000])
            index.add(rng.choice(common, 500))
            at = rng.integers(0, len(rows), 500)
            assert index.find(own[at]) == [rows[k] for k in at]
        return rows

    with ThreadPoolExecutor(threads) as pool:
        found = [*pool.map(work, range(threads))]
    index.check()
    every = [row for rows in found for row in rows] + index.add(common)
    assert len({*every}) == len(every) == threads * each + len(common)
    assert index.head[KeyIndex.key_count] == len(every)
    for number, rows in enumerate(found):
        assert index.find(1_000_000 * (number + 1) + np.arange(each)) == rows
