"""Batches of Parquet files by `fusion.data.ParquetLoader`, beside `tf.data` over pyarrow by hand.

python -m benchmarks.data [--rows 2000000] [--seconds 10] [--out FOLDER]

The file has the 40 columns of Criteo's click logs: a label, 13 floats and 26 ids, int64, in row
groups of 262,144. By hand a generator converts what `iter_batches` of pyarrow gives, a record batch
for each batch, and a thread of TensorFlow's reads ahead. The rows of both are compared before they
are measured; then they take turns, an epoch each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks.markdown import table as markdown
from benchmarks.measure import in_turns
from fusion.data import ParquetLoader

_LABEL = "label"
_COUNTS = [f"I{k}" for k in range(1, 14)]
_IDS = [f"C{k}" for k in range(1, 27)]
_GROUP = 1 << 18
_SIZES = (512, 65536)


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


def measure(folder: Path, rows: int, seconds: float) -> dict[str, Any]:
    """Rows a second of each side, by batch size: median, and the quartiles.

    Args:
        folder: for the file.
        rows: of an epoch.
        seconds: for each side and batch size.
    """
    path = folder / "criteo.parquet"
    write_file(path, rows)
    found: dict[str, Any] = {}
    for size in _SIZES:
        sides = {
            "by hand": by_hand(path, size),
            "ParquetLoader": by_loader(path, size, shuffle=False),
            "ParquetLoader, shuffled": by_loader(path, size, shuffle=True),
        }
        assert_equal(sides["ParquetLoader"], sides["by hand"])
        times = in_turns([_epoch(side) for side in sides.values()], seconds * len(sides))
        for name, each in zip(sides, times, strict=True):
            ratios = np.array(times[0][: len(each)]) / np.array(each)[: len(times[0])]
            found[f"{name}, {size}"] = {
                "rows_per_second": float(rows / np.median(each)),
                "ratio": [float(q) for q in np.percentile(ratios, [25, 50, 75])],
            }
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of an epoch, default 2e6")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each side, default 10")
    parser.add_argument("--out", type=Path, help="a folder for the numbers, data.json")
    options = parser.parse_args()
    from fusion.runtime.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.rows, options.seconds)
    lines = [
        (
            name,
            f"{one['rows_per_second'] / 1e6:.2f}",
            "{1:.2f} ({0:.2f} to {2:.2f})".format(*one["ratio"]),
        )
        for name, one in found.items()
    ]
    print(markdown(("batches of", "million rows/s", "times by hand"), lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"rows": options.rows, "sides": found, "machine": machine()}, indent=2)
        (options.out / "data.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
