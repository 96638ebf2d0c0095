"""The index of keys against a dict."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fusion.ops.tables.cpu_kernels.layout import (
    KEYS,
    STRIPES,
    KeyIndex,
)
from tests.cpu_ops.key_index import (
    Index,
    hash_of,
    release_rows,
    retire_row,
)


def test_keys_have_rows_in_the_order_in_which_they_come():
    index = Index(10)
    assert index.find([5, 0]) == [-1, -1]
    assert index.add([7, -3, 7, 0, 2**63 - 1, -(2**63)]) == [0, 1, 0, 2, 3, 4]
    assert index.find([0, 7, 8, -(2**63), 2**63 - 1, -3]) == [2, 0, -1, 4, 3, 1]
    assert index.head[KeyIndex.key_count] == index.head[KeyIndex.row_count] == 5
    index.check()


def test_no_keys():
    index = Index(1)
    assert index.add([]) == index.find([]) == []
    assert index.head[KeyIndex.key_count] == 0
    index.check()


def test_a_full_index_has_no_row_for_others():
    index = Index(3)
    assert index.add_and_tell([1, 2, 3, 4, 1]) == ([0, 1, 2, -1, 0], 3, 1)
    assert index.add_and_tell([4, 3, 4]) == ([-1, 2, -1], 0, 2)
    assert index.remove(2) == 1
    assert index.add([4]) == [-1]
    retire_row(index.address, 2)
    assert index.add([4]) == [-1]
    release_rows(index.address, 1)
    assert index.add_and_tell([4, 5]) == ([1, -1], 1, 1)
    index.check()


def test_an_index_holds_twice_as_many_keys_as_rows():
    """Buckets and their chains are enough for as many keys without a row as have one."""
    index = Index(3000)
    keys = np.arange(6000) * 977
    rows, added, refused = index.add_and_tell(keys)
    assert rows == [*range(3000)] + [-1] * 3000
    assert (added, refused) == (3000, 3000)
    assert index.head[KeyIndex.key_count] == 6000
    index.check()


def test_an_index_full_of_keys_refuses_others_and_keeps_what_it_has():
    index = Index(1)
    places = index.head[KeyIndex.max_buckets] + index.head[KeyIndex.max_more]
    keys = np.arange(2 * KEYS * int(places))
    rows, added, refused = index.add_and_tell(keys)
    assert (rows[0], {*rows[1:]}, added, refused) == (0, {-1}, 1, len(keys) - 1)
    assert STRIPES * KEYS <= index.head[KeyIndex.key_count] <= KEYS * places
    index.check()
    assert index.find(keys) == rows


def test_a_key_gets_a_row_when_it_is_seen_often_enough():
    index = Index(10, admission=3)
    assert index.add([1, 2, 1]) == [-1, -1, -1]
    assert index.find([1, 2]) == [-1, -1]
    assert index.counts() == {1: -2, 2: -1}
    assert index.add([2, 1, 3, 1]) == [-1, 0, -1, 0]
    assert index.add([2]) == [1]
    assert index.find([1, 2, 3]) == [0, 1, -1]
    assert index.counts() == {1: 1, 2: 2, 3: -1}
    assert index.remove(3) == -1
    assert index.remove(4) == -1
    index.check()


def test_a_key_that_is_there_several_times_has_its_row_everywhere():
    index = Index(10, admission=3)
    assert index.add_and_tell([8, 9, 8, 8]) == ([0, -1, 0, 0], 1, 0)
    assert index.record(8) == (3, 1)
    assert index.add([9, 9]) == [1, 1]
    index.check()


def test_counts_say_how_often_keys_are_seen():
    index = Index(10, admission=5)
    # A count of less than one is one: the key is there.
    assert index.add([1, 2, 3, 4], counts=[4, 5, 0, -7]) == [-1, 0, -1, -1]
    assert index.counts() == {1: -4, 2: 1, 3: -1, 4: -1}
    assert index.add([1, 2, 3], counts=[1, 100, 3]) == [1, 0, -1]
    assert (index.record(1), index.record(2)) == ((5, 1), (105, 1))
    index.check()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_a_dict(seed):
    rng = np.random.default_rng(seed)
    index, rows = Index(20_000), dict[int, int]()
    seen, steps = dict[int, int](), dict[int, int]()
    keys = rng.integers(-(2**63), 2**63 - 1, 30_000)
    for step in range(60):
        new = rng.choice(keys, rng.integers(0, 2000))
        for key, row in zip(new.tolist(), index.add(new, step=step), strict=True):
            if key in rows:
                assert row == rows[key]
            elif row >= 0:
                rows[key] = row
            seen[key] = seen.get(key, 0) + 1
            steps[key] = step
        assert len({*rows.values()}) == len(rows)
        for key in rng.choice(keys, 200).tolist():
            assert index.remove(key) == rows.pop(key, -1)
            seen.pop(key, None)
        asked = rng.choice(keys, 3000)
        assert index.find(asked) == [rows.get(key, -1) for key in asked.tolist()]
        if step % 8 == 0:
            index.check()
        for key in [*rows][:50]:
            assert index.record(key) == (seen[key], steps[key])
    index.check()


@pytest.mark.parametrize("seed", range(2))
def test_admission_is_as_a_dict_of_counts(seed):
    rng = np.random.default_rng(seed)
    index, seen = Index(5000, admission=4), dict[int, int]()
    for _ in range(40):
        keys = rng.zipf(1.3, 400) % 100_000
        counts = rng.integers(1, 3, len(keys))
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            seen[key] = seen.get(key, 0) + count
        rows = index.add(keys, counts)
        assert [row >= 0 for row in rows] == [seen[key] >= 4 for key in keys.tolist()]
        index.check()
    has = index.counts()
    assert {key: -count for key, count in has.items() if count < 0} == {
        key: count for key, count in seen.items() if count < 4
    }
    admitted = [key for key, count in seen.items() if count >= 4]
    assert {key: index.record(key)[0] for key in admitted} == {key: seen[key] for key in admitted}
    assert len(admitted) > 50


def test_keys_whose_hashes_are_alike_share_a_chain():
    """Keys of one bucket, however many buckets there are."""
    candidates = np.arange(260_000)
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
    seen = sum(index.record(int(key))[0] for key in common)
    assert seen == threads * (each // 1000) * 500 + len(common)


def test_threads_that_find_no_room_take_none():
    """Of keys for half of which there is room every row is given once."""
    index = Index(8000)
    with ThreadPoolExecutor(8) as pool:
        parts = [1000 * part + np.arange(1000) for part in range(16)]
        found = [row for rows in pool.map(index.add, parts) for row in rows]
    assert sorted(row for row in found if row >= 0) == [*range(8000)]
    assert index.head[KeyIndex.row_count] == 8000
    index.check()
