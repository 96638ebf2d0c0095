"""Rows that change for a minute while they are looked up, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.redis_changes import announce
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription, TierError
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import version_numbers, write_version
from tests.stores.racing import Racers, racing, rows_of
from tests.stores.redis_server import RedisServer

_SECONDS = 60.0

_KEYS = np.arange(0, 30_000, 3)

#: Of `all` each version has all rows, so that its rows tell how old they are; of `some` deltas have
#: a few rows, which whoever opens the versions anew must find too.
_ALL, _SOME = TableDescription("all", 37), TableDescription("some", 4)

_WRITES = """
import sys
import numpy as np
from fusion.stores.versions import version_numbers, write_version
from tests.stores.racing import rows_of
from tests.soak.long_refresh import _KEYS

root, rng = sys.argv[1], np.random.default_rng(int(sys.argv[2]))
print("imported", flush=True)  # which takes longer than a writer lives where others work
while True:
    newest = version_numbers(root)[-1]
    number = newest + 1
    some = rng.choice(_KEYS, 50, replace=False)
    base = newest
    if rng.random() < 0.1:
        some, base = _KEYS, None
    tables = {"all": rows_of(number, _KEYS, 37), "some": rows_of(number, some, 4)}
    write_version(root, number, tables, base)
"""


def test_versions_whose_writer_is_killed(tmp_path: Path) -> None:
    tables = {"all": rows_of(1, _KEYS, 37), "some": rows_of(1, _KEYS, 4)}
    write_version(tmp_path, 1, tables)
    rng = np.random.default_rng(0)
    files = VersionedFiles(tmp_path, [_ALL, _SOME])
    with TableStore([_ALL, _SOME], [files], cache_rows=8_000) as store:
        follower = store.follow(tmp_path, 0.01)

        def report(racers: Racers) -> None:
            assert follower.version is not None
            racers.reported = follower.version

        with racing(store, "all", _KEYS) as racers:
            end, killed = time.monotonic() + _SECONDS, 0
            while time.monotonic() < end:
                command = [sys.executable, "-c", _WRITES, str(tmp_path), str(killed)]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == b"imported\n"
                    _repeat(rng.uniform(0.5, 3), lambda: report(racers))
                    process.kill()
                killed += 1
        follower.look()
        newest = version_numbers(tmp_path)[-1]
        assert follower.version == newest > 20
        assert store.counters().refresh.refused_versions == 0
        assert store.counters().refresh.errors == 0
        print(f"{newest} versions, {killed} writers killed, {racers.lookup_count} lookups")
        assert (store.lookup("all", _KEYS) == newest).all()
        anew = VersionedFiles(tmp_path, [_ALL, _SOME])
        rows = np.empty((len(_KEYS), 4), np.float32)
        assert anew.fetch("some", _KEYS, rows).all()
        np.testing.assert_array_equal(store.lookup("some", _KEYS), rows)


def test_redis_is_killed(tmp_path: Path) -> None:
    keys = _KEYS[:2_000]
    server = RedisServer(tmp_path, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    options = RedisOptions(server.address, timeout=0.5)
    writer, rng = Redis(options), np.random.default_rng(0)
    writer.open_table(_ALL)

    def push(version: int) -> None:
        for some, rows in rows_of(version, keys, 37):
            writer.put("all", some, rows)
            announce(writer, "all", some)

    try:
        push(1)
        with TableStore([_ALL], [Redis(options)], cache_rows=1_500) as store:
            follower = store.follow_redis(seconds=0.02)
            errors = (TierError, tf.errors.UnavailableError)
            with racing(store, "all", keys, ignored=errors) as racers:
                end, version, killed = time.monotonic() + _SECONDS, 1, 0
                while time.monotonic() < end:
                    version += 1
                    with contextlib.suppress(TierError):
                        push(version)
                        while follower.look():
                            pass
                        racers.reported = version
                    if rng.random() < 0.02:
                        server.kill()
                        _repeat(rng.uniform(0, 2), lambda: None)
                        server.start()
                        killed += 1
            assert version > 100
            assert killed > 0
            push(version)
            while follower.look():
                pass
            assert (store.lookup("all", keys) == version).all()
            print(f"{version} pushes, {killed} kills, {racers.lookup_count} lookups")
            print(store.counters().refresh)
    finally:
        server.kill()


def _repeat(seconds: float, call: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call()
        time.sleep(0.001)
