"""Columns in the names of folders, as Hive and Spark write them: `day=3/shop=a/part.parquet`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile("-?[0-9]+")
_INTEGERS = (pa.int32(), pa.int64())


def partition_of(name: str) -> dict[str, str | None]:
    """The keys and values in the folders of a file's name; None where a value is null."""
    folders = (folder.partition("=") for folder in name.split("/")[:-1])
    return {
        unquote(key): None if value == _NULL else unquote(value)
        for key, equals, value in folders
        if key and equals
    }


def is_partition(folder: str) -> bool:
    """Whether the name of a folder is a key and a value."""
    key, equals, _ = folder.partition("=")
    return bool(key and equals) and not key.startswith((".", "_"))


def partition_types(
    partitions: Iterable[Mapping[str, str | None]], texts: Iterable[str] = ()
) -> dict[str, pa.DataType]:
    """The Arrow type of each key: integers if the values of all files are, else strings.

    Args:
        partitions: `partition_of` each file.
        texts: keys whose values are strings, whatever they look like.
    """
    values: dict[str, set[str]] = {}
    for partition in partitions:
        for key, value in partition.items():
            values.setdefault(key, set()).update(() if value is None else (value,))
    strings = {*texts}
    return {key: pa.string() if key in strings else _type(own) for key, own in values.items()}


def typed(value: str | None, data_type: pa.DataType) -> pa.Scalar:
    """The value of a key as its type has it."""
    if value is None or pa.types.is_null(data_type):
        return pa.scalar(None, data_type)
    return pa.scalar(int(value) if pa.types.is_integer(data_type) else value, data_type)


def _type(values: set[str]) -> pa.DataType:
    if not values:
        return pa.null()
    if not all(map(_INTEGER.fullmatch, values)):
        return pa.string()
    largest = max(abs(int(value)) for value in values)
    return next(
        (integer for integer in _INTEGERS if largest < 1 << (integer.bit_width - 1)), pa.string()
    )
