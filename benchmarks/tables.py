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


def _stock(is_dense: bool, has_vectors: bool) -> Callable[..., Lookup]:
    """What makes the lookup of a stock table of `tf.lookup.experimental` with all keys.

    Args:
        is_dense: whether it is a `DenseHashTable`, with space for the keys from the beginning, or a
            `MutableHashTable`.
        has_vectors: whether it has the vectors themselves, or numbers of rows of a variable.
    """

    def make(keys: np.ndarray[Any, Any], variable: EmbeddingVariable) -> Lookup:
        dtype, default = (tf.float32, tf.zeros([DIM])) if has_vectors else (tf.int64, -1)
        if is_dense:
            table = tf.lookup.experimental.DenseHashTable(
                tf.int64, dtype, default, -1, -2, 1 << (2 * len(keys)).bit_length()
            )
        else:
            table = tf.lookup.experimental.MutableHashTable(tf.int64, dtype, default)
        rows = tf.Variable(tf.zeros([0 if has_vectors else len(keys), DIM]))
        for first in range(0, len(keys), _CHUNK):
            some = keys[first : first + _CHUNK]
            values = variable.embedding_lookup(some)
            if not has_vectors:
                numbers = tf.range(first, first + len(some), dtype=tf.int64)
                rows.scatter_update(tf.IndexedSlices(values, numbers))
                values = numbers
            table.insert(some, values)
        lookup: Lookup = table.lookup
        return lookup if has_vectors else lambda keys: tf.gather(rows, lookup(keys))

    return make


_STOCK = {
    "DenseHashTable and a gather": _stock(is_dense=True, has_vectors=False),
    "DenseHashTable of vectors": _stock(is_dense=True, has_vectors=True),
    "MutableHashTable and a gather": _stock(is_dense=False, has_vectors=False),
    "MutableHashTable of vectors": _stock(is_dense=False, has_vectors=True),
}
