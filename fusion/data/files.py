"""Parquet files by paths, globs, folders and URLs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fusion.data.partitions import is_partition, partition_of, typed

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_BUFFER = 1 << 20


class DataError(ValueError):
    """Data cannot be read as requested; the message names the file and the column."""


@dataclass(frozen=True)
class File:
    """A Parquet file, as it was when its footer was read.

    Attributes:
        path: for messages.
        filesystem: the `pyarrow.fs.FileSystem` that has it.
        name: its name there.
        size: bytes.
        metadata: its footer, a `pyarrow.parquet.FileMetaData`.
        stored: the Arrow schema of what is in it.
        constants: the columns that only the names of its folders have, and the value of each.
    """

    path: str
    filesystem: Any = field(repr=False)
    name: str = field(repr=False)
    size: int
    metadata: Any = field(repr=False)
    stored: pa.Schema = field(repr=False)
    constants: Mapping[str, pa.Scalar] = field(repr=False, default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of all its columns."""
        fields = [pa.field(name, value.type) for name, value in self.constants.items()]
        return pa.schema([*self.stored, *fields])

    @property
    def rows(self) -> tuple[int, ...]:
        """How many rows each row group has."""
        groups = range(self.metadata.num_row_groups)
        return tuple(self.metadata.row_group(group).num_rows for group in groups)

    @contextmanager
    def opened(self) -> Iterator[pq.ParquetFile]:
        """The file, open.

        Raises:
            DataError: it has changed since its footer was read, or cannot be read.
        """
        with _errors_of(self.path), self.filesystem.open_input_file(self.name) as source:
            if (size := source.size()) != self.size:
                raise DataError(
                    f"{self.path}: has changed while it was read: {size} bytes, not {self.size}"
                )
            # Without pre_buffer, else all that was read of a file stays in memory until its end.
            yield pq.ParquetFile(
                source, metadata=self.metadata, pre_buffer=False, buffer_size=_BUFFER
            )


@dataclass(frozen=True)
class Location:
    """Where a file is: the path for messages, its filesystem and its name there."""

    path: str
    filesystem: Any = field(repr=False)
    name: str = field(repr=False)

    @property
    def partition(self) -> dict[str, str | None]:
        """The keys and values that the names of its folders have."""
        return partition_of(self.name)

    def read_footer(self, types: Mapping[str, pa.DataType]) -> File:
        """Opens the file and reads its footer.

        Args:
            types: `partition_types` of all files.

        Raises:
            DataError: it is not there, or no Parquet file.
        """
        with _errors_of(self.path), self.filesystem.open_input_file(self.name) as source:
            opened = pq.ParquetFile(source)
            size, metadata, schema = source.size(), opened.metadata, opened.schema_arrow
            constants = {
                key: typed(value, types[key])
                for key, value in self.partition.items()
                if key not in schema.names
            }
            return File(self.path, self.filesystem, self.name, size, metadata, schema, constants)


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file or folder") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error


def find_files(paths: Paths, storage_options: Mapping[str, Any] | None = None) -> list[Location]:
    """The files of paths, in the order of the paths; those of a glob or folder sorted by name.

    Args:
        paths: files, globs, folders (of which the files that end in .parquet are read, and those
            of folders in them whose names are a key and a value), or URLs of any of them, for which
            fsspec is needed.
        storage_options: for fsspec's filesystem.

    Raises:
        DataError: a path is no file, or there is none in a folder or of a glob.
        ImportError: a path is a URL, and fsspec is not installed.
    """
    path_list = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    if not path_list:
        raise DataError("paths: there is none")
    locations = []
    for path in [os.fspath(one) for one in path_list]:
        if "://" in path and not path.startswith("file://"):
            locations += _in_url(path, storage_options or {})
        else:
            locations += _in_path(path.removeprefix("file://"))
    return locations


def _in_path(path: str) -> list[Location]:
    filesystem = pafs.LocalFileSystem()
    if os.path.isdir(path):
        names = _of_folder(filesystem, path, path)
    elif glob.has_magic(path) and not os.path.exists(path):
        names = _of_glob(path, glob.glob(path, recursive=True))
    else:
        names = [path]
    return [Location(name, filesystem, os.path.abspath(name)) for name in names]


def _in_url(url: str, storage_options: Mapping[str, Any]) -> list[Location]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(f"{url}: URLs need fsspec: pip install fsspec") from error
    filesystem, name = url_to_fs(url, **storage_options)
    scheme = url.partition("://")[0]
    wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    if filesystem.isdir(name):
        names = _of_folder(wrapped, name, url)
    elif glob.has_magic(name):
        names = _of_glob(url, filesystem.glob(name))
    else:
        names = [name]
    return [Location(f"{scheme}://{name.lstrip('/')}", wrapped, name) for name in names]


def _of_folder(filesystem: Any, folder: str, path: str) -> list[str]:
    names, others = list[str](), list[str]()
    start = len(folder.rstrip("/")) + 1
    for entry in filesystem.get_file_info(pafs.FileSelector(folder, recursive=True)):
        if entry.type == pafs.FileType.Directory or not entry.base_name.endswith(".parquet"):
            continue
        *folders, name = entry.path[start:].split("/")
        if name.startswith((".", "_")):
            continue
        (names if all(map(is_partition, folders)) else others).append(entry.path)
    if not names:
        inside = f"; {min(others)} is in a folder that is not called KEY=VALUE" if others else ""
        raise DataError(f"{path}: no file in it ends in .parquet{inside}")
    return sorted(names)


def _of_glob(pattern: str, names: Sequence[str]) -> list[str]:
    if not names:
        raise DataError(f"{pattern}: there is no such file")
    return sorted(names)
