"""A store of tables over tiers, from Python."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.stores.table_store import TableStore
from fusion.stores.tier import HitMask, Keys, Rows, TableDescription, TierError
from tests.stores.dictionary_tier import DictionaryTier, ManyTablesTier

DIM = 3
A, B = TableDescription("a", DIM, -1.0), TableDescription("b", 2)


def rows(keys, dimension: int = DIM, factor: float = 1.0) -> np.ndarray:
    keys = np.asarray(keys, np.float32)
    return np.repeat(factor * keys[..., np.newaxis], dimension, -1)


def tier_of(keys, name: str = "dictionary", **arguments) -> DictionaryTier:
    return (
        DictionaryTier(name, **arguments)
        .fill("a", keys, rows(keys))
        .fill("b", keys, rows(keys, 2, 10))
    )


@pytest.fixture
def tier() -> DictionaryTier:
    return tier_of(range(100))


@pytest.fixture
def store(tier: DictionaryTier) -> Iterator[TableStore]:
    with TableStore([A, B], [tier], cache_rows=50) as opened:
        yield opened


class OnesTier(DictionaryTier):
    """One that has all rows, at once."""

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        rows[:] = 1
        return np.ones(len(keys), np.bool_)


class Thread(threading.Thread):
    """One that has a result."""

    def __init__(self, function, *args) -> None:
        super().__init__(daemon=True)
        self._call = function, args
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        function, args = self._call
        try:
            self.value = function(*args)
        except Exception as error:
            self._error = error

    def result(self):
        self.join(60)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self.value


def wait_for(condition) -> None:
    """Waits for what other threads do; the test's own limit is the only one."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


class TestLookup:
    """Rows, from where they are."""

    @pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0, 4), (3, 1, 2)])
    def test_keys_of_any_shape(self, store: TableStore, shape: tuple[int, ...]) -> None:
        keys = np.random.default_rng(0).integers(0, 100, shape)
        found = store.lookup("a", keys)
        assert found.dtype == np.float32
        assert np.array_equal(found, rows(keys))

    @pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
    def test_integers_of_any_dtype(self, store: TableStore, dtype: str) -> None:
        keys = np.arange(20).astype(dtype)[::2]
        assert np.array_equal(store.lookup("a", keys), rows(keys))

    def test_lists_and_tensors(self, store: TableStore) -> None:
        assert np.array_equal(store.lookup("a", [[1, 2], [3, 3]]), rows([[1, 2], [3, 3]]))
        assert np.array_equal(store.lookup("a", tf.constant([4])), rows([4]))

    def test_keys_that_nobody_has(self, store: TableStore) -> None:
        assert np.array_equal(store.lookup("a", [-5, 5, 1000, -5])[:, 0], [-1, 5, -1, -1])
        assert store.lookup("b", [1000]).tolist() == [[0, 0]]
        assert store.counters().tables["a"].unknown == 2

    def test_more_keys_than_the_cache_has_room_for(self, store: TableStore) -> None:
        keys = np.random.default_rng(1).integers(0, 100, 5000)
        for _ in range(3):
            assert np.array_equal(store.lookup("a", keys), rows(keys))

    def test_many_keys_in_several_threads(self) -> None:
        with TableStore([A], [tier_of(range(5000))], cache_rows=1.0) as store:
            keys = np.random.default_rng(1).integers(0, 5000, 30_000)
            for _ in range(3):
                assert np.array_equal(store.lookup("a", keys), rows(keys))
            assert store.counters().tables["a"].waits == 1

    def test_a_cache_without_rows(self, tier: DictionaryTier) -> None:
        with TableStore([A], [tier], cache_rows=0, hit_rate_threshold=0.0) as store:
            for _ in range(2):
                assert np.array_equal(store.lookup("a", [1, 2]), rows([1, 2]))
        assert len(tier.requests) == 2

    def test_wrong_arguments(self, store: TableStore) -> None:
        with pytest.raises(KeyError, match=r"no table 'c' in the store; it has a, b"):
            store.lookup("c", [1])

    def test_what_is_no_key(self, store: TableStore) -> None:
        some: list[tuple[Any, type[Exception], str]] = [
            ([1.0], TypeError, "got float64: .*1.0"),
            (np.array([True]), TypeError, "got bool: .*True"),
            (tf.constant([1.5]), TypeError, "got float32"),
            (np.array([1, 2**63 + 1], np.uint64), ValueError, f"got {2**63 + 1}"),
            ([-(2**63) - 1], TypeError, "got object"),
        ]
        for keys, error, message in some:
            for method in (store.lookup, store.warm, store.invalidate):
                with pytest.raises(error, match=f"keys must be int64, {message}"):
                    method("a", keys)
            with pytest.raises(error, match=f"keys must be int64, {message}"):
                store.update("a", keys, rows(np.ones(len(keys))))
        for dtype in ("int8", "uint32", "uint64"):
            keys = np.array([1, 2], dtype)
            assert np.array_equal(store.lookup("a", keys), rows(keys))


