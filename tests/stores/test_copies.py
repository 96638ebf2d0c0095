"""Copies of rows in upper tiers (`promote`), which must not outlive the rows below."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.redis_changes import announce
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.table_store import TableStore
from fusion.stores.tier import HitMask, Keys, Rows, TableDescription, TierError
from fusion.stores.versioned_files import VersionedFiles
from tests.stores.dictionary_tier import DictionaryTier
from tests.stores.followed import ITEMS, KEYS, NEVER, versions, write
from tests.stores.racing import racing, rows_of
from tests.stores.redis_server import RedisServer
from tests.stores.test_table_store import Thread

TABLE = TableDescription("songs", 3, -1.0)


def tier_of(keys, name: str, version: float = 1, **arguments) -> DictionaryTier:
    return DictionaryTier(name, **arguments).fill("songs", *rows_of(version, keys, 3)[0])


@pytest.fixture
def upper() -> DictionaryTier:
    return tier_of([], "upper")


@pytest.fixture
def lower() -> DictionaryTier:
    return tier_of(range(10), "lower")


@pytest.fixture
def store(upper: DictionaryTier, lower: DictionaryTier) -> Iterator[TableStore]:
    with TableStore([TABLE], [upper, lower], cache_rows=50, promote=["upper"]) as opened:
        assert songs(opened, [0, 1, 2]) == [1, 1, 1]
        assert sorted(upper.rows["songs"]) == [0, 1, 2]
        yield opened


def songs(store: TableStore, keys) -> list[float]:
    return versions(store, keys, "songs")


def change(tier: DictionaryTier, version: float, keys=range(10)) -> None:
    tier.fill("songs", *rows_of(version, keys, 3)[0])


class TestInvalidate:
    """Rows that have changed below."""

    def test_some_keys(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        change(lower, 2)
        store.invalidate("songs", [1, 2, 99])
        assert sorted(upper.rows["songs"]) == [0]
        assert songs(store, [0, 1, 2]) == [1, 2, 2]
        assert sorted(upper.rows["songs"]) == [0, 1, 2]

    def test_all_keys(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        change(lower, 2)
        store.invalidate("songs")
        assert upper.rows["songs"] == {}
        assert songs(store, [0, 1, 2]) == [2, 2, 2]

    def test_a_row_that_was_removed_below(self, store: TableStore, lower: DictionaryTier) -> None:
        lower.remove("songs", np.array([1]))
        store.invalidate("songs", [1])
        assert songs(store, [0, 1]) == [1, -1]

    def test_rows_of_tiers_without_copies_stay(self) -> None:
        """Those above which nobody promotes to, and the lowest of the kind that is named."""
        top, middle = tier_of([1], "top", 5), tier_of([], "copies")
        lowest = tier_of([1, 2], "copies", 7)
        with TableStore([TABLE], [top, middle, lowest], 50, promote=["copies"]) as store:
            assert songs(store, [1, 2]) == [5, 7]
            assert sorted(middle.rows["songs"]) == [2]
            store.invalidate("songs")
            assert [len(one.rows["songs"]) for one in (top, middle, lowest)] == [1, 0, 2]
            assert songs(store, [1, 2]) == [5, 7]

    def test_copies_that_cannot_be_removed(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        change(lower, 2)
        upper.error = "is away"
        with pytest.raises(TierError, match="upper, table songs: is away"):
            store.invalidate("songs", [1])
        with pytest.raises(TierError, match="is away"):  # the cache does not have it either
            store.lookup("songs", [1])
        upper.error = None
        store.invalidate("songs", [1])
        assert songs(store, [1]) == [2]

    def test_rows_on_their_way(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        """Neither is an old row promoted afterwards, nor an old copy kept in the cache."""
        lower.gate.clear()
        early = Thread(store.lookup, "songs", [5])
        while ("songs", [5]) not in lower.requests:
            assert lower.asked.acquire(timeout=60)
        change(lower, 2)
        store.invalidate("songs", [5])
        lower.gate.set()
        assert early.result()[:, 0] == [1]
        assert 5 not in upper.rows["songs"]
        assert songs(store, [5]) == [2]

    def test_an_old_copy_that_was_read_already(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        class Slow(DictionaryTier):
            def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
                found = DictionaryTier.fetch(self, table, keys, rows)
                read.set()
                assert go_on.wait(60)
                return found

        read, go_on = threading.Event(), threading.Event()
        change(upper, 1, [7])
        change(lower, 2)
        upper.__class__ = Slow
        early = Thread(store.lookup, "songs", [7])
        assert read.wait(60)
        store.invalidate("songs", [7])
        upper.__class__ = DictionaryTier
        go_on.set()
        assert early.result()[:, 0] == [1]
        assert songs(store, [7]) == [2]


class TestUpdate:
    """Rows that are written where there are copies."""

    def test_copies_are_updated(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        store.update("songs", [1, 8], np.full((2, 3), 5.0))
        store.invalidate("songs")
        assert songs(store, [0, 1, 8]) == [1, 5, 5]

    def test_copies_alone_are_not_updated(self) -> None:
        """They would be lost with the next call of `invalidate`."""
        upper, files = tier_of([], "upper"), tier_of([1], "files", is_writable=False)
        with TableStore([TABLE], [upper, files], 50, promote=["upper"]) as store:
            with pytest.raises(ValueError, match="files, table songs: has key 1, and is read only"):
                store.update("songs", [1], np.full((1, 3), 5.0))
            text = "no tier of table songs is writable, but for copies of rows"
            with pytest.raises(ValueError, match=text):
                store.update("songs", [100], np.full((1, 3), 5.0))
            assert upper.rows["songs"] == {}
        with TableStore([TABLE], [upper, files], 50) as store:  # they are no copies
            store.update("songs", [1], np.full((1, 3), 5.0))
            store.invalidate("songs")
            assert songs(store, [1]) == [5]

    def test_an_update_that_fails_below(
        self, store: TableStore, upper: DictionaryTier, lower: DictionaryTier
    ) -> None:
        def full(table: str, keys: Keys, rows: Rows) -> None:
            raise TierError("lower", table, "full")

        lower.put = full  # type: ignore[method-assign]
        with pytest.raises(TierError, match="full"):
            store.update("songs", [1], np.full((1, 3), 5.0))
        assert 1 not in upper.rows["songs"]
        assert songs(store, [0, 1]) == [1, 1]


def test_rocksdb_over_files_that_are_replaced(tmp_path: Path) -> None:
    write_table(tmp_path / "old", rows_of(1, KEYS, 3))
    write_table(tmp_path / "new", rows_of(2, KEYS, 3))
    link = tmp_path / "songs"
    link.symlink_to(tmp_path / "old")
    files, database = LocalFiles(tmp_path), RocksDB(RocksDBOptions(str(tmp_path / "rocksdb")))
    with TableStore([TABLE], [database, files], 50, promote=["rocksdb"]) as store:
        assert songs(store, KEYS[:5]) == 5 * [1]
        assert database.count("songs") == 5
        link.unlink()
        link.symlink_to(tmp_path / "new")
        files.open_table(TABLE)
        store.invalidate("songs", KEYS[:2])
        assert songs(store, KEYS[:5]) == [2, 2, 1, 1, 1]
        store.invalidate("songs")
        assert database.count("songs") == 0
        assert songs(store, KEYS[:5]) == 5 * [2]


class TestFollowed:
    """Copies of what is followed."""

    def test_versions(self, root: Path) -> None:
        upper = DictionaryTier("upper").fill("items", [0, 2], np.zeros((2, 4)))  # of a run before
        files = VersionedFiles(root, [ITEMS])
        with TableStore([ITEMS], [upper, files], 50, promote=["upper"]) as store:
            follower = store.follow(root, NEVER)
            assert versions(store, [0, 2, 4, 6]) == [1, 1, 1, 1]
            write(root, 2, 1, keys=[0, 2])
            follower.look()
            assert versions(store, [0, 2, 4, 6]) == [2, 2, 1, 1]
            store.invalidate("items", [0])
            assert versions(store, [0]) == [2]
            write(root, 3, keys=[0, 4])  # whole
            follower.look()
            assert versions(store, [0, 2, 4, 6]) == [3, -1, 3, -1]
            assert sorted(upper.rows["items"]) == [0, 4]

    def test_versions_while_copies_cannot_be_removed(self, root: Path) -> None:
        upper, files = DictionaryTier("upper"), VersionedFiles(root, [ITEMS])
        with TableStore([ITEMS], [upper, files], 50, promote=["upper"]) as store:
            follower = store.follow(root, NEVER)
            assert versions(store, [0, 2]) == [1, 1]
            for number in (2, 3):
                write(root, number, number - 1, keys=[2 * number - 4])
                upper.error = "is away"
                with pytest.raises(TierError, match="is away"):
                    follower.look()
                assert follower.version == number - 1
                upper.error = None
                assert follower.look() == number
                assert (follower.version, follower.look()) == (number, None)
            assert versions(store, [0, 2]) == [2, 3]

    def test_redis(self, redis_server: RedisServer, tmp_path: Path) -> None:
        table, database = TableDescription("copied", 3), RocksDBOptions(str(tmp_path / "rocksdb"))
        own, tier = (Redis(RedisOptions(redis_server.address)) for _ in range(2))
        own.open_table(table)

        def push(version: float, keys) -> None:
            for some, rows in rows_of(version, keys, 3):
                own.put("copied", some, rows)
                announce(own, "copied", some)

        push(1, [1, 2, 3])
        for version in (2, 4):
            with TableStore([table], [RocksDB(database), tier], 50, promote=["rocksdb"]) as store:
                follower = store.follow_redis(seconds=0.01)
                follower.look()
                assert versions(store, [1, 2, 3], "copied") == 3 * [version - 1]
                push(version, [1, 2, 3])
                while follower.look():
                    pass
                store.invalidate("copied", [2])
                assert versions(store, [1, 2, 3], "copied") == 3 * [version]
            push(version + 1, [1, 2, 3])  # while nobody follows
            tier = Redis(RedisOptions(redis_server.address))

    def test_redis_while_copies_cannot_be_removed(self, redis_server: RedisServer) -> None:
        table, upper = TableDescription("below", 3), DictionaryTier("upper")
        own, tier = (Redis(RedisOptions(redis_server.address)) for _ in range(2))
        own.open_table(table)
        own.put("below", *rows_of(1, [1], 3)[0])
        with TableStore([table], [upper, tier], 50, promote=["upper"]) as store:
            follower = store.follow_redis(seconds=0.01)
            while follower.look():
                pass
            assert versions(store, [1], "below") == [1]
            upper.error = "is away"
            own.put("below", *rows_of(2, [1], 3)[0])
            announce(own, "below", np.array([1]))
            while not store.counters().refresh.errors:
                threading.Event().wait(0.001)
            upper.error = None
            while follower.look():
                pass
            assert versions(store, [1], "below") == [2]
            assert upper.rows["below"][1].tolist() == [2, 2, 2]

    def test_a_lookup_sees_one_version_of_a_row(self, root: Path) -> None:
        upper, files = DictionaryTier("upper"), VersionedFiles(root, [ITEMS])
        with (
            TableStore([ITEMS], [upper, files], 40, promote=["upper"]) as store,
            racing(store, "items", KEYS) as racers,
        ):
            follower = store.follow(root, NEVER)
            for number in range(2, 12):
                write(root, number, None if number % 4 == 0 else number - 1)
                assert follower.look() == number
                racers.reported = number
                racers.wait(3)
