"""Lookups in tables of packed rows, against the same lookups in a float32 table.

All formats are in one process and take turns. Ids are uniform, so that most rows are not in the
caches; a lookup is one op, of several columns that have the table in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.case import Row
from benchmarks.grouped import grouped
from benchmarks.measure import calls_in_turns, milliseconds, ratios
from fusion.schema.row_formats import PACKED_FORMATS, PLAIN, pack_rows, packed_words, unpack_rows

_COLUMNS, _BATCHES, _CALLS = 8, (512, 4096), 16
#: Ids of a row, in the mean.
_IDS = 10
#: Rows that are made and packed at a time.
_BLOCK = 1 << 16


def measure(dim: int, megabytes: float, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each format, and how many times as fast as float32 it is.

    Args:
        dim: of the table.
        megabytes: of the float32 table.
        seconds: of the calls of each batch.
    """
    tables = _tables(int(megabytes * 2**20 / (4 * dim)), dim)
    plain = tables[PLAIN].shape[1]
    for batch in _BATCHES:
        calls = {name: _Calls(table, name, dim, batch) for name, table in tables.items()}
        for call in calls.values():
            call.check()
        times = calls_in_turns(calls, seconds)
        for name, found in times.items():
            values = {
                "of float32's bytes": tables[name].shape[1] / plain,
                "ms": milliseconds([one / _CALLS for one in found]),
                "times as fast as float32": ratios(times[PLAIN], found),
            }
            yield Row({"D": dim, "batch": batch, "row format": name}, values)


def _tables(rows: int, dim: int) -> dict[str, Any]:
    """The same table in each row format, as tensors."""
    words = {PLAIN: dim} | {name: packed_words(name, dim) for name in PACKED_FORMATS}
    arrays = {name: np.empty((rows, width), np.float32) for name, width in words.items()}
    random = np.random.default_rng(dim)
    for first in range(0, rows, _BLOCK):
        block = random.standard_normal((min(_BLOCK, rows - first), dim), np.float32)
        for name, array in arrays.items():
            array[first : first + _BLOCK] = block if name == PLAIN else pack_rows(block, name)
    return {name: tf.constant(arrays.pop(name)) for name in words}


class _Calls:
    """Looks up batches of ids in a table, one after the other in one function.

    What a call of a function costs is no part of a lookup in a model.
    """

    def __init__(self, table: Any, row_format: str, dim: int, batch: int) -> None:
        self._table, self._format, self._dim = table, row_format, dim
        random, rows = np.random.default_rng(batch), int(table.shape[0])
        self._batches = [_ids(random, rows, batch) for _ in range(_CALLS)]
        self._function = _lookup(row_format, dim)
        self._all = _in_order(self._function, table, self._batches)

    def __call__(self) -> None:
        self._all()

    def check(self) -> None:
        """Compares the first batch with that of the plain rows that a table stands for.

        Raises:
            AssertionError: bits differ.
        """
        ids, splits = self._batches[0]
        found, places = np.unique(np.concatenate(ids), return_inverse=True)
        rows = tf.gather(self._table, found).numpy()
        if self._format != PLAIN:
            rows = unpack_rows(rows, self._format, self._dim)
        own = [
            tf.constant(part) for part in np.split(places, np.cumsum([len(i) for i in ids])[:-1])
        ]
        wanted = _lookup(PLAIN, self._dim)(tf.constant(rows), own, splits)
        got = self._function(self._table, ids, splits)
        assert got.numpy().tobytes() == wanted.numpy().tobytes(), self._format


def _in_order(function: Callable[..., Any], table: Any, batches: Sequence[Any]) -> Any:
    """A function that looks up each batch when the one before is done."""

    @tf.function
    def run() -> Any:
        firsts: list[Any] = []
        for batch in batches:
            with tf.control_dependencies(firsts[-1:]):
                firsts.append(function(table, *batch)[0, 0])
        return tf.add_n(firsts)

    return run.get_concrete_function()


def _ids(random: Any, rows: int, batch: int) -> tuple[list[Any], list[Any]]:
    """Ids and row splits of each column."""
    ids, splits = [], []
    for _ in range(_COLUMNS):
        ends = np.cumsum(random.integers(0, 2 * _IDS + 1, batch))
        ids.append(tf.constant(random.integers(0, rows, ends[-1])))
        splits.append(tf.constant(np.concatenate(([0], ends))))
    return ids, splits


def _lookup(row_format: str, dim: int) -> Callable[..., Any]:
    """A function (table, ids, row splits) -> the columns side by side."""
    vectors = [tf.TensorSpec([None], tf.int64)] * _COLUMNS
    packed = "float32" if row_format == PLAIN else "uint8"

    @tf.function(input_signature=[tf.TensorSpec([None, None]), vectors, vectors])
    def look_up(table: Any, ids: list[Any], splits: list[Any]) -> Any:
        own = {"dims": dim, "row_formats": row_format}
        tables, combiners = [table] * _COLUMNS, ["sum"] * _COLUMNS
        return grouped(tables, ids, splits, combiners, packed, **own)

    return look_up
