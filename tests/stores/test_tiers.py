"""Every tier against a dictionary."""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.tier import TableDescription, Tier

DIMENSION = 3
NAMES = (f"table_{number}" for number in itertools.count())

KEYS = st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1))
SOME_KEYS = st.lists(KEYS, unique=True, max_size=12)
STEPS = st.lists(
    st.tuples(st.sampled_from(("put", "remove", "fetch")), SOME_KEYS, st.integers(0, 1000)),
    max_size=12,
)


def rows_of(keys, version):
    """Rows [n, DIMENSION] that differ by key and version."""
    first = np.asarray(keys, np.int64).astype(np.float32)[:, None]
    return first + np.arange(DIMENSION, dtype=np.float32) * np.float32(version + 1)


def all_rows(tier, table, size):
    return {
        key: row.tobytes()
        for keys, rows in tier.blocks(table, size)
        for key, row in zip(keys.tolist(), rows, strict=True)
    }


def check_fetch(tier, table, keys, known):
    wanted = np.array([*keys, *itertools.islice(known.keys() - {*keys}, 4)], np.int64)
    rows = np.full((len(wanted), DIMENSION), -7, np.float32)
    found = tier.fetch(table, wanted, rows)
    assert found.dtype == np.bool_
    assert found.tolist() == [key in known for key in wanted.tolist()]
    missing = np.full(DIMENSION, -7, np.float32).tobytes()
    expected = [known.get(key, missing) for key in wanted.tolist()]
    assert [row.tobytes() for row in rows] == expected


@pytest.fixture(scope="module")
def rocksdb(tmp_path_factory):
    tier = RocksDB(RocksDBOptions(str(tmp_path_factory.mktemp("rocksdb")), max_batch_size=5))
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def single(redis_server):
    tier = Redis(RedisOptions(redis_server.address, num_partitions=3, max_batch_size=2))
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def cluster(redis_cluster):
    address = ",".join(node.address for node in redis_cluster)
    tier = Redis(RedisOptions(address, num_partitions=7))
    yield tier
    tier.close()


@pytest.fixture(params=["rocksdb", "single", "cluster"])
def writable(request) -> Tier:
    return request.getfixturevalue(request.param)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_writable_tier_is_a_dictionary(writable, steps):
    table = next(NAMES)
    known: dict[int, bytes] = {}
    writable.open_table(TableDescription(table, DIMENSION))
    for step, keys, version in steps:
        array = np.array(keys, np.int64)
        if step == "put":
            rows = rows_of(keys, version)
            writable.put(table, array, rows)
            known.update(zip(keys, (row.tobytes() for row in rows), strict=True))
        elif step == "remove":
            writable.remove(table, array)
            known = {key: row for key, row in known.items() if key not in keys}
        else:
            check_fetch(writable, table, keys, known)
    check_fetch(writable, table, [], known)
    assert writable.count(table) == len(known)
    assert all_rows(writable, table, 4) == known


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(KEYS, unique=True, max_size=60), others=SOME_KEYS, size=st.integers(1, 70))
def test_files_are_a_dictionary(tmp_path, keys, others, size):
    table, rows = next(NAMES), rows_of(keys, 1)
    blocks = [(np.array(keys[k : k + size], np.int64), rows[k : k + size]) for k in (0, size)]
    kept = keys[: 2 * size]
    assert write_table(tmp_path / table, blocks) == len(kept)
    tier = LocalFiles(tmp_path)
    tier.open_table(TableDescription(table, DIMENSION))
    known = dict(zip(kept, (row.tobytes() for row in rows), strict=False))
    check_fetch(tier, table, others, known)
    assert tier.count(table) == len(kept)
    assert all_rows(tier, table, 7) == known


def test_files_are_read_only(tmp_path):
    write_table(tmp_path / "a", [(np.arange(2), np.ones((2, 3), np.float32))])
    tier = LocalFiles(tmp_path)
    tier.open_table(TableDescription("a", 3))
    assert not tier.is_writable
    with pytest.raises(io.UnsupportedOperation, match="read only"):
        tier.put("a", np.arange(1), np.ones((1, 3), np.float32))
    with pytest.raises(io.UnsupportedOperation, match="read only"):
        tier.remove("a", np.arange(1))


def test_tables_are_apart(writable):
    first, second = next(NAMES), next(NAMES)
    for table, dimension in ((first, 2), (second, 5)):
        writable.open_table(TableDescription(table, dimension))
    writable.put(first, np.array([1]), np.ones((1, 2), np.float32))
    rows = np.zeros((1, 5), np.float32)
    assert writable.fetch(second, np.array([1]), rows).tolist() == [False]
    assert (writable.count(first), writable.count(second)) == (1, 0)


def test_keys_to_remove_are_int64(writable):
    table = next(NAMES)
    writable.open_table(TableDescription(table, 1))
    writable.put(table, np.array([1]), np.ones((1, 1), np.float32))
    for keys in (np.array([1.2]), np.array([True]), np.array([1], np.uint64)):
        with pytest.raises(ValueError, match="keys must be int64 of one axis, got"):
            writable.remove(table, keys)
    assert writable.count(table) == 1


def test_tables_that_are_not_open(writable):
    with pytest.raises(KeyError, match="never"):
        writable.fetch("never", np.arange(1), np.zeros((1, 2), np.float32))
    with pytest.raises(KeyError, match="never"):
        writable.remove("never", np.arange(1))


WRONG: list[tuple[str, Callable[[], tuple[np.ndarray, np.ndarray]]]] = [
    ("int64 of one axis", lambda: (np.arange(2, dtype=np.int32), np.zeros((2, 3), np.float32))),
    ("int64 of one axis", lambda: (np.zeros((2, 1), np.int64), np.zeros((2, 3), np.float32))),
    (r"shape \(2, 3\)", lambda: (np.arange(2), np.zeros((2, 3)))),
    (r"shape \(2, 3\)", lambda: (np.arange(2), np.zeros((2, 4), np.float32))),
    (r"shape \(2, 3\)", lambda: (np.arange(2), np.zeros((3, 3), np.float32))),
    ("C order", lambda: (np.arange(2), np.zeros((3, 2), np.float32).T)),
    ("writable", lambda: (np.arange(2), np.frombuffer(bytes(24), np.float32).reshape(2, 3))),
]


@pytest.mark.parametrize(("message", "arguments"), WRONG)
def test_wrong_arguments(writable, tmp_path, message, arguments):
    write_table(tmp_path / "a", [(np.arange(2), np.ones((2, 3), np.float32))])
    for tier in (LocalFiles(tmp_path), writable):
        tier.open_table(TableDescription("a", 3))
        with pytest.raises(ValueError, match=message):
            tier.fetch("a", *arguments())


def test_a_row_is_of_one_version(writable):
    """Threads read rows that are put all the time: all elements of a row come from one put."""
    table, keys, stop = next(NAMES), np.arange(50), threading.Event()
    writable.open_table(TableDescription(table, 64))
    writable.put(table, keys, np.zeros((50, 64), np.float32))
    failures = []

    def read():
        rows, count = np.empty((50, 64), np.float32), 0
        while not stop.is_set() or not count:
            found = writable.fetch(table, keys, rows)
            if not found.all() or (rows != rows[:, :1]).any():
                failures.append(rows.copy())
            count += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(100):
        writable.put(table, keys, np.full((50, 64), version, np.float32))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = np.empty((50, 64), np.float32)
    writable.fetch(table, keys, rows)
    assert (rows == 99).all()
