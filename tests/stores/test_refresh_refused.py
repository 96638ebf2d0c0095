"""Versions of tables in a folder that are broken, and stores that cannot follow one."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.stores import versioned_files
from fusion.stores.local_files import LocalFiles
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.refresh import FolderFollower
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TierError
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import Version
from tests.stores.dictionary_tier import DictionaryTier
from tests.stores.followed import ITEMS, KEYS, SHOPS, versions, write
from tests.stores.racing import rows_of
from tests.stores.redis_server import RedisServer


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fusion"]


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

    def test_copies_in_redis(self, root: Path, redis_server: RedisServer) -> None:
        redis, files = Redis(RedisOptions(redis_server.address)), VersionedFiles(root, [ITEMS])
        store = TableStore([ITEMS], [redis, files], cache_rows=5, promote=["redis"])
        with store, pytest.raises(ValueError, match="redis may get copies of older rows of files"):
            store.follow(root)

    def test_what_cannot_be_followed(self, root: Path, tmp_path: Path) -> None:
        store = TableStore([ITEMS], [DictionaryTier("upper")], cache_rows=5)
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
