"""The index of keys against a dict, and the gather by it against NumPy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fusion.cpu_ops.keys import buckets, entries
from fusion.cpu_ops.keys import index as key_index
from fusion.cpu_ops.keys import rows as key_rows
from fusion.cpu_ops.keys.layout import (
    BUCKET_BYTES,
    KEYS,
    MOST_SLOTS,
    STRIPES,
    Addition,
    KeyIndex,
    index_bytes,
)
from fusion.runtime.native.jit import callable_from_python

begin_index = callable_from_python(key_index.begin_index)
find_rows = callable_from_python(key_index.find_rows)
add_rows = callable_from_python(key_index.add_rows)
remove = callable_from_python(key_index.remove)
retire_row = callable_from_python(key_rows.retire_row)
pending_rows = callable_from_python(key_rows.pending_rows)
release_rows = callable_from_python(key_rows.release_rows)
write_entries = callable_from_python(entries.write_entries)
put_key = callable_from_python(entries.put_key)
hold = callable_from_python(entries.hold)
let_go = callable_from_python(entries.let_go)
fill_rows = callable_from_python(key_rows.fill_rows)
hash_of = callable_from_python(buckets.hash_of)

#: Bytes of a line of the cache.
LINE = 64

_GUARD = 0xA5


class Guarded:
    """Memory at the start of a line, with guards before and behind it."""

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + 4 * LINE, _GUARD, np.uint8)
        start = -self._memory.ctypes.data % LINE + LINE
        self._guards = self._memory[:start], self._memory[start + size :]
        self.bytes = self._memory[start : start + size]
        self.bytes[:] = 0
        self.address = self.bytes.ctypes.data

    def check(self) -> None:
        """Nothing was written outside."""
        for guard in self._guards:
            assert (guard == _GUARD).all()


class Index(Guarded):
    """An index, and the rows of a table beside it."""

    def __init__(self, capacity: int, admission: int = 1, seed: int = 0, samples=None) -> None:
        super().__init__(index_bytes(capacity))
        self.capacity, self.admission = capacity, admission
        self.head = self.bytes[: 8 * KeyIndex.SIZE].view(np.int64)
        begin_index(self.address, capacity, admission, seed, 1)
        self.samples = samples
        self.table = Guarded(0 if samples is None else capacity * samples[0].nbytes)

    @property
    def rows(self):
        """The table [capacity, dim]."""
        return self.table.bytes.view(self.samples.dtype).reshape(self.capacity, -1)

    def find(self, keys) -> list[int]:
        keys = np.ascontiguousarray(keys, np.int64)
        rows = np.full(len(keys), -77)
        find_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data)
        return rows.tolist()

    def addition(self, step: int = 1, counts=None):
        """An `Addition`."""
        words = np.zeros(Addition.SIZE, np.int64)
        words[Addition.admission], words[Addition.step] = self.admission, step
        if counts is not None:
            words[Addition.counts] = counts.ctypes.data
        if self.samples is not None:
            words[Addition.table] = self.table.address
            words[Addition.samples] = self.samples.ctypes.data
            words[Addition.sample_count], words[Addition.dim] = self.samples.shape
            words[Addition.item_bytes] = self.samples.itemsize
        return words

    def add(self, keys, counts=None, step: int = 1) -> list[int]:
        return self.add_and_tell(keys, counts, step)[0]

    def add_and_tell(self, keys, counts=None, step: int = 1) -> tuple[list[int], int, int]:
        """The rows, how many keys got one, and how often one found no room."""
        keys = np.ascontiguousarray(keys, np.int64)
        counts = None if counts is None else np.ascontiguousarray(counts, np.int32)
        rows, words = np.full(len(keys), -77), self.addition(step, counts)
        add_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data, words.ctypes.data)
        return rows.tolist(), int(words[Addition.added_count]), int(words[Addition.refused_count])

    def remove(self, key: int) -> int:
        return remove(self.address, key) - 1

    def free(self, key: int) -> None:
        """Takes a key out, and lets its row be used again."""
        retire_row(self.address, self.remove(key) + 1)
        release_rows(self.address, self.head[KeyIndex.pending_rows])

    def put(self, key: int, count: int, step: int) -> int:
        words = np.zeros(Addition.SIZE, np.int64)
        return put_key(self.address, key, count, step, words.ctypes.data)

    def pending(self, most: int = 100) -> list[int]:
        rows = np.full(most, -77)
        return rows[: pending_rows(self.address, rows.ctypes.data, most)].tolist()

    def entries(self) -> dict[int, tuple[int, int, int]]:
        """The row, count and last step of each key, as `write_entries` has them."""
        count = int(self.head[KeyIndex.key_count])
        keys, rows, steps = (Guarded(8 * count) for _ in range(3))
        counts = Guarded(4 * count)
        hold(self.address)
        write_entries(self.address, *(m.address for m in (keys, rows, counts, steps)))
        let_go(self.address)
        for memory in (keys, rows, counts, steps):
            memory.check()
        words = [memory.bytes.view(np.int64).tolist() for memory in (keys, rows, steps)]
        found = [*zip(*words, counts.bytes.view(np.int32).tolist(), strict=True)]
        assert len({key for key, *_ in found}) == len(found)
        return {key: (row, times, step) for key, row, step, times in found}

    def record(self, key: int) -> tuple[int, int]:
        """How often a key with a row was seen, and in which step for the last time."""
        (row,) = self.find([key])
        start = self.head[KeyIndex.records] + 8 * row
        seen, step = self.bytes[start : start + 8].view(np.int32).tolist()
        return seen, step

    def counts(self) -> dict[int, int]:
        """What the index has of each key, its row from 1 on, or -n; chains are well formed."""
        found: list[tuple[int, int]] = []
        for number in range(self.head[KeyIndex.bucket_count]):
            at = self.head[KeyIndex.buckets] + BUCKET_BYTES * number
            is_first = True
            while True:
                bucket = self.bytes[at : at + BUCKET_BYTES]
                keys, ints = bucket[: 8 * KEYS].view(np.int64), bucket[8 * KEYS :].view(np.int32)
                here = [(int(k), int(r)) for k, r in zip(keys, ints[:KEYS], strict=True) if r != 0]
                assert here or is_first
                found += here
                if ints[KEYS] == 0:
                    break
                at = self.head[KeyIndex.more] + BUCKET_BYTES * (int(ints[KEYS]) - 1)
                is_first = False
        assert len(dict(found)) == len(found)
        return dict(found)

    def check(self) -> None:
        """Chains have all keys once, no gaps, and nothing was written outside."""
        super().check()
        self.table.check()
        assert not self.head[KeyIndex.locks : KeyIndex.locks + STRIPES].any()
        assert not (self.head[KeyIndex.versions : KeyIndex.versions + STRIPES] & 1).any()
        assert len(self.counts()) == self.head[KeyIndex.key_count]
        assert self.head[KeyIndex.row_count] <= self.capacity


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
    places = index.head[KeyIndex.most_buckets] + index.head[KeyIndex.most_more]
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
    slots = [Slot(index) for _ in range(MOST_SLOTS)]
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
