"""Parquet files of click logs: a column for each feature and one for the label.

`python -m modelzoo.data FOLDER` writes synthetic ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from fusion.data import ParquetLoader
from modelzoo.criteo import LABEL, MISSING_COUNT, MISSING_ID, NUMERIC, CriteoData

_ROW_GROUP = 1 << 15
#: The first batch of held-out samples; those of training are far below.
_HELD_OUT = 1 << 40


def loader(
    paths: str | Path, batch_size: int, categorical: Collection[str], seed: int | None = None
) -> ParquetLoader:
    """Batches (features, labels): float32 counts, int64 ids and float32 labels, all [n, 1].

    Args:
        paths: a file, a folder or a glob.
        batch_size: samples of a batch.
        categorical: the names of the categorical features.
        seed: of the order of samples, another one in each epoch; None for that of the files.

    Raises:
        DataError: a file is not there, or has no such columns.
    """
    missing = dict.fromkeys(NUMERIC, MISSING_COUNT) | dict.fromkeys(categorical, MISSING_ID)
    return ParquetLoader(
        str(paths),
        batch_size,
        [LABEL],
        [*categorical],
        NUMERIC,
        shuffle=seed is not None,
        seed=seed,
        dtypes=dict.fromkeys(categorical, tf.int64),
        fill_values=missing,
    )


def write(folder: Path, data: CriteoData, samples: int, held_out: bool = False) -> None:
    """Writes samples to a new folder, which appears when all of them are written.

    Args:
        folder: where the file goes.
        data: what the samples are.
        samples: how many there are.
        held_out: whether they are others than those of training.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    writer = None
    for index, start in enumerate(range(0, samples, _ROW_GROUP)):
        size = min(_ROW_GROUP, samples - start)
        batch = data.batch(size, index + _HELD_OUT * held_out)
        columns = {LABEL: pa.array(batch.labels[:, 0].astype(np.int8))}
        for name, values in batch.features.items():
            missing = MISSING_COUNT if name in NUMERIC else MISSING_ID
            columns[name] = pa.array(values[:, 0], mask=values[:, 0] == missing)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(partial / "samples.parquet", table.schema)
        writer.write_table(table)
    if writer is None:
        raise ValueError(f"samples must be at least 1, got {samples}")
    writer.close()
    partial.rename(folder)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.data", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1 << 20, help="%(default)s")
    parser.add_argument("--cap", type=int, help="max ids of a feature")
    parser.add_argument("--missing", type=float, default=0.02, help="share of ids; %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="%(default)s")
    parser.add_argument("--held-out", action="store_true", help="other samples of the same kind")
    flags = parser.parse_args()
    data = CriteoData(flags.cap, missing=flags.missing, seed=flags.seed)
    write(flags.folder, data, flags.samples, flags.held_out)


if __name__ == "__main__":
    main()
