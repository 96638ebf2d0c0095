"""Versions of tables in a folder, taken over while lookups go on."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from fusion.stores import versioned_files
from fusion.stores import versions as versions_module
from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.refresh import FolderFollower
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription, TierError
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import read_version, write_version
from tests.stores.dictionary_tier import DictionaryTier
from tests.stores.followed import ITEMS, KEYS, NEVER, versions, write
from tests.stores.racing import racing, rows_of
from tests.stores.test_table_store import Thread, wait_for


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fusion"]


class TestTakeOver:
    """Versions that are right."""

    def test_a_whole_version(self, store: TableStore, root: Path, follower: FolderFollower) -> None:
        assert follower.version == 1
        assert versions(store, [0, 2, 4, 5]) == [1, 1, 1, -1]
        write(root, 2, keys=[2, 4, 5])
        assert versions(store, [0, 2, 4, 5]) == [1, 1, 1, -1]
        assert follower.look() == 2
        assert (follower.version, follower.look()) == (2, None)
        assert versions(store, [0, 2, 4, 5]) == [-1, 2, 2, 2]
        assert versions(store, [0, 1, 2], "shops") == [2, 2, 0]

    def test_rows_in_the_cache_are_replaced(
        self, store: TableStore, root: Path, follower: FolderFollower
    ) -> None:
        versions(store, KEYS[:50])
        write(root, 2)
        write(root, 3, base=2, keys=KEYS[:10])
        follower.look()
        refresh = store.counters().refresh
        assert (refresh.version, refresh.taken_versions, refresh.rows) == (3, 1, 50)
        write(root, 4, base=3, keys=[0, 2, 198], shops=None)
        follower.look()
        assert store.counters().refresh.rows == 52  # 198 was not in the cache
        before = store.counters().tables["items"]
        assert versions(store, KEYS[:50]) == [4, 4] + 8 * [3] + 40 * [2]
        after = store.counters().tables["items"]
        assert (after.hits - before.hits, after.misses - before.misses) == (50, 0)

    def test_a_cache_of_no_rows(self, root: Path) -> None:
        with TableStore([ITEMS], [VersionedFiles(root, [ITEMS])], cache_rows=0) as store:
            follower = store.follow(root, NEVER)
            write(root, 2)
            follower.look()
            assert versions(store, [0, 2]) == [2, 2]

    def test_deltas(self, store: TableStore, root: Path, follower: FolderFollower) -> None:
        write(root, 2, base=1, keys=[0, 1], shops=None)
        assert follower.look() == 2
        assert versions(store, [0, 1, 2, 3]) == [2, 2, 1, -1]
        write(root, 3, base=2, keys=None, shops=[1, 5])
        write(root, 4, base=3, keys=[2, 3], shops=[5])
        assert follower.look() == 4
        assert versions(store, [0, 1, 2, 3]) == [2, 2, 4, 4]
        assert versions(store, [0, 1, 5], "shops") == [1, 3, 4]

    def test_a_delta_on_an_older_version(
        self, store: TableStore, root: Path, follower: FolderFollower
    ) -> None:
        for number, base, keys in [(2, 1, [0]), (3, 2, [2]), (4, 1, [4]), (5, 2, [6])]:
            write(root, number, base, keys)
            assert follower.look() == number
            expected = {1: [1, 1, 1, 1], 2: [2, 1, 1, 1], 3: [2, 3, 1, 1]}
            expected |= {4: [1, 1, 4, 1], 5: [2, 1, 1, 5]}
            assert versions(store, [0, 2, 4, 6]) == expected[number]

    def test_a_chain_that_was_there_before(self, root: Path) -> None:
        for number in range(2, 12):
            write(root, number, number - 1, keys=[2 * number])
        tier = VersionedFiles(root, [ITEMS])
        rows = np.zeros((len(KEYS), 4), np.float32)
        assert tier.fetch("items", KEYS, rows).all()
        assert rows[:12, 0].tolist() == [1, 1, *range(2, 12)]

    def test_many_deltas_are_merged(
        self, store: TableStore, root: Path, follower: FolderFollower, tmp_path: Path
    ) -> None:
        expected = dict.fromkeys(KEYS.tolist(), 1.0)
        opened = set()
        for number in range(2, 20):
            keys = [2 * (number % 7), 1000 + number]
            write(root, number, number - 1, keys, shops=None)
            follower.look()
            expected |= dict.fromkeys(keys, float(number))
            assert versions(store, [*expected]) == [*expected.values()]
            opened.add(len(os.listdir("/proc/self/fd")))
        (tier,) = store._tiers
        blocks = [*tier.blocks("items", 7)]
        found = {
            key: row[0]
            for keys, rows in blocks
            for key, row in zip(keys.tolist(), rows, strict=True)
        }
        assert found == expected
        assert sum(len(keys) for keys, _ in blocks) == tier.count("items") == len(expected)
        assert max(opened) - min(opened) < 4 * 2 * versioned_files._MAX_DELTAS

    def test_deltas_that_cannot_be_merged(
        self,
        store: TableStore,
        root: Path,
        follower: FolderFollower,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(root / "missing"))
        for number in range(2, 9):
            write(root, number, number - 1, keys=[2 * number])
            follower.look()
        assert versions(store, KEYS[:9]) == [1, 1, *range(2, 9)]
        assert "deltas cannot be merged" in messages(caplog)[0]

    def test_the_thread_looks(self, store: TableStore, root: Path) -> None:
        follower = store.follow(root, 0.01)
        assert versions(store, [0]) == [1]
        write(root, 2)
        wait_for(lambda: follower.version == 2)
        assert versions(store, [0]) == [2]
        threads = {thread.name for thread in threading.enumerate()}
        assert "fusion-refresh" in threads
        store.close()
        assert "fusion-refresh" not in {thread.name for thread in threading.enumerate()}

    def test_a_store_is_closed_while_a_version_is_checked(
        self,
        store: TableStore,
        root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        checking, crc32 = threading.Event(), zlib.crc32

        def slow(content, checksum: int) -> int:
            checking.set()
            wait_for(lambda: store._state == "closed")
            return crc32(content, checksum)

        follower = store.follow(root, 0.01)
        write(tmp_path, 2)
        monkeypatch.setattr(versions_module, "_BYTES_AT_ONCE", 16)
        monkeypatch.setattr(zlib, "crc32", slow)
        os.rename(tmp_path / "2", root / "2")
        assert checking.wait(60)
        store.close()
        assert follower.version == 1
        assert store.counters().refresh.refused_versions == 0
        with pytest.raises(InterruptedError):
            read_version(root / "2").check([ITEMS], lambda: True)

    def test_files_that_were_there_before(self, tmp_path: Path) -> None:
        (tmp_path / "before").mkdir()
        write_table(tmp_path / "before" / "items", rows_of(7, KEYS, 4))
        root = tmp_path / "root"
        with TableStore([ITEMS], [LocalFiles(tmp_path / "before")], cache_rows=10) as store:
            follower = store.follow(root, NEVER)  # which is not there yet
            assert (follower.version, versions(store, [0])) == (None, [7])
            assert store.counters().refresh.errors == 1
            with pytest.raises(FileNotFoundError):
                follower.look()
            write(root, 1)
            assert follower.look() == 1
            assert versions(store, [0]) == [1]

    def test_versions_that_are_there_at_once(self, root: Path, tmp_path: Path) -> None:
        write(root, 5)
        with TableStore([ITEMS], [LocalFiles({})], cache_rows=10) as store:
            assert versions(store, [0]) == [-1]
            assert store.follow(root, NEVER).version == 5
            assert versions(store, [0]) == [5]

    def test_old_files_are_closed_and_may_go(
        self, store: TableStore, root: Path, follower: FolderFollower
    ) -> None:
        versions(store, [0])
        shutil.rmtree(root / "1")
        assert versions(store, KEYS[50:]) == [1] * 50  # they are open
        assert "/1/items/" in Path("/proc/self/maps").read_text()
        write(root, 2)
        follower.look()
        assert f"{root}/1/" not in Path("/proc/self/maps").read_text()
        links = [os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()]
        assert not [link for link in links if link.startswith(f"{root}/1/")]


def _descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


class TestConsistency:
    """What lookups see meanwhile."""

    def test_rows_on_their_way_are_not_kept(
        self,
        store: TableStore,
        root: Path,
        follower: FolderFollower,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        (tier,) = store._tiers
        fetched, go_on, fetch = threading.Event(), threading.Event(), tier.fetch

        def slow(table: str, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
            found = fetch(table, keys, rows)
            fetched.set()
            assert go_on.wait(60)
            return found

        monkeypatch.setattr(tier, "fetch", slow)
        thread = Thread(versions, store, [0, 2])
        assert fetched.wait(60)
        monkeypatch.undo()
        write(root, 2)
        follower.look()
        assert versions(store, [0, 4]) == [2, 2]  # it does not wait for the older row
        go_on.set()
        assert thread.result() == [1, 1]
        assert versions(store, [0, 2, 4]) == [2, 2, 2]

    def test_rows_that_are_updated_stay(self, root: Path) -> None:
        upper = DictionaryTier("upper")
        with TableStore([ITEMS], [upper, VersionedFiles(root, [ITEMS])], cache_rows=50) as store:
            follower = store.follow(root, NEVER)
            versions(store, [0, 2])
            store.update("items", [0], np.full((1, 4), 77.0))
            write(root, 2)
            follower.look()
            assert versions(store, [0, 2]) == [77, 2]

    def test_a_tier_that_fails_meanwhile(self, root: Path) -> None:
        lower = DictionaryTier("lower").fill("items", [1], np.full((1, 4), 9.0))
        with TableStore([ITEMS], [VersionedFiles(root, [ITEMS]), lower], cache_rows=50) as store:
            follower = store.follow(root, NEVER)
            assert versions(store, [0, 1]) == [1, 9]
            write(root, 2)
            lower.error = "is away"
            assert follower.look() == 2  # what is not known any more is asked for by lookups
            assert versions(store, [0]) == [2]
            with pytest.raises(TierError, match="is away"):
                store.lookup("items", [1])
            lower.error = None
            assert versions(store, [0, 1]) == [2, 9]
            assert store.counters().refresh.errors == 1

    def test_rows_that_came_and_went(self, root: Path) -> None:
        lower = DictionaryTier("lower").fill("items", range(1, 40, 2), np.full((20, 4), 5.0))
        with TableStore([ITEMS], [VersionedFiles(root, [ITEMS]), lower], cache_rows=8) as store:
            follower = store.follow(root, NEVER)
            for _ in range(3):
                for first in range(0, 40, 5):
                    versions(store, range(first, first + 5))
                store.invalidate("items", [1, 37])
                versions(store, [3, 39, 37])
            write(root, 2)
            follower.look()  # the lower tier wants distinct keys
            assert versions(store, range(40)) == [2, 5] * 20

    @pytest.mark.parametrize("cache_rows", [0, 40, 100])
    def test_a_lookup_sees_one_version_of_a_row(self, root: Path, cache_rows: int) -> None:
        wide = TableDescription("wide", 61)
        write_version(root, 2, {"wide": rows_of(2, KEYS, 61)})
        files = VersionedFiles(root, [wide])
        with (
            TableStore([wide], [files], cache_rows=cache_rows) as store,
            racing(store, "wide", KEYS) as racers,
        ):
            follower = store.follow(root, NEVER)
            for number in range(3, 40):
                # All rows are of one version: a delta has them all.
                base = None if number % 7 == 0 else number - 1
                write_version(root, number, {"wide": rows_of(number, KEYS, 61)}, base)
                assert follower.look() == number
                racers.reported = number
                racers.wait(3)
        assert racers.lookup_count > 100
