"""What the statistics of Parquet files contain, without reading rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusion.data.files import DataError, Paths, find_files
from fusion.data.partitions import partition_types
from fusion.data.schema import has_nulls_alone


def cardinalities(
    paths: Paths, names: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """How many rows a table needs for the ids of each column: the largest one and 1, at least 1.

    Args:
        paths: see `ParquetLoader`.
        names: columns of integers, or of lists of them.
        storage_options: see `ParquetLoader`.

    Raises:
        DataError: a file has none of a column, or no such column, or cannot be read.
    """
    largest = dict.fromkeys(names, 0)
    locations = find_files(paths, storage_options)
    types = partition_types(location.partition for location in locations)
    for location in locations:
        file = location.read_footer(types)
        for name in largest.keys() & file.constants.keys():
            value = file.constants[name].as_py()
            if isinstance(value, str):
                raise DataError(f"{file.path}: column {name} holds no integers")
            largest[name] = max(largest[name], value or 0)
        if missing := [name for name in names if name not in file.schema.names]:
            raise DataError(f"{file.path}: no column {', '.join(missing)}")
        for group in range(file.metadata.num_row_groups):
            columns = file.metadata.row_group(group)
            for place in range(columns.num_columns):
                column = columns.column(place)
                name = column.path_in_schema.split(".")[0]
                if name in largest and not has_nulls_alone(file.schema.field(name).type):
                    largest[name] = max(largest[name], _largest(column, file.path, name))
    return {name: one + 1 for name, one in largest.items()}


def _largest(column: Any, path: str, name: str) -> int:
    statistics = column.statistics
    if statistics is not None and statistics.has_min_max:
        if not isinstance(statistics.max, int):
            raise DataError(f"{path}: column {name} holds no integers")
        return statistics.max
    nulls = statistics.null_count if statistics is not None else 0
    if column.num_values and nulls != column.num_values:
        raise DataError(f"{path}: no statistics of {name}")
    return 0
