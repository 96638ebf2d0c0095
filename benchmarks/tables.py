"""Embedding variables against stock's hash tables, and training against a plain table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.case import Row
from benchmarks.measure import Call, calls_in_turns, milliseconds, on_each
from fusion import EmbeddingVariable, ops

DIM, COLUMNS = 16, 26
_OURS = "EmbeddingVariable"

#: Keys that are put into a table at once.
_CHUNK = 1 << 20

Lookup = Callable[[tf.Tensor], tf.Tensor]


def measure(keys: int, batch: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of lookups and of steps, all tables in turns.

    Args:
        keys: that are in the tables.
        batch: rows of a batch; a lookup has 26 keys for each.
        seconds: for each comparison.
    """
    rng = np.random.default_rng(0)
    all_keys = rng.permutation(np.arange(keys, dtype=np.int64) * 7919 + 13)
    size = min(batch * COLUMNS, keys)
    variable = EmbeddingVariable("table", DIM)
    yield Row(
        {"new keys of a step": size, "until there are": keys}, _grow(variable, all_keys, size)
    )
    batches = [tf.constant(all_keys[rng.integers(0, keys, size)]) for _ in range(16)]
    lookups = {_OURS: tf.function(variable.embedding_lookup, autograph=False)}
    found = lookups[_OURS](batches[0]).numpy()
    for name, make in _STOCK.items():
        print(name, flush=True)
        lookups[name] = tf.function(make(all_keys, variable), autograph=False)
        assert (lookups[name](batches[0]).numpy() == found).all(), name
    yield from _timed("lookup", {k: on_each(one, batches) for k, one in lookups.items()}, seconds)
    yield from _timed("step of Adagrad", _steps(variable, all_keys, size), seconds)


def _timed(title: str, calls: Mapping[str, Call], seconds: float) -> Iterator[Row]:
    times = calls_in_turns(calls, seconds)
    ours = float(np.median(times[_OURS]))
    for name, found in times.items():
        over = float(np.median(found)) / ours
        yield Row({title: name}, {"ms": milliseconds(found), "times ours": over})


def _grow(variable: EmbeddingVariable, keys: np.ndarray[Any, Any], size: int) -> dict[str, float]:
    """Milliseconds of training steps in which all keys are new: the median and others."""
    step = tf.function(_trained(variable.embedding_lookup, variable.table), autograph=False)
    step(tf.constant(keys[:1]))
    times = []
    for first in range(1, len(keys), size):
        some = tf.constant(keys[first : first + size])
        start = time.perf_counter()
        step(some)
        times.append(1000 * (time.perf_counter() - start))
    whole = times[:-1] or times  # the last step has fewer keys
    p50, p99 = np.percentile(whole, [50, 99]).tolist()
    return {"p50, ms": p50, "p99, ms": p99, "largest, ms": max(whole)}


def _trained(lookup: Lookup, table: Any, slot: Any = None) -> Callable[[tf.Tensor], tf.Tensor]:
    """A training step: SGD, or with a slot Adagrad."""

    def step(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = lookup(keys)
            loss = tf.reduce_sum(rows * rows)
        slices = tape.gradient(loss, table)
        if slot is None:
            tf.raw_ops.ResourceScatterSub(
                resource=table.handle, indices=slices.indices, updates=0.01 * slices.values
            )
        else:
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slot.handle,
                lr=0.01,
                epsilon=1e-7,
                grad=slices.values,
                indices=slices.indices,
            )
        return loss

    return step


def _steps(
    variable: EmbeddingVariable,
    keys: np.ndarray[Any, Any],
    size: int,
) -> dict[str, Call]:
    """Steps of Adagrad on the variable, and on a plain table of as many rows."""
    rng = np.random.default_rng(1)
    plain = tf.Variable(tf.zeros([len(keys), DIM]))
    plain_slot = tf.Variable(tf.zeros_like(plain))
    shape = tf.constant([variable.capacity, DIM], tf.int64)
    slot = tf.Variable(ops.zeros_on_demand(shape=shape, T=tf.float32))
    numbers = [np.unique(rng.integers(0, len(keys), size)) for _ in range(8)]
    return {
        _OURS: on_each(
            tf.function(_trained(variable.embedding_lookup, variable.table, slot), autograph=False),
            [tf.constant(keys[some]) for some in numbers],
        ),
        "plain table": on_each(
            tf.function(
                _trained(lambda ids: tf.gather(plain, ids), plain, plain_slot), autograph=False
            ),
            [tf.constant(some) for some in numbers],
        ),
    }


def _dense(kind: Any) -> Any:
    """`tf.lookup.experimental.DenseHashTable`, with places for so many keys from the beginning."""

    def make(key_dtype: tf.DType, dtype: tf.DType, default: Any, key_count: int) -> Any:
        buckets = 1 << (2 * key_count).bit_length()
        return kind(key_dtype, dtype, default, -1, -2, initial_num_buckets=buckets)

    return make


def _mutable(kind: Any) -> Any:
    """`tf.lookup.experimental.MutableHashTable`."""
    return lambda key_dtype, dtype, default, key_count: kind(key_dtype, dtype, default)


def _rows(kind: Any) -> Callable[..., Lookup]:
    """Makes the lookup of a stock table that has rows of a variable, and of a gather of these."""

    def make(keys: np.ndarray[Any, Any], variable: EmbeddingVariable) -> Lookup:
        table = kind(tf.int64, tf.int64, -1, len(keys))
        rows = tf.Variable(tf.zeros([len(keys), DIM]))
        for first in range(0, len(keys), _CHUNK):
            some = keys[first : first + _CHUNK]
            numbers = tf.range(first, first + len(some), dtype=tf.int64)
            table.insert(some, numbers)
            rows.scatter_update(tf.IndexedSlices(variable.embedding_lookup(some), numbers))
        return lambda keys: tf.gather(rows, table.lookup(keys))

    return make


def _vectors(kind: Any) -> Callable[..., Lookup]:
    """Makes the lookup of a stock table that has the vectors themselves."""

    def make(keys: np.ndarray[Any, Any], variable: EmbeddingVariable) -> Lookup:
        table = kind(tf.int64, tf.float32, tf.zeros([DIM]), len(keys))
        for first in range(0, len(keys), _CHUNK):
            some = keys[first : first + _CHUNK]
            table.insert(some, variable.embedding_lookup(some))
        lookup: Lookup = table.lookup
        return lookup

    return make


_STOCK = {
    "DenseHashTable and a gather": _rows(_dense(tf.lookup.experimental.DenseHashTable)),
    "DenseHashTable of vectors": _vectors(_dense(tf.lookup.experimental.DenseHashTable)),
    "MutableHashTable and a gather": _rows(_mutable(tf.lookup.experimental.MutableHashTable)),
    "MutableHashTable of vectors": _vectors(_mutable(tf.lookup.experimental.MutableHashTable)),
}
