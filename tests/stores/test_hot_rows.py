"""The cache of a table store."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fusion.ops.stores.cpu_kernels.layout import HotTable, MissQueue
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.stores.hot_rows import HotRows, Queue, address_of, native, new_tables
from fusion.stores.tier import TableDescription

DIM = 5


class Cache(HotRows):
    """One, and what it has."""

    def __init__(self, capacity: int, dimension: int = DIM) -> None:
        self.words, (own,) = new_tables(1)
        super().__init__(own, TableDescription("hot", dimension, -3.0), capacity, 1.0)
        self.dimension = dimension

    def rows_of(self, keys) -> tuple[list[bool], np.ndarray]:
        keys = np.asarray(keys, np.int64)
        rows = np.full((len(keys), self.dimension), np.nan, np.float32)
        return self.read(keys, rows).tolist(), rows

    def put(self, keys, values=None) -> None:
        keys = np.asarray(keys, np.int64)
        values = keys if values is None else np.asarray(values)
        self.insert(keys, np.repeat(values[:, np.newaxis], self.dimension, 1).astype(np.float32))

    def keys_of(self, candidates) -> list[int]:
        found, rows = self.rows_of(candidates)
        there = [key for key, has in zip(candidates, found, strict=True) if has]
        assert (rows[found] == np.array(there, np.float32).reshape(-1, 1)).all()
        assert np.isnan(rows[np.invert(found)]).all()
        return there


def test_rows_that_are_there_and_others() -> None:
    cache = Cache(100)
    assert cache.rows_of([])[0] == []
    assert cache.keys_of([0, 1, -1]) == []
    cache.put([3, -7, 2**62, 0])
    assert cache.keys_of([1, -7, 0, 0, 2**62, 3, 4]) == [-7, 0, 0, 2**62, 3]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 500])
def test_any_number_of_keys(count: int) -> None:
    cache = Cache(1000, 3)
    cache.put(range(0, 1000, 2))
    keys = np.random.default_rng(count).integers(0, 1000, count).tolist()
    assert cache.keys_of(keys) == [key for key in keys if key % 2 == 0]


@pytest.mark.parametrize("dimension", [1, 16, 33, 200])
def test_dimensions(dimension: int) -> None:
    cache = Cache(64, dimension)
    cache.put(range(64))
    assert cache.keys_of(range(80)) == [*range(64)]


@pytest.mark.parametrize("capacity", [1, 2, 1000])
def test_there_are_never_more_rows(capacity: int) -> None:
    cache = Cache(capacity)
    cache.put(range(5 * capacity + 3))
    left = cache.keys_of(range(5 * capacity + 3))
    assert len(left) == capacity
    assert left == [*range(4 * capacity + 3, 5 * capacity + 3)]  # none was read: the oldest go
    assert cache.count(HotTable.evict_count) == 4 * capacity + 3
    assert cache._owners.nbytes + cache._rows.nbytes + cache._marks.nbytes == capacity * (9 + 20)
    assert cache.byte_count <= capacity * (29 + 90) + 200_000


def test_rows_that_are_read_stay() -> None:
    cache = Cache(100)
    cache.put(range(100))
    cache.rows_of(range(0, 100, 3))
    cache.put(range(1000, 1066))
    assert cache.keys_of(range(100)) == [*range(0, 100, 3)]
    # They were read now, but the hand came by those of the others that are older.
    cache.put([2000])
    assert len(cache.keys_of([*range(100), *range(1000, 1066), 2000])) == 100


def test_hot_rows_survive_a_scan() -> None:
    """Of a stream with a power law CLOCK has about as many hits as LRU, and more than FIFO."""
    rng, capacity = np.random.default_rng(3), 500
    stream = (rng.zipf(1.1, 60_000) % 5000).reshape(-1, 10)
    cache, order, hits, of_lru = Cache(capacity), dict[int, None](), 0, 0
    for keys in stream:
        found, _ = cache.rows_of(keys)
        hits += sum(found)
        cache.put(np.unique(keys[np.invert(found)]))
        for key in keys.tolist():
            of_lru += key in order
            order.pop(key, None)
            order[key] = None
            if len(order) > capacity:
                del order[next(iter(order))]
    assert hits > 0.97 * of_lru


def test_rows_are_replaced() -> None:
    cache = Cache(100)
    cache.put([1, 2, 3])
    cache.put([2], [20])
    cache.replace(np.array([3, 4]), np.full((2, DIM), 9, np.float32))
    found, rows = cache.rows_of([1, 2, 3, 4])
    assert found == [True, True, True, False]
    assert rows[:3, 0].tolist() == [1, 20, 9]
    assert cache.count(HotTable.insert_count) == 3


def test_chosen_rows_alone_are_inserted() -> None:
    cache = Cache(100)
    rows = np.zeros((3, DIM), np.float32)
    cache.insert(np.arange(3), rows, np.array([False, True, False]))
    assert cache.rows_of(range(3))[0] == [False, True, False]


def test_rows_are_removed() -> None:
    cache = Cache(50)
    cache.put(range(50))
    cache.remove(np.array([3, 4, 99]))
    assert cache.keys_of(range(50)) == [0, 1, 2, *range(5, 50)]
    cache.put([3, 100])  # they take the rows that are free
    assert cache.count(HotTable.evict_count) == 0
    cache.remove(None)
    assert cache.keys_of([*range(50), 100]) == []
    cache.put(range(7, 80))
    assert len(cache.keys_of(range(7, 80))) == 50


@pytest.mark.parametrize("capacity", [-1, 2**31 - 1])
def test_capacities_that_cannot_be(capacity: int) -> None:
    with pytest.raises(ValueError, match="cache_rows of hot must be 0 to"):
        Cache(capacity)


def test_no_rows_at_all() -> None:
    cache = Cache(0)
    cache.put(range(5))
    assert cache.keys_of(range(5)) == []


def test_random_changes_against_a_model() -> None:
    rng, cache, model = np.random.default_rng(5), Cache(200), dict[int, int]()
    for step in range(3000):
        keys = np.unique(rng.integers(0, 400, rng.integers(1, 30)))
        kind = rng.integers(4)
        if kind == 0:
            cache.put(keys, keys * 1000 + step)
            model |= dict.fromkeys(keys.tolist(), step)
        elif kind == 1:
            cache.remove(keys)
            for key in keys.tolist():
                model.pop(key, None)
        found, rows = cache.rows_of(keys)
        for key, has, row in zip(keys.tolist(), found, rows, strict=True):
            if has:  # some others had to make room
                assert (row == np.float32(key * 1000 + model[key])).all()
        head = cache._index[: 8 * KeyIndex.SIZE].view(np.int64)
        assert head[KeyIndex.key_count] <= 200
        assert head[KeyIndex.free_rows] + head[KeyIndex.key_count] == head[KeyIndex.row_count]


def test_a_row_that_is_read_is_one_version_of_its_key() -> None:
    """While others replace, evict and remove rows, of which all elements are equal."""
    cache, stop, wrong = Cache(300, 67), threading.Event(), list[str]()

    def change(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            keys = rng.integers(0, 600, 50)
            cache.put(keys, keys + 1000 * rng.integers(0, 1000, 50))
            cache.remove(rng.integers(0, 600, 5))

    def read(seed: int) -> None:
        rng, count = np.random.default_rng(seed), 0
        while count < 1500 and not wrong:
            keys = rng.integers(0, 600, 100)
            found, rows = cache.rows_of(keys)
            is_whole = (rows == rows[:, :1]).all(1) & (rows[:, 0] % 1000 == keys)
            if not (is_whole | np.invert(found)).all():
                wrong.append(f"{keys} {rows}")
            count += 1

    changers = [threading.Thread(target=change, args=(seed,)) for seed in range(2)]
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(10, 13)]
    for thread in (*changers, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    for thread in changers:
        thread.join()
    assert wrong == []


class TestQueue:
    """Keys that nobody waits for."""

    @staticmethod
    def push(queue: Queue, table: int, keys) -> None:
        keys = np.asarray(keys, np.int64)
        numbers = np.arange(len(keys))
        push(queue.address, table, address_of(keys), address_of(numbers), len(keys))

    def test_what_comes_first_goes_first(self) -> None:
        queue = Queue(5)
        assert queue.take().tolist() == []
        self.push(queue, 0, [7, 8])
        self.push(queue, 3, [-1])
        queue.wait()
        assert queue.take().tolist() == [[0, 7], [0, 8], [3, -1]]
        self.push(queue, 1, [1, 2, 3, 4])  # round the end
        assert queue.take().tolist() == [[1, 1], [1, 2], [1, 3], [1, 4]]

    def test_it_is_bounded(self) -> None:
        queue = Queue(3)
        self.push(queue, 0, [1, 2])
        self.push(queue, 1, [3, 4])
        self.push(queue, 1, [5])
        assert queue.take().tolist() == [[0, 1], [0, 2], [1, 3]]
        assert queue.dropped_count == 2
        assert queue._words[MissQueue.count] == 0


def _push():
    from fusion.ops.stores.cpu_kernels import queue
    from fusion.runtime.native.jit import callable_from_python

    return callable_from_python(queue.push)


push = _push()


def test_native_functions_are_there_once() -> None:
    assert native() is native()
