"""Parquet as the converter or NVTabular writes it: a column for each feature, ids as numbers.

A categorical column may hold a list of ids for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

from modelzoo.criteo.blocks import BLOCK, Block
from modelzoo.criteo.schema import (
    CATEGORICAL,
    FIELDS,
    LABEL,
    MISSING_COUNT,
    MISSING_ID,
    NUMERIC,
    DataError,
)

if TYPE_CHECKING:
    from fusion.data import ParquetLoader

_DTYPES = dict.fromkeys(CATEGORICAL, tf.int64)


def parquet_loader(
    files: Sequence[Path], batch_size: int, lists: Sequence[str] = ()
) -> ParquetLoader:
    """Batches of files, in their order; what is missing is a label of 0, a count or id of -1.

    Args:
        files: all with lists in the same columns.
        batch_size: samples of a batch.
        lists: the categorical columns that hold lists, whose tensors are sparse.

    Raises:
        DataError: a file cannot be read, or has other columns.
    """
    from fusion.data import ParquetLoader

    missing = dict.fromkeys(NUMERIC, MISSING_COUNT) | dict.fromkeys(CATEGORICAL, MISSING_ID)
    with _errors_of_the_zoo():
        return ParquetLoader(
            files,
            batch_size,
            [LABEL],
            CATEGORICAL,
            NUMERIC,
            shuffle=False,
            buffer_size=BLOCK,
            sparse_names=lists,
            dtypes=_DTYPES,
            fill_values={LABEL: 0, **missing},
        )


def list_columns(files: Sequence[Path]) -> list[str]:
    """The categorical columns of files that hold lists.

    Raises:
        DataError: a file cannot be read, or has other columns than a label, counts and categories.
    """
    from fusion.data import columns_of

    with _errors_of_the_zoo():
        columns = columns_of(files, [LABEL], CATEGORICAL, NUMERIC, dtypes=_DTYPES)
    return [column.name for column in columns if column.form]


def rows_of(files: Sequence[Path]) -> Mapping[str, int]:
    """How many ids each categorical feature has, at least one, from the files' statistics.

    Raises:
        DataError: a file has none of a column.
    """
    from fusion.data import cardinalities

    with _errors_of_the_zoo(": tell how many ids there are (--rows)"):
        return cardinalities(files, CATEGORICAL)


@contextmanager
def _errors_of_the_zoo(hint: str = "") -> Iterator[None]:
    from fusion.data import DataError as LoaderError

    try:
        yield
    except LoaderError as error:
        raise DataError(f"{error}{hint}") from error


def to_block(table: pa.RecordBatch | pa.Table) -> Block:
    """The samples of a table of numbers; a label that is missing is 0."""
    labels = _numbers(table[LABEL], np.float32, 0)
    counts = _side_by_side(table, NUMERIC, np.float32, MISSING_COUNT)
    ids = _side_by_side(table, CATEGORICAL, np.int64, MISSING_ID)
    return Block(labels, counts, ids)


def from_block(block: Block) -> pa.Table:
    """A table of samples; what is missing is null."""
    counts = [
        pa.array(column, mask=np.asarray(column == MISSING_COUNT)) for column in block.counts.T
    ]
    ids = [
        pa.array(column, mask=column == MISSING_ID) for column in np.ascontiguousarray(block.ids.T)
    ]
    columns = [pa.array(block.labels.astype(np.int8)), *counts, *ids]
    return pa.table(dict(zip(FIELDS, columns, strict=True)))


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a file."""
    pq.write_table(table, path, row_group_size=BLOCK, compression="snappy")


def _numbers(
    column: pa.Array | pa.ChunkedArray, dtype: type[np.number[Any]], missing: float
) -> npt.NDArray[Any]:
    kind = pa.from_numpy_dtype(dtype)
    column = column.cast(kind, safe=False)
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(missing, kind))
    return column.to_numpy(zero_copy_only=False)


def _side_by_side(
    table: pa.RecordBatch | pa.Table,
    names: Sequence[str],
    dtype: type[np.number[Any]],
    missing: float,
) -> npt.NDArray[Any]:
    out = np.empty([len(table), len(names)], dtype)
    for place, name in enumerate(names):
        out[:, place] = _numbers(table[name], dtype, missing)
    return out
