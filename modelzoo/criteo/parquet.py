"""Parquet as the converter or NVTabular writes it: a column for each feature, ids as numbers.

A categorical column may hold a list of ids for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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

_BUFFER = 1 << 20


def list_columns(file: Path) -> list[str]:
    """The categorical columns of a file that hold lists.

    Raises:
        DataError: it is no Parquet file, or has other columns than a label, counts and categories.
    """
    schema = _opened(file).schema_arrow
    if missing := [name for name in FIELDS if name not in schema.names]:
        raise DataError(f"{file}: no column {', '.join(missing)}")
    lists = []
    for name in FIELDS:
        kind = schema.field(name).type
        if name in CATEGORICAL and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            lists.append(name)
            kind = kind.value_type
        is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if not is_number and not (name not in CATEGORICAL and pa.types.is_floating(kind)):
            raise DataError(f"{file}: column {name} has {kind}, not numbers that it can have")
    return lists


def largest_ids(files: Sequence[Path]) -> dict[str, int]:
    """The largest id of each categorical feature, from the files' statistics.

    Raises:
        DataError: a file has none of a column.
    """
    largest = dict.fromkeys(CATEGORICAL, -1)
    for file in files:
        metadata = _opened(file).metadata
        for group in range(metadata.num_row_groups):
            for place in range(metadata.num_columns):
                column = metadata.row_group(group).column(place)
                name = column.path_in_schema.split(".")[0]
                if name not in largest:
                    continue
                statistics = column.statistics
                if statistics is None or not statistics.has_min_max:
                    nulls = statistics.null_count if statistics is not None else 0
                    if column.num_values and nulls != column.num_values:
                        raise DataError(
                            f"{file}: no statistics of {name}: tell how many ids there are (--rows)"
                        )
                    continue
                largest[name] = max(largest[name], int(statistics.max))
    return largest


def read_parquet(files: Sequence[Path], skip: int = 0) -> Iterator[Block]:
    """Yields the samples of files, some ten thousand at a time.

    Args:
        files: all with lists in the same columns.
        skip: how many samples are left out; files and groups of rows among them are not read.
    """
    lists = list_columns(files[0])
    for file in files:
        if (own := list_columns(file)) != lists:
            raise DataError(f"{file}: lists in {own}, but {files[0]} has them in {lists}")
        opened = _opened(file)
        groups: list[int] = []
        for group in range(opened.metadata.num_row_groups):
            count = opened.metadata.row_group(group).num_rows
            if groups or skip < count:
                groups.append(group)
            else:
                skip -= count
        if not groups:
            continue
        try:
            for batch in opened.iter_batches(BLOCK, row_groups=groups, columns=[*FIELDS]):
                if skip < len(batch):
                    yield to_block(batch.slice(skip), lists)
                skip = max(skip - len(batch), 0)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: cannot be read: {error}") from error


def to_block(table: pa.RecordBatch | pa.Table, lists: Sequence[str] = ()) -> Block:
    """The samples of a table of numbers; a label that is missing is 0."""
    single = [name for name in CATEGORICAL if name not in lists]
    labels = _numbers(table[LABEL], np.float32, 0)
    counts = _side_by_side(table, NUMERIC, np.float32, MISSING_COUNT)
    ids = _side_by_side(table, single, np.int64, MISSING_ID)
    return Block(labels, counts, ids, {name: _ragged(table[name]) for name in lists})


def from_block(block: Block, single: Sequence[str] = CATEGORICAL) -> pa.Table:
    """A table of samples; what is missing is null."""
    counts = [
        pa.array(column, mask=np.asarray(column == MISSING_COUNT)) for column in block.counts.T
    ]
    ids = [
        pa.array(column, mask=column == MISSING_ID) for column in np.ascontiguousarray(block.ids.T)
    ]
    columns: dict[str, pa.Array] = {LABEL: pa.array(block.labels.astype(np.int8))}
    columns |= dict(zip(NUMERIC, counts, strict=True)) | dict(zip(single, ids, strict=True))
    for name, (values, splits) in block.lists.items():
        columns[name] = pa.LargeListArray.from_arrays(pa.array(splits), pa.array(values))
    return pa.table({name: columns[name] for name in FIELDS})


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a file."""
    pq.write_table(table, path, row_group_size=BLOCK, compression="snappy")


def _opened(file: Path) -> pq.ParquetFile:
    try:
        # Else all that was read of a file stays in memory until its end.
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read as Parquet: {error}") from error


def _numbers(
    column: pa.Array | pa.ChunkedArray, dtype: type[np.number[Any]], missing: float
) -> npt.NDArray[Any]:
    kind = pa.from_numpy_dtype(dtype)
    column = column.cast(kind, safe=False)
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(missing, kind))
    numbers = column.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind) and np.isnan(numbers).any():
        numbers = np.where(np.isnan(numbers), np.asarray(missing, dtype), numbers)
    return numbers


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


def _ragged(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The ids of lists, of which none is null, and where those of each sample begin."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    splits = np.zeros([len(lengths) + 1], np.int64)
    np.cumsum(lengths, out=splits[1:])
    return _numbers(column.flatten(), np.int64, MISSING_ID), splits


def rows_of(files: Sequence[Path]) -> Mapping[str, int]:
    """How many ids each categorical feature has, at least one."""
    return {name: max(largest + 1, 1) for name, largest in largest_ids(files).items()}
