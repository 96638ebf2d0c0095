"""Opens files and checks that they have the requested columns; nothing of TensorFlow runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from fusion.data.files import DataError, File, Location, Paths, find_files
from fusion.data.partitions import partition_types
from fusion.data.reader import Skipped
from fusion.data.schema import Column, Nulls, Request, Role, merged

_FOOTERS_AT_ONCE = 8

_Seen = tuple[Column | Nulls, File]
"""A column, and the first file that says that it is this one."""


def columns_of(
    paths: Paths,
    label_names: Sequence[str] = (),
    cat_names: Sequence[str] = (),
    cont_names: Sequence[str] = (),
    *,
    dtypes: Mapping[str, tf.DType] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Column, ...]:
    """The columns of files, as a `ParquetLoader` of these arguments has them, without a dataset.

    A dataset begins TensorFlow's runtime, before which strategies of several processes are made.

    Raises:
        DataError: a file is not there or cannot be read, has no such columns, or others than the
            first one.
        ImportError, ValueError: see `ParquetLoader`.
    """
    request = Request(
        roles_of(label_names, cat_names, cont_names), {}, {}, tensor_dtypes(dtypes), {}
    )
    return open_files(find_files(paths, storage_options), request)[1]


def tensor_dtypes(dtypes: Mapping[str, tf.DType] | None) -> dict[str, tf.DType]:
    """The requested dtypes, by column, from anything that TensorFlow takes for one."""
    return {name: tf.as_dtype(dtype) for name, dtype in (dtypes or {}).items()}


def open_files(
    locations: Sequence[Location],
    request: Request,
    skip: Callable[[Skipped], None] | None = None,
) -> tuple[list[File], tuple[Column, ...]]:
    """The files that have the requested columns, and these columns.

    Args:
        locations: of files.
        request: the columns.
        skip: is called for each file that is left out since it cannot be read; None to raise.

    Raises:
        DataError: a file cannot be read or has other columns, or there is none that can.
    """
    types = partition_types((location.partition for location in locations), request.texts)

    def footer(location: Location) -> File | DataError:
        try:
            return location.read_footer(types)
        except DataError as error:
            return error

    files, reason = list[File](), ""
    columns: dict[str, _Seen] = {}
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for location, outcome in zip(locations, pool.map(footer, locations), strict=True):
            try:
                if isinstance(outcome, DataError):
                    raise outcome
                own = request.columns_of(outcome.path, outcome.schema)
                columns = {column.name: _merged(columns, column, outcome) for column in own}
            except DataError as error:
                reason = reason or str(error)
                if skip is None:
                    raise
                rows = None if isinstance(outcome, DataError) else sum(outcome.rows)
                skip(Skipped(location.path, rows, str(error)))
                continue
            files.append(outcome)
    if not files:
        raise DataError(f"no file can be read: {reason}")
    return files, tuple(
        column if isinstance(column, Column) else request.of_nulls(file.path, column)
        for column, file in columns.values()
    )


def roles_of(
    label_names: Sequence[str], cat_names: Sequence[str], cont_names: Sequence[str]
) -> dict[str, Role]:
    """The role of each column, by its name."""
    roles: dict[str, Role] = {}
    names_by_role = (
        (Role.CATEGORICAL, cat_names),
        (Role.CONTINUOUS, cont_names),
        (Role.LABEL, label_names),
    )
    for role, names in names_by_role:
        if isinstance(names, str):
            raise ValueError(f"{role.value} must be a list of names, got {names!r}")
        for name in names:
            if name in roles:
                raise ValueError(f"column {name} is twice among label_names, cat_names, cont_names")
            roles[name] = role
    if not roles:
        raise ValueError("no columns: label_names, cat_names and cont_names are empty")
    return roles


def _merged(columns: Mapping[str, _Seen], column: Column | Nulls, file: File) -> _Seen:
    """A column of files, with one more.

    Raises:
        DataError: the file has another column.
    """
    before, first = columns.get(column.name, (column, file))
    both = merged(before, column)
    if both is None:
        data_types = (one.schema.field(column.name).type for one in (file, first))
        raise DataError(
            "{}: column {} has {}, but {} in {}".format(
                file.path, column.name, *data_types, first.path
            )
        )
    return both, first if both == before else file
