"""Lookups in a table store, by its op and from Python, beside stock gathers from variables.

A call is a batch of 512 with 26 ids each, 13,312 keys, of dimension 16: of 26 tables, or of one.
Rows that are not in the cache come from a tier that computes them. "95 %" are calls of which 5 % of
the keys were not looked up for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.case import Row
from benchmarks.measure import calls_in_turns, on_each, percentiles
from fusion import ops
from fusion.stores.table_store import TableStore
from fusion.stores.tier import Found, Keys, Rows, TableDescription

_TABLES, _BATCH, _DIM, _BATCHES = 26, 512, 16, 200
_NAMES = [f"table{number}" for number in range(_TABLES)]
_COLD = 1 << 22

#: All hits, and the two ways in which misses are answered.
_STORES = ("hits", "waits", "goes on")

#: With misses, one row of so many is looked up again and again.
_HOT = 8


class _Computed:
    """A tier that has a row of each key."""

    name, address, is_writable = "computed", "", False

    def open_table(self, table: TableDescription) -> None:
        """There is nothing to open."""

    def fetch(self, table: str, keys: Keys, rows: Rows) -> Found:
        """See `Tier.fetch`."""
        rows[:] = rows_of(keys)
        return np.ones(len(keys), np.bool_)

    def close(self) -> None:
        """There is nothing to close."""


def rows_of(keys: np.ndarray) -> np.ndarray:
    """The rows of keys."""
    return np.repeat((keys % 8191).astype(np.float32)[..., None], _DIM, -1)


def opened(name: str, rows: int, threshold: float) -> TableStore:
    """A store, with the first rows of each table in its cache."""
    tables = [TableDescription(table, _DIM) for table in _NAMES]
    tier: Any = _Computed()
    # Other keys than these make room for each other, before they are looked up again.
    store = TableStore(tables, [tier], 2 * rows, threshold).register(name)
    for table in _NAMES:
        store.warm(table, np.arange(rows))
    return store


def measure(rows: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each side, and how many of the keys were in the caches of stores.

    Args:
        rows: of each table that are in the cache.
        seconds: for each side.
    """
    generator = np.random.default_rng(1)
    hot = [generator.integers(0, rows, (_TABLES, _BATCH)) for _ in range(_BATCHES)]
    cold = [_with_cold(generator, keys, rows) for keys in hot]
    variables = [tf.Variable(rows_of(np.arange(rows))) for _ in _NAMES]
    whole = tf.Variable(rows_of(np.arange(rows)))
    stores = [
        opened("hits", rows, 1.0),
        opened("waits", rows // _HOT, 1.0),
        opened("goes on", rows // _HOT, 0.9),
    ]

    def many(store: str) -> Callable[[Any], Any]:
        dims = [_DIM] * _TABLES
        return tf.function(
            lambda keys: ops.table_store_gather(keys, tables=_NAMES, dims=dims, store=store)
        )

    def single(keys: Any) -> Any:
        return ops.table_store_gather([keys], tables=_NAMES[:1], dims=[_DIM], store="hits")[0]

    def stock(keys: Any) -> list[Any]:
        return [tf.gather(table, own) for table, own in zip(variables, keys, strict=True)]

    of_many, flat = [_tensors(keys) for keys in hot], [keys.reshape(-1) for keys in hot]
    of_one = [tf.constant(keys) for keys in flat]
    sides: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "26 tables: op, all in the cache": (many("hits"), of_many),
        "26 tables: stock gathers": (tf.function(stock), of_many),
        "26 tables: op, 95 %, waits": (many("waits"), [_tensors(keys) for keys in cold]),
        "26 tables: op, 95 %, threshold 0.9": (many("goes on"), [_tensors(k) for k in cold]),
        "1 table: op, all in the cache": (tf.function(single), of_one),
        "1 table: stock gather": (tf.function(lambda keys: tf.gather(whole, keys)), of_one),
        "1 table: store.lookup": (lambda keys: stores[0].lookup(_NAMES[0], keys), flat),
    }
    for name, (call, batches) in sides.items():
        right = rows_of(np.asarray(batches[0]))
        if "0.9" not in name and not np.array_equal(np.asarray(call(batches[0])), right):
            raise AssertionError(f"{name} has other rows")
    calls = {name: on_each(*side) for name, side in sides.items()}
    for name, found in calls_in_turns(calls, seconds * len(sides)).items():
        yield Row({"13,312 keys of dimension 16": name}, percentiles(found))
    for name, store in zip(_STORES, stores, strict=True):
        counters = store.counters().tables.values()
        hits, misses = sum(one.hits for one in counters), sum(one.misses for one in counters)
        yield Row({"store": name}, {"in the cache": hits / (hits + misses)})
        store.close()


def _with_cold(generator: np.random.Generator, keys: np.ndarray, rows: int) -> np.ndarray:
    """Keys of which 5 % are others, that are not in the cache."""
    others = generator.integers(rows, _COLD, keys.shape)
    return np.where(generator.random(keys.shape) < 0.05, others, keys % (rows // _HOT))


def _tensors(keys: np.ndarray) -> list[tf.Tensor]:
    return [tf.constant(own) for own in keys]
