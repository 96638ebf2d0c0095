"""Batches of Parquet files by `fusion.data.ParquetLoader`, beside `tf.data` over pyarrow by hand.

The file has the 40 columns of Criteo's click logs: a label, 13 floats and 26 ids, int64, in row
groups of 262,144. By hand a generator converts what `iter_batches` of pyarrow gives, a record batch
for each batch, and a thread of TensorFlow's reads ahead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks.case import Row
from benchmarks.measure import calls_in_turns, quartiles, ratios
from fusion.data import ParquetLoader

_LABEL = "label"
_COUNTS = [f"I{k}" for k in range(1, 14)]
_IDS = [f"C{k}" for k in range(1, 27)]
_GROUP = 1 << 18


def write_file(path: Path, rows: int) -> None:
    """Writes a file of random samples."""
    generator = np.random.default_rng(1)
    writer = None
    for start in range(0, rows, _GROUP):
        size = min(_GROUP, rows - start)
        columns: dict[str, Any] = {_LABEL: generator.integers(0, 2, size, np.int8)}
        columns |= {name: generator.normal(size=size).astype(np.float32) for name in _COUNTS}
        columns |= {
            name: np.minimum(generator.zipf(1.2, size), 1 << 20).astype(np.int64) for name in _IDS
        }
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def by_loader(path: Path, batch_size: int, shuffle: bool) -> tf.data.Dataset:
    """Of the package."""
    return ParquetLoader(path, batch_size, [_LABEL], _IDS, _COUNTS, shuffle=shuffle, seed=1)


def by_hand(path: Path, batch_size: int) -> tf.data.Dataset:
    """As one would write it."""

    def batches() -> Iterator[Any]:
        for batch in pq.ParquetFile(path).iter_batches(batch_size):
            columns = {
                name: array.to_numpy(zero_copy_only=False)[:, np.newaxis]
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            }
            label = columns.pop(_LABEL).astype(np.float32)
            yield columns, label

    specs = {name: tf.TensorSpec([None, 1], tf.float32) for name in _COUNTS}
    specs |= {name: tf.TensorSpec([None, 1], tf.int64) for name in _IDS}
    signature = (specs, tf.TensorSpec([None, 1], tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)


def assert_equal(one: tf.data.Dataset, other: tf.data.Dataset) -> None:
    """Compares all batches."""
    for (features, labels), (wanted, wanted_labels) in zip(one, other, strict=True):
        np.testing.assert_array_equal(labels, wanted_labels)
        for name, values in wanted.items():
            np.testing.assert_array_equal(features[name], values)


def _epoch(dataset: tf.data.Dataset) -> Callable[[], None]:
    def run() -> None:
        for _ in dataset:
            pass

    return run


def measure(batch: int, rows: int, seconds: float) -> Iterator[Row]:
    """Yields rows a second of each side.

    Args:
        batch: rows of a batch.
        rows: of an epoch.
        seconds: for each side.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "criteo.parquet"
        write_file(path, rows)
        sides = {
            "by hand": by_hand(path, batch),
            "ParquetLoader": by_loader(path, batch, shuffle=False),
            "ParquetLoader, shuffled": by_loader(path, batch, shuffle=True),
        }
        assert_equal(sides["ParquetLoader"], sides["by hand"])
        epochs = {name: _epoch(side) for name, side in sides.items()}
        times = calls_in_turns(epochs, seconds * len(sides))
    for name, found in times.items():
        values = {
            "million rows/s": quartiles([rows / one / 1e6 for one in found]),
            "times by hand": ratios(times["by hand"], found),
        }
        yield Row({"batch": batch, "side": name}, values)
