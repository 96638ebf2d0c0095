"""RocksDB: databases that are locked, damaged or read only."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
import rocksdict

from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.tier import TableDescription, TierError

KEYS = np.arange(-50, 50)
ROWS = np.repeat(KEYS.astype(np.float32)[:, None], 4, 1)


def opened(folder, **options):
    tier = RocksDB(RocksDBOptions(str(folder), **options))
    tier.open_table(TableDescription("a", 4))
    return tier


@pytest.fixture
def database(tmp_path):
    tier = opened(tmp_path)
    tier.put("a", KEYS, ROWS)
    tier.close()
    return tmp_path


def check(tier):
    rows = np.zeros_like(ROWS)
    assert tier.fetch("a", KEYS, rows).all()
    np.testing.assert_array_equal(rows, ROWS)


def test_rows_are_kept(database):
    tier = opened(database)
    check(tier)
    assert tier.count("a") == 100


def test_keys_are_in_order(database):
    keys = np.concatenate([keys for keys, _ in opened(database).blocks("a", 7)])
    np.testing.assert_array_equal(keys, np.sort(KEYS.view(np.uint64)).view(np.int64))


def test_read_only(database):
    tiers = [opened(database, read_only=True) for _ in range(2)]
    for tier in tiers:
        check(tier)
        assert not tier.is_writable
        with pytest.raises(io.UnsupportedOperation, match="read only"):
            tier.put("a", KEYS, ROWS)
        with pytest.raises(io.UnsupportedOperation, match="read only"):
            tier.remove("a", KEYS)
        with pytest.raises(TierError, match="table b: is not there"):
            tier.open_table(TableDescription("b", 4))


def test_read_only_beside_a_writer(database):
    writer = opened(database)
    check(opened(database, read_only=True))
    writer.put("a", KEYS, ROWS)


def test_two_writers(database):
    first = opened(database)
    with pytest.raises(TierError, match=f"rocksdb at {database}: .*lock"):
        opened(database)
    check(first)
    first.close()
    check(opened(database))


def test_no_database_to_read(tmp_path):
    with pytest.raises(TierError, match="rocksdb at"):
        opened(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("file", ["MANIFEST-*", "CURRENT"])
def test_a_damaged_database(database, file):
    (path,) = database.glob(file)
    path.write_bytes(b"\x00\xff" * 20)
    with pytest.raises(TierError, match="rocksdb at"):
        opened(database)


def test_a_damaged_file_of_rows(database):
    opened(database).close()  # writes the log of the last time into a file of rows
    files = [*database.glob("*.sst")]
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[: len(content) // 2] = bytes(len(content) // 2)
        path.write_bytes(content)
    with pytest.raises(TierError, match=r"(?i)corruption|checksum|bad"):
        check(opened(database))


def test_another_dimension(database):
    tier = RocksDB(RocksDBOptions(str(database)))
    with pytest.raises(TierError, match="table a: has a row of 16 bytes, but dimension 8 has 32"):
        tier.open_table(TableDescription("a", 8))


def test_keys_of_another_size(database):
    tier = opened(database)
    other = rocksdict.WriteBatch(raw_mode=True)
    other.put(b"short", bytes(16), tier._database.get_column_family_handle("a"))
    tier._database.write(other)
    with pytest.raises(TierError, match="keys that are not of 8 bytes"):
        [*tier.blocks("a", 1000)]


def test_a_table_called_default(tmp_path):
    tier = opened(tmp_path)
    tier.open_table(TableDescription("default", 4))
    tier.put("default", KEYS, ROWS)
    assert (tier.count("default"), tier.count("a")) == (100, 0)
    tier.close()
    assert RocksDB(RocksDBOptions(str(tmp_path), read_only=True)).dimensions() == {"default": 4}


@pytest.mark.parametrize("field", ["num_threads", "max_batch_size"])
def test_wrong_numbers(field):
    wrong: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"{field} must be positive, got 0"):
        RocksDBOptions("/nowhere", **wrong)


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ImportError, match=r"tf-embedding-fusion\[store\]"):
        opened(tmp_path)
