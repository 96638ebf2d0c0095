"""Versions of tables in a folder, taken over while lookups go on."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.stores import versioned_files
from fusion.stores import versions as versions_module
from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.refresh import FolderFollower
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription, TierError
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import Version, read_version, write_version
from tests.stores.dictionary_tier import DictionaryTier
from tests.stores.racing import racing, rows_of
from tests.stores.test_table_store import Thread, wait_for

ITEMS, SHOPS = TableDescription("items", 4, -1.0), TableDescription("shops", 2)
KEYS = np.arange(0, 200, 2)

#: Seconds after which no test looks by itself.
NEVER = 1e6


def write(root: Path, number: int, base: int | None = None, keys=KEYS, shops=(0, 1)) -> Path:
    """A version each of whose elements is its number."""
    items = {} if keys is None else {"items": rows_of(number, keys, 4)}
    tables = items if shops is None else {**items, "shops": rows_of(number, shops, 2)}
    return write_version(root, number, tables, base)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "root", 1)
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> Iterator[TableStore]:
    tables = [ITEMS, SHOPS]
    with TableStore(tables, [VersionedFiles(root, tables)], cache_rows=60) as opened:
        yield opened


@pytest.fixture
def follower(store: TableStore, root: Path) -> FolderFollower:
    return store.follow(root, NEVER)


def versions(store: TableStore, keys, table: str = "items") -> list[float]:
    rows = store.lookup(table, keys)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


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
        assert max(opened) - min(opened) < 4 * 2 * versioned_files._MOST_DELTAS

    def test_deltas_that_cannot_be_merged(
        self,
        store: TableStore,
        root: Path,
        follower: FolderFollower,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(versioned_files.tempfile, "tempdir", str(root / "missing"))
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
        checking, crc32 = threading.Event(), versions_module.zlib.crc32

        def slow(content, checksum: int) -> int:
            checking.set()
            wait_for(lambda: store._state == "closed")
            return crc32(content, checksum)

        follower = store.follow(root, 0.01)
        write(tmp_path, 2)
        monkeypatch.setattr(versions_module, "_BYTES_AT_ONCE", 16)
        monkeypatch.setattr(versions_module.zlib, "crc32", slow)
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


def truncate(folder: Path) -> None:
    with open(folder / "items" / "emb_vector", "r+b") as file:
        file.truncate(100)


def lose_a_key(folder: Path) -> None:
    with open(folder / "items" / "key", "r+b") as file:
        file.truncate(8 * len(KEYS) - 3)


def change_a_row(folder: Path) -> None:
    with open(folder / "items" / "emb_vector", "r+b") as file:
        file.seek(77)
        file.write(b"\xff")


def change_a_key(folder: Path) -> None:
    with open(folder / "items" / "key", "r+b") as file:
        file.seek(16)
        file.write(b"\0")


def remove_rows(folder: Path) -> None:
    (folder / "items" / "emb_vector").unlink()


def remove_a_table(folder: Path) -> None:
    _edit(folder, lambda facts: facts["tables"].pop("shops"))


def other_dimension(folder: Path) -> None:
    _edit(folder, lambda facts: facts["tables"]["items"].update(dimension=5))


def repeat_a_key(folder: Path) -> None:
    split = folder / "items"
    keys = np.fromfile(split / "key", "<i8")
    keys[5] = keys[4]
    keys.tofile(split / "key")
    (split / "key_index").unlink()
    import zlib

    def other_checksum(facts) -> None:
        facts["tables"]["items"]["crc32"]["key"] = f"{zlib.crc32(keys.tobytes()):08x}"

    _edit(folder, other_checksum)


def no_json(folder: Path) -> None:
    (folder / "version.json").write_text("{")


def not_described(folder: Path) -> None:
    (folder / "version.json").unlink()


def based_on_itself(folder: Path) -> None:
    _edit(folder, lambda facts: facts.update(kind="delta", base=2))


def based_on_nothing(folder: Path) -> None:
    _edit(folder, lambda facts: facts.update(kind="delta", base=0))


def _edit(folder: Path, change) -> None:
    facts = json.loads((folder / "version.json").read_text())
    change(facts)
    (folder / "version.json").write_text(json.dumps(facts))


BROKEN = {
    truncate: "items/emb_vector: has 100 bytes, not 1600",
    lose_a_key: "items/key: has 797 bytes, not 800",
    change_a_row: "items/emb_vector: its checksum is wrong",
    change_a_key: "items/key: its checksum is wrong",
    remove_rows: "No such file or directory: .*items/emb_vector",
    remove_a_table: "is whole, and has no table shops",
    other_dimension: "items: has dimension 5, not 4",
    repeat_a_key: "has the key 8 twice",
    no_json: "version.json: does not say what it should",
    not_described: "has no version.json",
    based_on_itself: "cannot be based on 2",
    based_on_nothing: "is based on version 0: .*/0: has no version.json",
}


class TestRefused:
    """Versions that are broken."""

    @pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
    def test_the_old_version_stays(
        self,
        store: TableStore,
        root: Path,
        tmp_path: Path,
        follower: FolderFollower,
        caplog: pytest.LogCaptureFixture,
        damage,
    ) -> None:
        versions(store, [0])
        write(tmp_path / "whole", 2)
        damage(write(tmp_path / "damaged", 2))
        os.rename(tmp_path / "damaged" / "2", root / "2")
        with caplog.at_level(logging.WARNING, "fusion"):
            assert [follower.look() for _ in range(3)] == [None] * 3
        assert versions(store, [0, 2]) == [1, 1]
        (message,) = messages(caplog)
        assert message.startswith("version 2 is refused: ")
        assert re.search(BROKEN[damage], message)
        refresh = store.counters().refresh
        assert (refresh.version, refresh.refused_versions) == (1, 1)
        assert re.search(BROKEN[damage], refresh.refusals[2])
        json.dumps(store.counters().to_dict())

        shutil.rmtree(root / "2")
        os.rename(tmp_path / "whole" / "2", root / "2")
        assert follower.look() == 2
        assert versions(store, [0, 2]) == [2, 2]
        assert store.counters().refresh.refusals == {}

    def test_files_are_read_again_when_they_change(
        self,
        store: TableStore,
        root: Path,
        follower: FolderFollower,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        checks, check = [], Version.check

        def counted(version: Version, *arguments) -> None:
            checks.append(version.folder.name)
            check(version, *arguments)

        monkeypatch.setattr(Version, "check", counted)
        change_a_row(write(root, 2))
        for _ in range(3):
            follower.look()
        assert checks == ["2"]
        write(root, 3, base=2, keys=[0])
        for _ in range(3):
            follower.look()
        assert checks == ["2"]  # what is based on it is not read either
        reason = store.counters().refresh.refusals[3]
        assert reason.startswith("is based on version 2: ")
        change_a_row(root / "2")  # the same byte, at another time
        follower.look()
        assert checks == ["2", "2"]
        rows_of(2, KEYS, 4)[0][1].tofile(root / "2" / "items" / "emb_vector")
        assert follower.look() == 3
        assert checks == ["2", "2", "2", "3"]
        assert versions(store, [0, 2]) == [3, 2]

    def test_an_older_one_is_taken_instead(
        self, store: TableStore, root: Path, follower: FolderFollower
    ) -> None:
        truncate(write(root, 3))
        write(root, 2)
        assert follower.look() == 2
        assert [*store.counters().refresh.refusals] == [3]
        write(root, 4)
        assert follower.look() == 4
        assert store.counters().refresh.refusals == {}
        assert store.counters().refresh.refused_versions == 1

    def test_what_cannot_be_read_now_is_tried_again(
        self,
        root: Path,
        follower: FolderFollower,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        write(root, 2)
        opened = versioned_files._opened

        def full(*_: object) -> LocalFiles:
            raise TierError("mapped", "items", OSError(24, "Too many open files"))

        monkeypatch.setattr(versioned_files, "_opened", full)
        assert follower.look() is None
        monkeypatch.setattr(versioned_files, "_opened", opened)
        assert follower.look() == 2

    def test_none_at_first(self, tmp_path: Path, root: Path) -> None:
        with pytest.raises(TierError, match="No such file"):
            VersionedFiles(tmp_path / "missing", [ITEMS])
        truncate(root / "1")
        with pytest.raises(TierError, match=r"has no version that can be read; .*has 100 bytes"):
            VersionedFiles(root, [ITEMS])

    def test_read_only(self, root: Path) -> None:
        tier = VersionedFiles(root, [ITEMS])
        with pytest.raises(TierError, match="no table that this tier was opened for"):
            tier.open_table(SHOPS)
        with pytest.raises(OSError, match="read only"):
            tier.put("items", KEYS, np.zeros((len(KEYS), 4), np.float32))
        with pytest.raises(OSError, match="read only"):
            tier.remove("items", KEYS)
        tier.close()
        with pytest.raises(TierError, match="closed"):
            tier.count("items")

    def test_what_cannot_be_followed(self, root: Path, tmp_path: Path) -> None:
        upper, files = DictionaryTier("upper"), VersionedFiles(root, [ITEMS])
        store = TableStore([ITEMS], [upper, files], cache_rows=5, promote=["upper"])
        with store, pytest.raises(ValueError, match="upper would keep older rows"):
            store.follow(root)
        store = TableStore([ITEMS], [upper], cache_rows=5)
        with store, pytest.raises(ValueError, match="one tier of files to be followed, not 0"):
            store.follow(root)
        files = VersionedFiles(root, [ITEMS])
        with TableStore([ITEMS], [files], cache_rows=5) as store:
            with pytest.raises(ValueError, match="the store has versions at"):
                store.follow(tmp_path)
            with pytest.raises(ValueError, match="seconds must be positive"):
                store.follow(root, 0)
            store.follow(root)
            with pytest.raises(ValueError, match="follows a folder already"):
                store.follow(root)
        with pytest.raises(tf.errors.FailedPreconditionError):
            store.follow(root)


class TestConsistency:
    """What lookups see meanwhile."""

    def test_rows_on_their_way_are_not_kept(
        self, store: TableStore, root: Path, follower: FolderFollower
    ) -> None:
        (tier,) = store._tiers
        fetched, go_on, fetch = threading.Event(), threading.Event(), tier.fetch

        def slow(table: str, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
            found = fetch(table, keys, rows)
            fetched.set()
            assert go_on.wait(60)
            return found

        tier.fetch = slow
        thread = Thread(versions, store, [0, 2])
        assert fetched.wait(60)
        tier.fetch = fetch
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