class TestMisses:
    """What is asked of the tiers."""

    def test_distinct_keys_are_asked_for_once(
        self, store: TableStore, tier: DictionaryTier
    ) -> None:
        store.lookup("a", [3, 1, 3, 3, 2])
        store.lookup("a", [1, 4, 2, 4])
        assert tier.requests == [("a", [1, 2, 3]), ("a", [4])]

    def test_a_tier_is_asked_for_what_those_above_do_not_have(self) -> None:
        upper, lower = tier_of([1, 2], "upper"), tier_of([2, 3], "lower")
        lower.fill("a", [2], [[77] * DIM])
        with TableStore([A], [upper, lower], cache_rows=9) as store:
            found = store.lookup("a", [1, 2, 3, 4])
            assert found[:, 0].tolist() == [1, 2, 3, -1]
            assert upper.requests == [("a", [1, 2, 3, 4])]
            assert lower.requests == [("a", [3, 4])]
            store.lookup("a", [1, 2, 3])
            assert len(upper.requests) == 1
            counters = store.counters()
        assert counters.tiers["lower"]["a"].hits == counters.tiers["lower"]["a"].misses == 1
        assert counters.tiers["upper"]["a"].byte_count == 2 * 4 * DIM

    @pytest.mark.parametrize("promote", [(), ("upper",)])
    def test_rows_from_below_are_promoted_if_that_is_wanted(self, promote) -> None:
        upper, lower = tier_of([1], "upper"), tier_of([1, 2, 3], "lower")
        with TableStore([A], [upper, lower], cache_rows=9, promote=promote) as store:
            store.lookup("a", [1, 2, 5])
        assert sorted(upper.rows["a"]) == ([1, 2] if promote else [1])

    def test_that_a_promotion_fails_is_counted(self) -> None:
        class Full(DictionaryTier):
            def put(self, table, keys, rows) -> None:
                raise TierError(self.name, table, "full")

        upper = Full("upper")
        with TableStore([A], [upper, tier_of([1])], cache_rows=9, promote=["upper"]) as store:
            assert np.array_equal(store.lookup("a", [1]), rows([1]))
            assert store.counters().tiers["upper"]["a"].errors == 1

    def test_two_threads_do_not_ask_for_a_key_twice(
        self, store: TableStore, tier: DictionaryTier
    ) -> None:
        tier.gate.clear()
        first = Thread(store.lookup, "a", [1, 2, 3])
        tier.asked.acquire()
        second, third = Thread(store.lookup, "a", [3, 4, 2]), Thread(store.lookup, "a", [1, 3])
        tier.asked.acquire()
        tier.gate.set()
        assert np.array_equal(first.result(), rows([1, 2, 3]))
        assert np.array_equal(second.result(), rows([3, 4, 2]))
        assert np.array_equal(third.result(), rows([1, 3]))
        assert tier.requests == [("a", [1, 2, 3]), ("a", [4])]

    def test_an_error_is_that_of_all_who_wait(
        self, store: TableStore, tier: DictionaryTier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin, begun = store._fetcher._begin, threading.Semaphore(0)

        def noted(wanted):
            result = begin(wanted)
            begun.release()
            return result

        monkeypatch.setattr(store._fetcher, "_begin", noted)
        tier.gate.clear()
        tier.error = "gone"
        first = Thread(store.lookup, "a", [1, 2])
        begun.acquire()
        second = Thread(store.lookup, "a", [2])
        begun.acquire()
        tier.gate.set()
        for thread in (first, second):
            with pytest.raises(TierError, match="dictionary, table a: gone"):
                thread.result()
        assert store.counters().tiers["dictionary"]["a"].errors == 1
        tier.error = None
        assert np.array_equal(store.lookup("a", [1, 2]), rows([1, 2]))

    def test_what_an_upper_tier_had_stays_when_a_lower_one_fails(self) -> None:
        upper, lower = tier_of([1], "upper"), tier_of([2], "lower")
        lower.error = "gone"
        with TableStore([A], [upper, lower], cache_rows=9) as store:
            with pytest.raises(TierError, match="lower, table a: gone"):
                store.lookup("a", [1, 2])
            assert np.array_equal(store.lookup("a", [1]), rows([1]))
            assert len(upper.requests) == 1

    def test_several_tables_in_one_request(self) -> None:
        many = ManyTablesTier()
        many.fill("a", [1, 2], rows([1, 2])).fill("b", [1], rows([1], 2))
        with TableStore([A, B], [many, tier_of([3])], cache_rows=9) as store:
            wanted = [(0, np.array([2, 1, 2])), (1, np.array([1])), (0, np.array([3]))]
            found = store.rows_of(wanted)
        assert many.round_count == 1
        assert many.requests == [("a", [1, 2, 3]), ("b", [1])]
        assert [one[:, 0].tolist() for one in found] == [[2, 1, 2], [1], [3]]


class TestThreshold:
    """Lookups that do not wait."""

    def opened(self, tier: DictionaryTier, threshold: float = 0.5, **options) -> TableStore:
        store = TableStore([A, B], [tier], 50, hit_rate_threshold=threshold, **options)
        store.warm("a", range(10))
        tier.requests.clear()
        return store

    def test_enough_hits(self, tier: DictionaryTier) -> None:
        with self.opened(tier) as store:
            tier.gate.clear()
            # 2 of 4 distinct keys are there, whatever is repeated.
            keys = [1, 2, 80, 90, 90, 90, 80]
            assert store.lookup("a", keys)[:, 0].tolist() == [1, 2, -1, -1, -1, -1, -1]
            tier.gate.set()
            wait_for(lambda: store.counters().tables["a"].inserted == 12)
            assert np.array_equal(store.lookup("a", keys), rows(keys))
            assert tier.requests == [("a", [80, 90])]
            counters = store.counters().tables["a"]
        assert (counters.defaults, counters.waits, counters.misses) == (5, 0, 5)

    def test_too_few_hits(self, tier: DictionaryTier) -> None:
        with self.opened(tier) as store:
            keys = [1, 1, 1, 1, 80, 90]
            assert np.array_equal(store.lookup("a", keys), rows(keys))
            assert store.counters().tables["a"].waits == 1

    def test_a_threshold_of_one_always_waits(self, tier: DictionaryTier) -> None:
        with self.opened(tier, 1.0) as store:
            keys = [*range(10), 80]
            assert np.array_equal(store.lookup("a", keys), rows(keys))

    def test_a_threshold_of_zero_never_waits(self, tier: DictionaryTier) -> None:
        with self.opened(tier, 0.0) as store:
            assert store.lookup("a", [80]).tolist() == [[-1] * DIM]
            wait_for(lambda: store.counters().tables["a"].inserted == 11)

    def test_thresholds_of_each_table(self, tier: DictionaryTier) -> None:
        with TableStore([A, B], [tier], 50, hit_rate_threshold={"a": 0, "b": 1}) as store:
            assert store.lookup("b", [3]).tolist() == [[30, 30]]
            assert store.lookup("a", [3]).tolist() == [[-1] * DIM]

    def test_errors_behind_lookups_are_counted_and_logged_once(
        self, tier: DictionaryTier, caplog: pytest.LogCaptureFixture
    ) -> None:
        with self.opened(tier) as store, caplog.at_level(logging.WARNING, "fusion"):
            tier.error = "gone"
            for count in range(1, 4):
                store.lookup("a", [1, 2, 80])
                wait_for(lambda: store.counters().background_errors == count)  # noqa: B023
            assert [record.message for record in caplog.records] == [
                "dictionary, table a: gone (further errors of this kind are only counted)"
            ]
            tier.error = None
            store.lookup("a", [1, 2, 80])
            wait_for(lambda: store.counters().tables["a"].inserted == 11)

    def test_the_queue_is_bounded(self, tier: DictionaryTier) -> None:
        with self.opened(tier, queue_keys=4) as store:
            tier.gate.clear()
            store.lookup("a", [1, 80])
            tier.asked.acquire(timeout=60)
            tier.asked.acquire(timeout=60)  # that of warm() came before
            for key in range(20, 30):
                store.lookup("a", [1, key])
            assert store.counters().dropped == 6
            tier.gate.set()
            wait_for(lambda: store.counters().tables["a"].inserted == 15)
            assert tier.requests == [("a", [80]), ("a", [20, 21, 22, 23])]


class TestChanges:
    """Rows that change."""

    def test_update(self, store: TableStore, tier: DictionaryTier) -> None:
        store.lookup("a", [1, 2])
        store.update("a", [2, 3, 200, 3], rows([20, 30, 2000, 31]))
        assert store.lookup("a", [1, 2, 3, 200])[:, 0].tolist() == [1, 20, 31, 2000]
        assert tier.rows["a"][2].tolist() == [20] * DIM
        # Those that were not in the cache are there now because they were looked up.
        assert tier.requests[-1] == ("a", [3, 200])

    def test_update_writes_to_all_writable_tiers(self) -> None:
        upper, lower, files = tier_of([], "upper"), tier_of([1], "lower"), tier_of([1], "files")
        files.is_writable = False
        with TableStore([A], [upper, lower, files], cache_rows=9) as store:
            store.update("a", [1], rows([5]))
            assert [one.rows["a"][1][0] for one in (upper, lower, files)] == [5, 5, 1]
            assert np.array_equal(store.lookup("a", [1]), rows([5]))

    def test_update_of_what_a_tier_above_has(self) -> None:
        files, lower = tier_of([1], "files", is_writable=False), tier_of([], "lower")
        with TableStore([A], [files, lower], cache_rows=9) as store:
            with pytest.raises(ValueError, match="files, table a: has key 1, and is read only"):
                store.update("a", [0, 1], rows([5, 5]))
            assert lower.rows["a"] == {}
            store.update("a", [2], rows([5]))
            assert np.array_equal(store.lookup("a", [1, 2]), rows([1, 5]))

    def test_updates_that_cannot_be(self, store: TableStore, tier: DictionaryTier) -> None:
        with pytest.raises(ValueError, match=r"rows must be \(1, 3\), got shape \(1, 2\)"):
            store.update("a", [1], [[1, 2]])
        tier.is_writable = False
        with pytest.raises(ValueError, match="no tier of table a is writable"):
            store.update("a", [1000], rows([1]))
        with pytest.raises(io.UnsupportedOperation):
            tier.put("a", np.array([1]), rows([1]))

    def test_an_update_that_fails(self) -> None:
        """The cache has what the tiers say, whatever that is."""
        upper, lower = tier_of([1], "upper"), tier_of([1], "lower")
        with TableStore([A], [upper, lower], cache_rows=9) as store:
            store.lookup("a", [1])
            lower.error = "full"
            with pytest.raises(TierError, match="lower, table a: full"):
                store.update("a", [1], rows([8]))
            assert np.array_equal(store.lookup("a", [1]), rows([8]))

    def test_invalidate(self, store: TableStore, tier: DictionaryTier) -> None:
        store.lookup("a", [1, 2, 3])
        tier.fill("a", [1, 2], rows([10, 20]))
        store.invalidate("a", [2, 99])
        assert store.lookup("a", [1, 2, 3])[:, 0].tolist() == [1, 20, 3]
        store.invalidate("a")
        assert store.lookup("a", [1, 2, 3])[:, 0].tolist() == [10, 20, 3]

    def test_rows_on_their_way_while_they_change(
        self, store: TableStore, tier: DictionaryTier
    ) -> None:
        """Who looked up before may have the old row, but nobody has it afterwards."""

        class Slow(DictionaryTier):
            def fetch(self, table, keys, out):
                found = DictionaryTier.fetch(self, table, keys, out)
                read.set()
                assert go_on.wait(60)
                return found

        read, go_on = threading.Event(), threading.Event()
        tier.__class__ = Slow
        early = Thread(store.lookup, "a", [1, 2, 3])
        assert read.wait(60)
        store.update("a", [1], rows([10]))
        tier.fill("a", [2], rows([20]))
        store.invalidate("a", [2])
        tier.__class__ = DictionaryTier
        late = store.lookup("a", [1, 2])
        assert late[:, 0].tolist() == [10, 20]
        go_on.set()
        assert np.array_equal(early.result(), rows([1, 2, 3]))
        assert store.lookup("a", [1, 2, 3])[:, 0].tolist() == [10, 20, 3]

    def test_warm(self, store: TableStore, tier: DictionaryTier) -> None:
        assert store.warm("a", [5, 3, 5, 1000]) == 2
        tier.requests.clear()
        assert np.array_equal(store.lookup("a", [3, 5]), rows([3, 5]))
        assert tier.requests == []

    def test_warm_takes_the_first_keys_if_there_is_no_room_for_all(
        self, store: TableStore, tier: DictionaryTier
    ) -> None:
        assert store.warm("a", range(99, -1, -1)) == 50
        tier.requests.clear()
        store.lookup("a", np.arange(50, 100))
        assert tier.requests == []


class TestLife:
    """Stores that are opened and closed."""

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"tables": []}, "tables and tiers must not be empty"),
            ({"tiers": []}, "tables and tiers must not be empty"),
            ({"tables": [A, A]}, r"different names, got \['a', 'a'\]"),
            ({"cache_rows": -1}, "cache_rows of a must be 0 to"),
            ({"cache_rows": 1.5}, "cache_rows as a share must be 0 to 1, got 1.5"),
            ({"cache_rows": {"b": 1}}, "there is no value for table a"),
            ({"hit_rate_threshold": -0.1}, "hit_rate_threshold must be at least 0"),
            ({"hit_rate_threshold": float("nan")}, "hit_rate_threshold must be at least 0"),
            ({"promote": ["redis"]}, "promote must name writable tiers, got 'redis'"),
            ({"queue_keys": 0}, "queue_keys must be at least 1, got 0"),
        ],
    )
    def test_arguments_that_cannot_be(self, tier: DictionaryTier, change, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            TableStore(**{"tables": [A, B], "tiers": [tier], "cache_rows": 5} | change)

    def test_a_share_of_another_type(self, tier: DictionaryTier) -> None:
        share: Any = np.float32(0.25)
        with TableStore([A], [tier], cache_rows=share) as store:
            assert store.warm("a", range(100)) == 25
        with pytest.raises(TypeError, match="cache_rows must be an int or a float, got '5'"):
            TableStore([A], [tier], cache_rows="5")  # type: ignore[arg-type]

    def test_a_share_of_rows(self, tier: DictionaryTier) -> None:
        with TableStore([A, B], [tier], cache_rows={"a": 0.25, "b": 7}) as store:
            store.warm("a", range(100))
            store.warm("b", range(100))
            counters = store.counters().tables
        assert (counters["a"].inserted, counters["b"].inserted) == (25, 7)

    def test_closed(self, tier: DictionaryTier) -> None:
        store = TableStore([A], [tier], cache_rows=5)
        store.lookup("a", [1])
        store.close()
        store.close()
        assert tier.is_closed
        for call in (
            lambda: store.lookup("a", [1]),
            lambda: store.warm("a", [1]),
            lambda: store.update("a", [1], rows([1])),
            lambda: store.invalidate("a"),
            store.register,
        ):
            with pytest.raises(tf.errors.FailedPreconditionError, match="store is closed"):
                call()
        assert store.counters().tables["a"].misses == 1
        assert store.byte_count == 0

    def test_close_waits_for_lookups(self, store: TableStore, tier: DictionaryTier) -> None:
        tier.gate.clear()
        lookup = Thread(store.lookup, "a", [1])
        tier.asked.acquire()
        closing = Thread(store.close)
        wait_for(lambda: store._state == "closed")
        assert not tier.is_closed
        tier.gate.set()
        assert np.array_equal(lookup.result(), rows([1]))
        closing.result()
        assert tier.is_closed

    def test_close_again_after_an_interrupt(self, store: TableStore, tier: DictionaryTier) -> None:
        tier.gate.clear()
        lookup = Thread(store.lookup, "a", [1])
        tier.asked.acquire()
        with pytest.raises(KeyboardInterrupt):
            _call_until_interrupted(lambda *_: store.close(), 0.05)
        assert not tier.is_closed
        tier.gate.set()
        assert np.array_equal(lookup.result(), rows([1]))
        store.close()
        assert tier.is_closed
        assert not store._thread.is_alive()

    def test_all_tiers_are_closed_where_one_fails(self, monkeypatch) -> None:
        tiers = tier_of([1]), tier_of([2])
        store = TableStore([A, B], tiers, cache_rows=5)
        monkeypatch.setattr(tiers[0], "close", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.close()
        assert tiers[1].is_closed

    def test_interrupts_end_lookups(self) -> None:
        """An interrupt leaves nothing that `close` would wait for, whenever it comes."""
        table, rng = TableDescription("a", 256), np.random.default_rng(0)
        store = TableStore([table], [OnesTier()], cache_rows=10)
        for call in (store.lookup, store.lookup, store.warm, store.invalidate) * 10:
            with pytest.raises(KeyboardInterrupt):
                _call_until_interrupted(call, rng.uniform(1e-3, 4e-2))
        assert store._record.user_count == 0
        Thread(store.close).result()

    def test_after_a_fork(self, store: TableStore, tier: DictionaryTier) -> None:
        """The child is told, whatever threads of its parent were at, and opens its own."""
        tier.gate.clear()
        lookup = Thread(store.lookup, "a", [1])
        tier.asked.acquire()
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(store,))
        child.start()
        child.join(60)
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
        tier.gate.set()
        assert child.exitcode == 0
        assert np.array_equal(lookup.result(), rows([1]))

    def test_memory_is_bounded(self, store: TableStore) -> None:
        before = store.byte_count
        for start in range(0, 10_000, 100):
            store.lookup("a", np.arange(start, start + 100))
        assert store.byte_count == before < 2 * (150_000 + 50 * 150)


def _call_until_interrupted(call, seconds: float) -> None:
    keys, before = np.arange(20_000), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            call("a", keys)
    finally:
        signal.signal(signal.SIGALRM, before)


def _in_child(store: TableStore) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="before this process was forked"):
        store.lookup("a", [1])
    store.close()
    with TableStore([A], [tier_of([7])], cache_rows=5) as own:
        assert np.array_equal(own.lookup("a", [7]), rows([7]))
    os._exit(0)


def test_counters_are_only_read(store: TableStore) -> None:
    """Lookups of other threads count meanwhile: what was written back would undo that."""
    store.lookup("a", [1, 2])
    store._words.flags.writeable = False
    for cache in store._caches:
        cache._words.flags.writeable = False
    assert store.counters().tables["a"].misses == 2


def test_counters_for_json(store: TableStore) -> None:
    store.lookup("a", [1, 2, 2])
    store.lookup("a", [1, 2])
    found = store.counters().to_dict()
    assert found["tables"]["a"] == {
        "hits": 2,
        "misses": 3,
        "waits": 1,
        "defaults": 0,
        "unknown": 0,
        "inserted": 2,
        "evicted": 0,
    }
    of_tier = found["tiers"]["dictionary"]["a"]
    assert of_tier["requests"] == 1
    assert of_tier["latency"]["p99"] >= of_tier["latency"]["p50"] > 0
    assert found["latency"]["count"] == 2
