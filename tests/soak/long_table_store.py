"""A table store for a long time: ops and Python look up in many threads while rows change."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from tests.stores.dictionary_tier import DictionaryTier

SECONDS = 180
KEYS, DIMS = 4000, {"narrow": 3, "wide": 70}


def value_of(keys: np.ndarray, version: np.ndarray, dimension: int) -> np.ndarray:
    """Rows that say whose they are, and which version."""
    numbers = (keys + KEYS * version).astype(np.float32)
    return np.repeat(numbers[:, np.newaxis], dimension, 1)


class Busy:
    """A store whose rows change, and the versions that lookups may find.

    `written` is the version of each key that an update has returned for: a lookup that begins later
    must not find an older one. `begun` is the newest that an update has begun with.
    """

    def __init__(self) -> None:
        tier = DictionaryTier()
        self.written = {name: np.zeros(KEYS, np.int64) for name in DIMS}
        self.begun = {name: np.zeros(KEYS, np.int64) for name in DIMS}
        self.changing = {name: threading.Lock() for name in DIMS}
        keys = np.arange(KEYS)
        for name, dimension in DIMS.items():
            tier.fill(name, keys, value_of(keys, self.written[name], dimension))
        tables = [TableDescription(name, dimension, -1.0) for name, dimension in DIMS.items()]
        self.store = TableStore(tables, [tier], cache_rows=KEYS // 4)
        self.stop, self.wrong, self.counts = threading.Event(), list[str](), dict[str, int]()

    def check(self, name: str, keys: np.ndarray, rows: np.ndarray, oldest: np.ndarray) -> None:
        newest = self.begun[name][keys % KEYS]
        known = keys < KEYS
        version = np.where(known, rows[:, 0] // KEYS, 0)
        fine = (rows == rows[:, :1]).all(1)
        fine &= np.where(known, rows[:, 0] % KEYS == keys, rows[:, 0] == -1)
        fine &= np.where(known, (oldest <= version) & (version <= newest), True)
        if not fine.all():
            at = np.flatnonzero(~fine)[:3]
            text = f"{keys[at]}: {rows[at]}, versions {oldest[at]} to {newest[at]}"
            self.wrong.append(f"{name} {text}")

    def look_up(self, rng: np.random.Generator) -> None:
        for name in DIMS:
            keys = rng.integers(0, KEYS + 50, 300)
            oldest = self.written[name][keys % KEYS]
            self.check(name, keys, self.store.lookup(name, keys), oldest)

    def run_op(self, rng: np.random.Generator) -> None:
        keys = [rng.zipf(1.2, 2000) % KEYS for _ in DIMS]
        oldest = [self.written[name][own] for name, own in zip(DIMS, keys, strict=True)]
        tensors = [tf.constant(own) for own in keys]
        found = ops.table_store_gather(tensors, tables=[*DIMS], dims=[*DIMS.values()], store="soak")
        for name, own, rows, least in zip(DIMS, keys, found, oldest, strict=True):
            self.check(name, own, rows.numpy(), least)

    def update(self, rng: np.random.Generator) -> None:
        name = rng.choice([*DIMS])
        keys = np.unique(rng.integers(0, KEYS, 40))
        with self.changing[name]:
            version = self.begun[name][keys] + 1
            if version.max() * KEYS > 2**23:  # float32 has no more integers
                self.stop.set()
                return
            self.begun[name][keys] = version
            self.store.update(name, keys, value_of(keys, version, DIMS[name]))
            self.written[name][keys] = version

    def invalidate(self, rng: np.random.Generator) -> None:
        name = rng.choice([*DIMS])
        self.store.invalidate(name, None if rng.random() < 0.02 else rng.integers(0, KEYS, 20))
        time.sleep(0.001)

    def work(self, kind: str, seed: int, end: float) -> None:
        rng, count = np.random.default_rng(seed), 0
        try:
            while time.monotonic() < end and not self.stop.is_set() and not self.wrong:
                getattr(self, kind)(rng)
                count += 1
        except Exception as error:
            self.wrong.append(f"{kind}: {error!r}")
        self.counts[kind] = self.counts.get(kind, 0) + count


def test_rows_are_whole_and_never_older_than_what_was_written() -> None:
    busy, end = Busy(), time.monotonic() + SECONDS
    kinds = ["look_up", "look_up", "run_op", "run_op", "update", "update", "invalidate"]
    with busy.store.register("soak"):
        threads = [
            threading.Thread(target=busy.work, args=(kind, seed, end))
            for seed, kind in enumerate(kinds)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counters = busy.store.counters()
    assert busy.wrong == []
    assert min(busy.counts.values()) > 10, busy.counts
    assert all(table.evicted > 0 for table in counters.tables.values())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_stays_the_same_over_many_keys_and_many_stores() -> None:
    tier, rng, sizes = DictionaryTier(), np.random.default_rng(0), list[int]()
    tier.fill("t", [0], np.zeros((1, 16)))
    for number in range(40):
        with TableStore([TableDescription("t", 16)], [tier], cache_rows=5000) as store:
            store.register("many")
            for _ in range(20):
                store.lookup("t", rng.integers(0, 2**40, 2000))
        tier.requests.clear()
        if number >= 10:
            sizes.append(resident_bytes())
    assert max(sizes) < 1.1 * min(sizes), sizes
