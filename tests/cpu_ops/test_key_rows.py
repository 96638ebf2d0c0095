"""Rows of keys: their first values, what is noted of them, and those that wait to be used again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fusion.ops.tables.cpu_kernels.layout import (
    MAX_SLOTS,
)
from tests.cpu_ops.key_index import (
    Guarded,
    Index,
    fill_rows,
    release_rows,
    retire_row,
)


def test_records_have_how_often_keys_were_seen_and_when():
    index = Index(10)
    index.add([1, 2, 1], step=7)
    assert (index.record(1), index.record(2)) == ((2, 7), (1, 7))
    index.add([2, 3], step=9)
    index.add([2], step=8)  # an earlier step is no later one
    assert (index.record(1), index.record(2), index.record(3)) == ((2, 7), (3, 9), (1, 9))
    index.find([1, 2, 3])
    assert index.record(3) == (1, 9)


def test_counts_stop_before_they_are_negative():
    index, most = Index(4, admission=2), 2**31 - 1
    for _ in range(3):
        index.add([1], counts=[most])
    assert index.record(1)[0] > 2**30
    for _ in range(3):
        index.add([2], counts=[1])
    assert index.record(2)[0] == 3


def test_a_row_that_is_used_again_has_a_record_of_its_own():
    index = Index(1)
    index.add([5], counts=[6], step=3)
    index.free(5)
    assert index.add([6], step=4) == [0]
    assert index.record(6) == (1, 4)


SAMPLES = np.arange(50 * 9).reshape(50, 9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_depend_on_key_seed_and_column(dtype):
    samples, keys = SAMPLES.astype(dtype), np.arange(-300, 300) * 12345
    first, other = (Index(1000, seed=4, samples=samples) for _ in range(2))
    first.add(keys)
    shuffled = np.random.default_rng(0).permutation(keys)
    for part in np.split(shuffled, 6):
        other.add(part)
    values = first.rows[first.find(keys)]
    np.testing.assert_array_equal(values, other.rows[other.find(keys)])
    # Each element is one of its column, and all of them are used.
    for column in range(9):
        assert {*values[:, column]} == {*samples[:, column]}
    assert len(np.unique(values, axis=0)) == len(keys)
    reseeded = Index(1000, seed=5, samples=samples)
    reseeded.add(keys)
    assert (reseeded.rows[reseeded.find(keys)] != values).mean() > 0.9
    assert not first.rows[len(keys) :].any()
    for index in (first, other, reseeded):
        index.check()


def test_of_one_sample_all_rows_are_equal():
    samples = np.array([[1, -2, 3.5]], np.float32)
    index = Index(20, samples=samples)
    index.add(range(20))
    np.testing.assert_array_equal(index.rows, np.repeat(samples, 20, 0))
    index.check()


def test_a_key_without_a_row_begins_none():
    index = Index(8, admission=2, samples=np.ones([1, 3], np.float32))
    index.add([1, 2])
    assert not index.rows.any()
    index.add([2])
    np.testing.assert_array_equal(index.rows, [[1] * 3] + [[0] * 3] * 7)


def test_initial_values_are_the_same_for_threads():
    samples, keys = SAMPLES.astype(np.float32), np.arange(40_000)
    alone = Index(50_000, seed=1, samples=samples)
    alone.add(keys)
    together, rng = Index(50_000, seed=1, samples=samples), np.random.default_rng(0)
    parts = [rng.permutation(keys) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(together.add, parts)]
    np.testing.assert_array_equal(together.rows[together.find(keys)], alone.rows[alone.find(keys)])
    assert {together.record(int(key)) for key in keys[:100]} == {(4, 1)}
    together.check()


def test_rows_are_pending_until_they_are_released_the_first_first():
    index = Index(5)
    index.add([10, 11, 12, 13, 14])
    for key in (13, 10, 12):
        retire_row(index.address, index.remove(key) + 1)
    assert index.pending() == [3, 0, 2]
    assert index.pending(2) == [3, 0]
    assert index.add([20]) == [-1]
    release_rows(index.address, 2)
    assert index.pending() == [2]
    assert sorted(index.add([20, 21, 22])) == [-1, 0, 3]
    release_rows(index.address, 7)  # of which there is one
    assert index.pending() == []
    assert index.add([22]) == [2]
    release_rows(index.address, -1)
    assert index.add([23]) == [-1]
    index.check()


def test_entries_are_put_back():
    first, other = Index(3000, admission=3), Index(2500, admission=5)
    rng = np.random.default_rng(0)
    for step in range(5):
        first.add(rng.zipf(1.3, 2000) % 10_000, step=step)
    entries = first.entries()
    assert 100 < sum(row >= 0 for row, *_ in entries.values()) < len(entries)
    for key, (row, count, step) in entries.items():
        assert (row >= 0) == (count >= 3) == (step >= 0)
        assert (other.put(key, count, step) >= 0) == (row >= 0)
    again = other.entries()
    assert {key: rest for key, (_, *rest) in again.items()} == {
        key: rest for key, (_, *rest) in entries.items()
    }
    rows = [row for row, *_ in again.values() if row >= 0]
    assert sorted(rows) == [*range(len(rows))]
    for index in (first, other):
        index.check()


def test_a_key_that_is_put_without_a_count_keeps_its_own():
    index = Index(4)
    assert index.put(5, 7, 2) == 0
    assert index.put(5, 0, 9) == 0
    assert index.entries() == {5: (0, 7, 2)}
    assert index.put(5, 3, 1) == 0
    assert index.entries() == {5: (0, 3, 1)}
    assert index.put(6, 0, 4) == 1
    assert index.put(8, 2, -1) == -1
    assert index.entries()[8] == (-1, 2, -1)


class Slot(Guarded):
    """A slot of an index, whose rows are float32 [capacity, 3]."""

    def __init__(self, index: Index) -> None:
        super().__init__(12 * index.capacity)
        self.index = index
        self.rows = self.bytes.view(np.float32).reshape(-1, 3)

    def fill(self, row, number: int = 0) -> int:
        row = np.array(row, np.float32)
        return fill_rows(self.index.address, number, self.address, row.ctypes.data, 12)


def test_rows_of_a_slot_are_filled_once():
    index = Index(5)
    slot = Slot(index)
    assert slot.fill([1, 2, 3]) == 0
    index.add([10, 11])
    assert slot.fill([1, 2, 3]) == 2
    np.testing.assert_array_equal(slot.rows, [[1, 2, 3]] * 2 + [[0] * 3] * 3)
    assert slot.fill([4, 5, 6]) == 0
    index.add(range(9))  # more than there is room for
    assert slot.fill([7, 8, 9]) == 3
    np.testing.assert_array_equal(slot.rows, [[1, 2, 3]] * 2 + [[7, 8, 9]] * 3)
    slot.check()
    index.check()


def test_slots_are_filled_each_for_itself():
    index = Index(4)
    index.add([1, 2, 3])
    slots = [Slot(index) for _ in range(MAX_SLOTS)]
    for number, slot in enumerate(slots):
        assert slot.fill([number + 1] * 3, number) == 3
    for number, slot in enumerate(slots):
        assert slot.fill([-1] * 3, number) == 0
        np.testing.assert_array_equal(slot.rows, [[number + 1] * 3] * 3 + [[0] * 3])
        slot.check()
    index.check()


def test_threads_fill_rows_once():
    index = Index(50_000)
    slot = Slot(index)

    def work(number: int) -> int:
        filled = 0
        for start in range(0, 10_000, 500):
            index.add(10_000 * number + np.arange(start, start + 500))
            filled += slot.fill([1, 2, 3])
        return filled

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 40_000
    np.testing.assert_array_equal(slot.rows[:40_000], [[1, 2, 3]] * 40_000)
    assert not slot.rows[40_000:].any()
    slot.check()
